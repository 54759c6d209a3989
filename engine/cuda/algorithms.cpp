#include "engine/cuda/algorithms.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

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
    std::error_code ignored;
    if (!path_.empty())
        std::filesystem::create_directories(std::filesystem::path(path_).parent_path(), ignored);
    keeps_ = !path_.empty() && std::ofstream(path_, std::ios::app).good();
    read_file();
}

cudnnMathType_t Algorithms::math() const {
    if (context_.options().precision == Precision::bf16)
        return CUDNN_TENSOR_OP_MATH;
    // The default allows TF32.
    return context_.options().tf32 ? CUDNN_DEFAULT_MATH : CUDNN_FMA_MATH;
}

bool Algorithms::allowed(const Candidate& candidate) const {
    return candidate.works && candidate.workspace <= context_.workspace_bytes() &&
           (candidate.deterministic || !context_.options().deterministic);
}

// cuDNN tries its default, which is TF32, beside what it is asked for. Where that is not wanted,
// what has been measured without it counts first, then what works without it as well.
std::vector<Algorithm> Algorithms::by_time(std::vector<Candidate> candidates) const {
    std::erase_if(candidates, [this](const Candidate& one) { return !allowed(one); });
    const auto other_math = [this](const Candidate& one) {
        return math() == CUDNN_FMA_MATH && one.algorithm.math != CUDNN_FMA_MATH;
    };
    // Times differ from run to run: where none can be kept, the same bits each time need a rule. In
    // every pass number 1 is the general algorithm that reads tensors as they lie.
    const auto rank = [this](const Candidate& one) {
        const bool by_rule = context_.options().deterministic && !keeps_;
        return by_rule ? static_cast<float>(std::abs(one.algorithm.number - 1)) : one.milliseconds;
    };
    std::stable_sort(
        candidates.begin(), candidates.end(), [&](const Candidate& one, const Candidate& two) {
            return std::pair(other_math(one), rank(one)) < std::pair(other_math(two), rank(two));
        });
    std::vector<Algorithm> result;
    for (const Candidate& one : candidates)
        result.push_back(
            {one.algorithm.number, math() == CUDNN_FMA_MATH ? math() : one.algorithm.math});
    return result;
}

Algorithm Algorithms::find(const std::string& what,
                           const std::function<bool(const Algorithm&)>& usable,
                           const std::function<std::vector<Candidate>()>& measure) {
    const std::string key = what + suffix_;
    const auto is_known = [&] {
        const auto found = known_.find(key);
        return found != known_.end() && usable(found->second);
    };
    if (is_known())
        return known_[key];
    const std::vector<Algorithm> algorithms = by_time(measure());
    read_file();  // another process may have been faster: all take the first that was kept
    if (is_known())
        return known_[key];
    const auto best = std::find_if(algorithms.begin(), algorithms.end(), usable);
    if (best == algorithms.end())
        throw Error("cuDNN has no algorithm for the convolution " + what +
                    (context_.options().deterministic ? " that gives the same bits each time; try "
                                                        "deterministic: false"
                                                      : ""));
    known_[key] = *best;
    append_to_file(key, *best);
    return *best;
}

void Algorithms::read_file() {
    std::ifstream file(path_);
    for (std::string line; std::getline(file, line);) {
        std::istringstream words(line);
        std::string key;
        int number = -1, kind = -1;
        if (words >> key >> number >> kind && number >= 0 && kind >= 0 && kind <= CUDNN_FMA_MATH)
            known_.try_emplace(key, Algorithm{number, static_cast<cudnnMathType_t>(kind)});
    }
}

// A line at once, so that processes may do it side by side.
void Algorithms::append_to_file(const std::string& key, const Algorithm& algorithm) const {
    if (!keeps_)
        return;
    std::ofstream file(path_, std::ios::app);
    std::ostringstream line;
    line << key << ' ' << algorithm.number << ' ' << static_cast<int>(algorithm.math) << '\n';
    file << line.str() << std::flush;
}

}  // namespace trainer::cuda
