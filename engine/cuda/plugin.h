// The border between the program and libengine_cuda.so: a table in C, by its version and by the
// sizes of what crosses in C++. Both sides are built from the same sources; a plugin of another
// build is refused.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/backend.h"
#include "engine/cuda/cuda_engine.h"

namespace trainer::cuda {

/// Counted up whenever the table, or an interface that crosses the border, changes.
inline constexpr uint32_t plugin_version = 4;

/// Sizes of the types that cross the border: other compilers or headers give another number.
inline constexpr uint64_t plugin_layout = [] {
    uint64_t hash = 1469598103934665603U;
    for (const size_t size :
         {sizeof(Binding), sizeof(Buffer), sizeof(Node), sizeof(Network), sizeof(StepInput),
          sizeof(ParameterArena), sizeof(LossSums), sizeof(CudaOptions), sizeof(Memory),
          sizeof(LaneTeam), sizeof(std::string), sizeof(GroupOptions), sizeof(ImageSet)})
        hash = (hash ^ size) * 1099511628211U;
    return hash;
}();

extern "C" {

struct PluginTable {
    uint32_t version;  ///< first, whatever the version
    uint64_t layout;
    /// Compute capabilities that it has code for, ten times major plus minor, lowest first, ended
    /// by 0; GPUs of a later one run the last's.
    const int* capabilities;
    /// Writes to `message` why the runtime cannot use any device, or nothing; returns their number.
    int (*device_count)(char* message, size_t size);
    /// Writes to `message` why GPUs cannot work together and returns false, or nothing.
    bool (*has_nccl)(char* message, size_t size);
    /// Zeroed memory of the host that GPUs copy from fast, taken by way of that one. Throws Error.
    Memory (*allocate_pinned)(size_t bytes, int device);
    /// A backend, deleted through its virtual destructor. Throws UsageError or Error.
    Backend* (*make)(const CudaOptions& options);
};

/// The one symbol of the plugin.
using PluginEntry = const PluginTable*();
inline constexpr const char* plugin_entry = "trainer_cuda_plugin";
}

}  // namespace trainer::cuda
