// A plugin of another build, for tests of what is said then.
#include "engine/cuda/plugin.h"

namespace {
constexpr trainer::cuda::PluginTable table{
    trainer::cuda::plugin_version + 1000, 0, nullptr, nullptr, nullptr, nullptr, nullptr};
}  // namespace

extern "C" const trainer::cuda::PluginTable* trainer_cuda_plugin();

const trainer::cuda::PluginTable* trainer_cuda_plugin() {
    return &table;
}
