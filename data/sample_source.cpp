#include "data/sample_source.h"

#include "engine/error.h"

namespace trainer {

DatasetSource::DatasetSource(const Dataset& dataset, const AugmentOptions& augment,
                             const Normalization& normalization, uint64_t seed)
    : dataset_(&dataset),
      shape_{dataset.channels, dataset.height, dataset.width},
      augment_(augment),
      normalizer_(normalization, dataset.channels),
      seed_(seed) {
    check(std::ssize(dataset.labels) == dataset.count &&
              dataset.pixels.bytes >= static_cast<size_t>(dataset.count * dataset.image_bytes()),
          "a data set whose parts do not fit each other");
    check_augmentation(augment, dataset.height, dataset.width);
}

void DatasetSource::load(int64_t epoch, int64_t index, float* image, int32_t& label) const {
    const Dataset& data = *dataset_;
    const Transform transform =
        draw_transform(augment_, data.height, data.width, seed_, epoch, index);
    apply_transform(transform, normalizer_, data.image(index), data.channels, data.height,
                    data.width, image);
    label = data.labels[static_cast<size_t>(index)];
}

ImageSet kept_set(const Dataset& dataset, const AugmentOptions& augment,
                  const Normalization& normalization, uint64_t seed) {
    check_augmentation(augment, dataset.height, dataset.width);
    const Normalizer normalizer(normalization, dataset.channels);
    ImageSet set{.pixels = dataset.image(0),
                 .count = dataset.count,
                 .channels = dataset.channels,
                 .height = dataset.height,
                 .width = dataset.width,
                 .values = {},
                 .crops = augment.crops(),
                 .seed = seed};
    for (int64_t channel = 0; channel < dataset.channels; ++channel)
        set.values.insert(set.values.end(), normalizer.table(channel),
                          normalizer.table(channel) + 256);
    return set;
}

}  // namespace trainer
