// EventFile of a build without protobuf: there is none.
#include "engine/error.h"
#include "tools/trainer/event_file.h"

namespace trainer {

struct EventFile::State {};

EventFile::EventFile(const std::filesystem::path&, int64_t, bool,
                     const std::vector<std::pair<std::string, std::string>>&) {
    throw UsageError(
        "log.tensorboard: this build writes no event files (it was built without "
        "libprotobuf-dev and protobuf-compiler); set it to false");
}

EventFile::~EventFile() = default;
void EventFile::write(int64_t, const std::vector<std::pair<std::string, double>>&) {}
void EventFile::end() {}

}  // namespace trainer
