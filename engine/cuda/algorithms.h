// Algorithms: which of cuDNN's algorithms is fastest for a convolution, measured once a shape, GPU
// and version of cuDNN, and kept in a file: $XDG_CACHE_HOME/trainer/cudnn.txt (~/.cache/...).
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "engine/cuda/check.h"

namespace trainer::cuda {

class Context;

/// One of cuDNN's algorithms of a pass, by its number there.
struct Algorithm {
    int number = -1;
    cudnnMathType_t math = CUDNN_DEFAULT_MATH;
};

/// What a measurement says of one.
struct Candidate {
    Algorithm algorithm;
    bool works = false;
    bool deterministic = false;
    float milliseconds = 0;
    size_t workspace = 0;  ///< bytes
};

class Algorithms {
  public:
    explicit Algorithms(const Context& context);

    /// The algorithm of `what`, a pass with its shape and types, in one word. `usable` says
    /// whether one works on the shape, `measure` tries them all. The fastest that the
    /// context's options allow. Throws Error where there is none.
    Algorithm find(const std::string& what, const std::function<bool(const Algorithm&)>& usable,
                   const std::function<std::vector<Candidate>()>& measure);

    /// The math type that convolutions ask for.
    cudnnMathType_t math() const;

  private:
    bool allowed(const Candidate& candidate) const;
    /// Those allowed, with the math that they are to have, the best first: the fastest.
    std::vector<Algorithm> by_time(std::vector<Candidate> candidates) const;
    void read_file();
    void append_to_file(const std::string& key, const Algorithm& algorithm) const;

    const Context& context_;
    std::string suffix_;  // of keys: GPU, version and options
    std::string path_;
    bool keeps_ = false;  // whether the file can be written
    std::map<std::string, Algorithm> known_;
};

}  // namespace trainer::cuda
