// Normalisation: (value / 255 - mean) / std a channel, through a table of all 256 values.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace trainer {

/// Mean and standard deviation a channel, of pixels in [0, 1].
struct Normalization {
    std::vector<double> mean, std;
};

/// What `data.mean: auto` and `data.std: auto` stand for: the training set's own, rounded as they
/// are commonly given, for 3 channels. For imagenet and folder ImageNet's; for synthetic 0.5 and
/// 0.25. Throws UsageError for a name that is not known.
Normalization default_normalization(std::string_view dataset);

/// The table of one normalisation.
class Normalizer {
  public:
    /// Throws UsageError where mean or std have not `channels` values, or a std is not positive.
    Normalizer(const Normalization& normalization, int64_t channels);

    /// The normalised value of each byte, float [256].
    const float* table(int64_t channel) const {
        return tables_[static_cast<size_t>(channel)].data();
    }

    /// What a byte is multiplied with, and what is added then, which gives the same value within
    /// rounding: for many bytes at once.
    struct Line {
        float scale, shift;
    };
    const Line& line(int64_t channel) const { return lines_[static_cast<size_t>(channel)]; }

  private:
    std::vector<std::array<float, 256>> tables_;
    std::vector<Line> lines_;
};

}  // namespace trainer
