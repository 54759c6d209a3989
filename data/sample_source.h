// SampleSource: where a loader's threads get one sample from, ready for the network.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/augment.h"
#include "data/dataset.h"
#include "data/normalization.h"
#include "engine/backend.h"

namespace trainer {

/// Time that the threads of a source have spent, over all samples so far.
struct SourceTimes {
    double read_s = 0, decode_s = 0;
    int64_t samples = 0;
};

/// Samples that are pure functions of (epoch, index). Called by several threads at once.
class SampleSource {
  public:
    virtual ~SampleSource() = default;

    virtual int64_t count() const = 0;       ///< samples
    virtual const Shape& shape() const = 0;  ///< of one: [channels, height, width]

    /// The label of a sample that there is no image of.
    static constexpr int32_t left_out = -1;

    /// Writes sample `index` as epoch `epoch` sees it: the image, normalised, to `image`, float
    /// [channels, height, width], its class, or left_out, to `label`. May throw Error; the loader's
    /// next() then throws it.
    virtual void load(int64_t epoch, int64_t index, float* image, int32_t& label) const = 0;

    /// Whether read_ahead() does anything.
    virtual bool reads_ahead() const { return false; }
    /// Hears which samples will be loaded soon, ascending.
    virtual void read_ahead(std::span<const int32_t>) const {}

    virtual SourceTimes times() const { return {}; }
    /// What a user should be told: lines that were not taken yet.
    virtual std::vector<std::string> take_notes() const { return {}; }
};

/// The samples of a Dataset, augmented and normalised.
class DatasetSource : public SampleSource {
  public:
    /// `dataset` outlives the source; its pixels and labels are not copied. `seed` decides the
    /// augmentation. Throws UsageError where the options do not fit the images.
    DatasetSource(const Dataset& dataset, const CropOptions& crops,
                  const Normalization& normalization, uint64_t seed);

    int64_t count() const override { return dataset_->count; }
    const Shape& shape() const override { return shape_; }
    void load(int64_t epoch, int64_t index, float* image, int32_t& label) const override;

  private:
    const Dataset* dataset_;
    Shape shape_;
    CropOptions crops_;
    Normalizer normalizer_;
    uint64_t seed_;
};

/// The labels of a Dataset, whose images are on a device already.
class LabelSource : public SampleSource {
  public:
    /// `dataset` outlives the source.
    explicit LabelSource(const Dataset& dataset) : dataset_(&dataset) {}

    int64_t count() const override { return dataset_->count; }
    const Shape& shape() const override { return shape_; }
    void load(int64_t, int64_t index, float*, int32_t& label) const override {
        label = dataset_->labels[static_cast<size_t>(index)];
    }

  private:
    const Dataset* dataset_;
    Shape shape_{0};
};

/// What a device that keeps the images of `dataset` makes batches as a DatasetSource does with.
/// Points into the data set. Throws as DatasetSource.
ImageSet kept_set(const Dataset& dataset, const CropOptions& crops,
                  const Normalization& normalization, uint64_t seed);

}  // namespace trainer
