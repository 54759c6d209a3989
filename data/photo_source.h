// PhotoSource: samples out of image files, read, decoded and transformed as they are asked for.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "data/photo_transform.h"
#include "data/sample_source.h"

namespace trainer {

class PhotoSource : public SampleSource {
  public:
    /// `dataset`, whose images are photos, outlives the source. `seed` decides the augmentation;
    /// by default there is none, as in evaluation. `substitute`: LoaderOptions'. Throws UsageError
    /// where the options do not fit.
    PhotoSource(const Dataset& dataset, const PhotoAugmentOptions& augment,
                const Normalization& normalization, uint64_t seed, bool substitute = true);
    ~PhotoSource() override;

    int64_t count() const override { return dataset_->count; }
    const Shape& shape() const override { return shape_; }

    /// Where image `index` is damaged, throws CorruptImage. With photos.skip_corrupt notes so and
    /// takes the next image that is not, in the data set's order, with that one's own label;
    /// without `substitute` leaves it out.
    void load(int64_t epoch, int64_t index, float* image, int32_t& label) const override;

    bool reads_ahead() const override { return true; }
    void read_ahead(std::span<const int32_t> indices) const override;
    SourceTimes times() const override;
    std::vector<std::string> take_notes() const override;

  private:
    /// What a thread works with.
    struct Workbench;
    class Lease;

    void load_one(Workbench& bench, int64_t epoch, int64_t index, float* image) const;
    void note_skipped(int64_t index, const std::string& what) const;

    const Dataset* dataset_;
    Shape shape_;
    PhotoAugmentOptions augment_;
    Normalizer normalizer_;
    uint64_t seed_;
    bool substitute_;

    mutable std::atomic<int64_t> read_ns_ = 0, decode_ns_ = 0, loaded_ = 0;
    mutable std::mutex mutex_;
    // Guarded by mutex_.
    mutable std::vector<std::unique_ptr<Workbench>> idle_;
    mutable std::set<int64_t> skipped_;
    mutable std::vector<std::string> notes_;
};

}  // namespace trainer
