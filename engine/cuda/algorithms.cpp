#include "engine/cuda/algorithms.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "engine/cuda/context.h"

namespace trainer::cuda {

namespace {

std::string cache_file() {
    const char* const cache = std::getenv("XDG_CACHE_HOME");
    const char* const home = std::getenv("HOME");
    if (cache != nullptr && *cache == '/')
        return std::string(cache) + "/trainer/cudnn.txt";
    if (home != nullptr && *home == '/')
        return std::string(home) + "/.cache/trainer/cudnn.txt";
    return {};
}

}  // namespace

Algorithms::Algorithms(const Context& context) : context_(context), path_(cache_file()) {
    std::string gpu = context.device_name();
    std::replace(gpu.begin(), gpu.end(), ' ', '_');
    const CudaOptions& options = context.options();
    suffix_ = "/" + gpu + "/cudnn" + std::to_string(cudnnGetVersion()) +
              (options.deterministic ? "/deterministic" : "") + (options.tf32 ? "/tf32" : "");
    read_file();
}

cudnnMathType_t Algorithms::math() const {
    if (context_.options().precision == Precision::bf16)
        return CUDNN_TENSOR_OP_MATH;
    // The default allows TF32.
    return context_.options().tf32 ? CUDNN_DEFAULT_MATH : CUDNN_FMA_MATH;
}

bool Algorithms::allowed(const Candidate& candidate) const {
    const cudnnMathType_t kind = candidate.algorithm.math;
    const bool on_tensor_cores =
        kind == CUDNN_TENSOR_OP_MATH || kind == CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION;
    return candidate.works && candidate.workspace <= context_.workspace_bytes() &&
           (candidate.deterministic || !context_.options().deterministic) &&
           !(math() == CUDNN_FMA_MATH && on_tensor_cores);
}

Algorithm Algorithms::find(const std::string& what,
                           const std::function<bool(const Algorithm&)>& usable,
                           const std::function<std::vector<Candidate>()>& measure) {
    const std::string key = what + suffix_;
    const auto found = known_.find(key);
    if (found != known_.end() && usable(found->second))
        return found->second;
    const Candidate* best = nullptr;
    const std::vector<Candidate> candidates = measure();
    for (const Candidate& candidate : candidates)
        if (allowed(candidate) && (best == nullptr || candidate.milliseconds < best->milliseconds))
            best = &candidate;
    if (best == nullptr)
        throw Error("cuDNN has no algorithm for the convolution " + what +
                    (context_.options().deterministic ? " that gives the same bits each time; try "
                                                        "deterministic: false"
                                                      : ""));
    Algorithm algorithm = best->algorithm;
    if (math() == CUDNN_FMA_MATH)
        algorithm.math = CUDNN_FMA_MATH;
    known_[key] = algorithm;
    append_to_file(key, algorithm);
    return algorithm;
}

void Algorithms::read_file() {
    std::ifstream file(path_);
    for (std::string line; std::getline(file, line);) {
        std::istringstream words(line);
        std::string key;
        int number = -1, kind = -1;
        if (words >> key >> number >> kind && number >= 0 && kind >= 0 && kind <= CUDNN_FMA_MATH)
            known_[key] = {number, static_cast<cudnnMathType_t>(kind)};
    }
}

// A line at once, so that processes may do it side by side. Where it cannot be written, the next
// run measures again.
void Algorithms::append_to_file(const std::string& key, const Algorithm& algorithm) const {
    if (path_.empty())
        return;
    std::error_code ignored;
    std::filesystem::create_directories(std::filesystem::path(path_).parent_path(), ignored);
    std::ofstream file(path_, std::ios::app);
    std::ostringstream line;
    line << key << ' ' << algorithm.number << ' ' << static_cast<int>(algorithm.math) << '\n';
    file << line.str() << std::flush;
}

}  // namespace trainer::cuda
