#include "tools/trainer/version.h"

namespace trainer {

std::string version() {
    return TRAINER_VERSION;
}

std::string build_description() {
    return TRAINER_BUILD;
}

}  // namespace trainer
