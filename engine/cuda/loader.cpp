// Opens the plugin, and says in one line what is missing where it cannot. Part of the program, not
// of the plugin: nothing here needs CUDA.
#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <vector>

#include "engine/cuda/plugin.h"

namespace trainer {
namespace {

namespace fs = std::filesystem;
using cuda::PluginTable;

// What the driver itself knows, asked without the CUDA runtime (cuda.h's numbers).
class Driver {
  public:
    Driver() {
        library_ = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
        if (library_ == nullptr) {
            problem_ =
                "no NVIDIA driver is installed (libcuda.so.1 cannot be opened); install it, "
                "or use device: cpu";
            return;
        }
        int count = 0;
        int status = call<int(unsigned)>("cuInit", 0U);
        if (status == 0)
            status = call<int(int*)>("cuDeviceGetCount", &count);
        if (status != 0)
            problem_ = "the NVIDIA driver finds no GPU that works (" + name_of(status) +
                       "); nvidia-smi may say more; or use device: cpu";
        else if (count == 0)
            problem_ = "the NVIDIA driver finds no GPU; use device: cpu";
        for (int device = 0; device < count && problem_.empty(); ++device)
            capabilities_.push_back(10 * attribute(75, device) + attribute(76, device));
    }

    /// Empty where there is a GPU.
    const std::string& problem() const { return problem_; }
    /// Ten times major plus minor, of each GPU.
    const std::vector<int>& capabilities() const { return capabilities_; }

  private:
    static constexpr int missing_function = -1;

    template <typename Signature, typename... Arguments>
    int call(const char* name, Arguments... arguments) const {
        auto* const function = reinterpret_cast<Signature*>(dlsym(library_, name));
        return function == nullptr ? missing_function : function(arguments...);
    }

    int attribute(int which, int device) const {
        int value = 0;
        return call<int(int*, int, int)>("cuDeviceGetAttribute", &value, which, device) == 0 ? value
                                                                                             : 0;
    }

    std::string name_of(int status) const {
        const char* text = nullptr;
        if (status == missing_function)
            return "a library that is no driver";
        if (call<int(int, const char**)>("cuGetErrorName", status, &text) == 0 && text != nullptr)
            return text;
        return "error " + std::to_string(status);
    }

    void* library_ = nullptr;  // never closed
    std::string problem_;
    std::vector<int> capabilities_;
};

fs::path plugin_path() {
    if (const char* const path = std::getenv("TRAINER_CUDA_ENGINE"))
        return path;
    std::error_code ignored;
    return fs::read_symlink("/proc/self/exe", ignored).parent_path() / "libengine_cuda.so";
}

struct Plugin {
    const PluginTable* table = nullptr;
    std::string problem;  // empty where table is there
};

Plugin open_plugin() {
    const fs::path path = plugin_path();
    if (!fs::exists(path))
        return {nullptr, "this build has no CUDA engine (" + path.string() +
                             " is not there); build with CUDA and cuDNN, or use device: cpu"};
    void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr)
        return {nullptr, std::string("the CUDA engine cannot be opened: ") + dlerror() +
                             "; install what it names or set LD_LIBRARY_PATH, or use device: cpu"};
    auto* const entry = reinterpret_cast<cuda::PluginEntry*>(dlsym(library, cuda::plugin_entry));
    if (entry == nullptr)
        return {nullptr, path.string() + " is no CUDA engine"};
    const PluginTable* const table = entry();
    if (table->version != cuda::plugin_version || table->layout != cuda::plugin_layout)
        return {nullptr, path.string() + " is of another build of this program (interface " +
                             std::to_string(table->version) + ", expected " +
                             std::to_string(cuda::plugin_version) +
                             "); build both from the same sources"};
    return {table, {}};
}

std::string dotted(int capability) {
    return std::to_string(capability / 10) + "." + std::to_string(capability % 10);
}

}  // namespace

bool has_cuda_device() {
    return Driver().problem().empty();
}

std::optional<std::string> why_no_cuda(int device) {
    const Driver driver;
    if (!driver.problem().empty())
        return driver.problem();
    const auto count = static_cast<int>(driver.capabilities().size());
    if (device < 0 || device >= count)
        return "this machine has no GPU " + std::to_string(device) + ": it has " +
               std::to_string(count) + ", counted from 0";
    const Plugin plugin = open_plugin();
    if (plugin.table == nullptr)
        return plugin.problem;
    const int lowest = plugin.table->capabilities[0];
    const int capability = driver.capabilities()[static_cast<size_t>(device)];
    if (capability < lowest)
        return "GPU " + std::to_string(device) + " has compute capability " + dotted(capability) +
               ", the CUDA engine was built for " + dotted(lowest) +
               " and later; build with -DTRAINER_CUDA_ARCHITECTURES=" + std::to_string(capability) +
               ", or use device: cpu";
    char message[256] = "";
    if (plugin.table->device_count(message, sizeof message) <= device)
        return std::string("the CUDA runtime cannot use GPU ") + std::to_string(device) + ": " +
               message;
    return std::nullopt;
}

std::optional<std::string> why_no_nccl() {
    char message[512] = "";
    if (open_plugin().table->has_nccl(message, sizeof message))
        return std::nullopt;
    return message;
}

Memory allocate_for_cuda(size_t bytes, int device) {
    return open_plugin().table->allocate_pinned(bytes, device);
}

std::unique_ptr<Backend> make_cuda_backend(const CudaOptions& options) {
    for (int gpu = 0; gpu < options.gpus; ++gpu)
        if (const auto why = why_no_cuda(options.device + gpu))
            throw UsageError("device: cuda: " + *why);
    if (options.gpus > 1)
        if (const auto why = why_no_nccl())
            throw UsageError("several GPUs: " + *why);
    return std::unique_ptr<Backend>(open_plugin().table->make(options));
}

}  // namespace trainer
