#include "data/sample_source.h"

#include "engine/error.h"

namespace trainer {

DatasetSource::DatasetSource(const Dataset& dataset, const CropOptions& crops,
                             const Normalization& normalization, uint64_t seed)
    : dataset_(&dataset),
      shape_{dataset.channels, dataset.height, dataset.width},
      crops_(crops),
      normalizer_(normalization, dataset.channels),
      seed_(seed) {
    check(std::ssize(dataset.labels) == dataset.count &&
              dataset.pixels.bytes >= static_cast<size_t>(dataset.count * dataset.image_bytes()),
          "a data set whose parts do not fit each other");
    check_crops(crops, dataset.height, dataset.width);
}

void DatasetSource::load(int64_t epoch, int64_t index, float* image, int32_t& label) const {
    const Dataset& data = *dataset_;
    const Transform transform =
        Transform::draw(crops_, data.height, data.width, seed_, static_cast<uint64_t>(epoch),
                        static_cast<uint64_t>(index));
    apply_transform(transform, normalizer_, data.image(index), data.channels, data.height,
                    data.width, image);
    label = data.labels[static_cast<size_t>(index)];
}

ImageSet kept_set(const Dataset& dataset, const CropOptions& crops,
                  const Normalization& normalization, uint64_t seed) {
    check_crops(crops, dataset.height, dataset.width);
    const Normalizer normalizer(normalization, dataset.channels);
    ImageSet set{.pixels = dataset.image(0),
                 .count = dataset.count,
                 .channels = dataset.channels,
                 .height = dataset.height,
                 .width = dataset.width,
                 .values = {},
                 .crops = crops,
                 .seed = seed};
    for (int64_t channel = 0; channel < dataset.channels; ++channel)
        set.values.insert(set.values.end(), normalizer.table(channel),
                          normalizer.table(channel) + 256);
    return set;
}

}  // namespace trainer
