#include "data/photo_source.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "data/image_store.h"
#include "engine/error.h"

namespace trainer {

struct PhotoSource::Workbench {
    Workbench(bool upright, int64_t size, int64_t resize)
        : decoder(upright), transformer(size, resize) {}

    std::vector<std::byte> bytes;
    ImageDecoder decoder;
    PhotoTransformer transformer;
};

/// A workbench for as long as it lives.
class PhotoSource::Lease {
  public:
    explicit Lease(const PhotoSource& source) : source_(source) {
        const std::lock_guard lock(source.mutex_);
        if (!source.idle_.empty()) {
            bench_ = std::move(source.idle_.back());
            source.idle_.pop_back();
        } else {
            const Photos& photos = source.dataset_->photos;
            bench_ = std::make_unique<Workbench>(photos.upright, source.shape_[1], photos.resize);
        }
    }
    ~Lease() {
        const std::lock_guard lock(source_.mutex_);
        source_.idle_.push_back(std::move(bench_));
    }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    Workbench& bench() { return *bench_; }

  private:
    const PhotoSource& source_;
    std::unique_ptr<Workbench> bench_;
};

PhotoSource::PhotoSource(const Dataset& dataset, const PhotoAugmentOptions& augment,
                         const Normalization& normalization, uint64_t seed, bool substitute)
    : dataset_(&dataset),
      shape_{dataset.channels, dataset.height, dataset.width},
      augment_(augment),
      normalizer_(normalization, dataset.channels),
      seed_(seed),
      substitute_(substitute) {
    check(dataset.photos.store && dataset.photos.store->count() == dataset.count &&
              std::ssize(dataset.labels) == dataset.count && dataset.channels == 3 &&
              dataset.height == dataset.width,
          "a data set of photos whose parts fit each other");
    if (dataset.photos.resize < dataset.height)
        throw UsageError("data.resize is " + std::to_string(dataset.photos.resize) +
                         ", less than data.image_size (" + std::to_string(dataset.height) + ")");
    check_photo_augmentation(augment);
}

PhotoSource::~PhotoSource() = default;

void PhotoSource::load(int64_t epoch, int64_t index, float* image, int32_t& label) const {
    Lease lease(*this);
    // So many damaged images in a row are no accident.
    constexpr int64_t most_skipped = 100;
    const int64_t count = dataset_->count;
    for (int64_t skipped = 0;; ++skipped) {
        const int64_t taken = (index + skipped) % count;
        try {
            load_one(lease.bench(), epoch, taken, image);
            label = dataset_->labels[static_cast<size_t>(taken)];
            return;
        } catch (const CorruptImage& error) {
            const std::string what =
                "image " + std::to_string(taken) + " is damaged: " + error.what();
            if (!dataset_->photos.skip_corrupt)
                throw CorruptImage(what + "; data.on_corrupt: skip goes on without it");
            if (!substitute_) {
                note_skipped(taken, what + "; left out");
                label = left_out;
                return;
            }
            note_skipped(taken, what + "; skipped, image " + std::to_string((taken + 1) % count) +
                                    " takes its place");
            if (skipped + 1 >= std::min(most_skipped, count))
                throw CorruptImage(what + "; so are the " + std::to_string(skipped) +
                                   " before it, which are too many to skip");
        }
    }
}

void PhotoSource::load_one(Workbench& bench, int64_t epoch, int64_t index, float* image) const {
    using Clock = std::chrono::steady_clock;
    const auto start = Clock::now();
    const ImageStore& store = *dataset_->photos.store;
    store.read(index, bench.bytes);
    const auto have_bytes = Clock::now();
    ImageDecoder& decoder = bench.decoder;
    try {
        decoder.open(bench.bytes);
        const PhotoTransform transform =
            draw_photo_transform(augment_, decoder.height(), decoder.width(), seed_, epoch, index);
        Image& photo = augment_.crop
                           ? bench.transformer.train(decoder, transform.crop, transform.flip)
                           : bench.transformer.evaluate(decoder, transform.flip);
        jitter_colours(transform, photo);
        normalize_photo(photo, normalizer_, image);
    } catch (const CorruptImage& error) {
        // A name may cost a look at the disk: it is looked up for messages alone.
        throw CorruptImage(store.name(index) + ": " + error.what());
    }
    read_ns_ += (have_bytes - start).count();
    decode_ns_ += (Clock::now() - have_bytes).count();
    ++loaded_;
}

void PhotoSource::note_skipped(int64_t index, const std::string& what) const {
    const std::lock_guard lock(mutex_);
    if (skipped_.insert(index).second)
        notes_.push_back(what);
}

void PhotoSource::read_ahead(std::span<const int32_t> indices) const {
    dataset_->photos.store->read_ahead(indices);
}

SourceTimes PhotoSource::times() const {
    return {1e-9 * static_cast<double>(read_ns_), 1e-9 * static_cast<double>(decode_ns_), loaded_};
}

std::vector<std::string> PhotoSource::take_notes() const {
    const std::lock_guard lock(mutex_);
    return std::exchange(notes_, {});
}

}  // namespace trainer
