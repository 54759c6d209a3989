// What stands in for the CPU engine in a build without oneDNN.
#include "engine/backend.h"

namespace trainer {

std::unique_ptr<Backend> make_cpu_backend(const CpuOptions&) {
    throw UsageError(
        "this build has no oneDNN, so only the slow reference backend computes on the processor "
        "(device: reference); for the fast one install oneDNN (Debian: libdnnl-dev) and build "
        "again");
}

}  // namespace trainer
