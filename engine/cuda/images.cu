// Images that stay on the device: bytes, augmented and normalised for each step by the same draws
// and the same table as on the processor.
#include "engine/cuda/device.cuh"
#include "engine/cuda/operations.h"

namespace trainer::cuda {

namespace {

struct KeptView {
    const uint8_t* pixels;  // [count][channels][height][width]
    const float* values;    // [channels][256]
    int64_t channels, height, width;
    CropOptions crops;
    uint64_t seed;
};

class KeptImages final : public DeviceImages {
  public:
    KeptImages(Context& context, const ImageSet& set)
        : pixels_(context.allocate(
              static_cast<size_t>(set.count * set.channels * set.height * set.width))),
          values_(context.allocate(set.values.size() * sizeof(float))),
          view{reinterpret_cast<const uint8_t*>(pixels_.data.get()),
               reinterpret_cast<const float*>(values_.data.get()),
               set.channels,
               set.height,
               set.width,
               set.crops,
               set.seed} {
        check(set.values.size() == static_cast<size_t>(set.channels) * 256,
              "a value for each byte of each channel");
        TRAINER_CUDA(cudaMemcpyAsync(pixels_.data.get(), set.pixels, pixels_.bytes,
                                     cudaMemcpyHostToDevice, context.stream()));
        TRAINER_CUDA(cudaMemcpyAsync(values_.data.get(), set.values.data(), values_.bytes,
                                     cudaMemcpyHostToDevice, context.stream()));
        TRAINER_CUDA(cudaStreamSynchronize(context.stream()));
    }

  private:
    Memory pixels_, values_;

  public:
    const KeptView view;
};

// One thread a pixel of all channels. The draws are a few multiplications, cheaper than a look-up.
__global__ void kept_kernel(KeptView set, const int32_t* indices, int64_t epoch, int64_t batch,
                            int64_t samples, float* out) {
    const int64_t area = set.height * set.width;
    for (int64_t i = first_element(); i < samples * area; i += element_stride()) {
        const int64_t sample = i / area, pixel = i % area;
        const int64_t y = pixel / set.width, x = pixel % set.width;
        float* const to = out + sample * set.channels * area + pixel;
        Transform transform;
        const bool there = sample < batch;
        if (there)
            transform = Transform::draw(set.crops, set.height, set.width, set.seed,
                                        static_cast<uint64_t>(epoch),
                                        static_cast<uint64_t>(indices[sample]));
        const bool shows = there && !transform.cuts(y, x);
        const int64_t from = transform.source(y, x, set.height, set.width);
        for (int64_t channel = 0; channel < set.channels; ++channel) {
            float value = 0;
            if (shows) {
                const uint8_t byte =
                    from < 0 ? uint8_t{0}
                             : set.pixels[(indices[sample] * set.channels + channel) * area + from];
                value = set.values[channel * 256 + byte];
            }
            to[channel * area] = value;
        }
    }
}

}  // namespace

std::unique_ptr<DeviceImages> keep_images(Context& context, const ImageSet& set) {
    return std::make_unique<KeptImages>(context, set);
}

void line_up_kept(const DeviceImages& images, const int32_t* indices, int64_t epoch, int64_t batch,
                  int64_t samples, float* out, cudaStream_t stream) {
    const KeptView& view = static_cast<const KeptImages&>(images).view;
    kept_kernel<<<blocks_for(samples * view.height * view.width), threads_a_block, 0, stream>>>(
        view, indices, epoch, batch, samples, out);
    check_launch("batch of kept images");
}

}  // namespace trainer::cuda
