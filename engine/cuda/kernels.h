// The kernels of the CUDA engine as its operations see them: one launcher a kernel, each lining its
// work up in a stream. Files *.cu define them; nothing here needs nvcc.
//
// Activations lie as [sample][row][column][channel], channels padded with zeros to whole vectors of
// 16 bytes; features as plain rows. A `Rows` is such memory as a matrix: a row a pixel of a sample.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/backend.h"
#include "engine/device_exchange.h"
#include "engine/host_device.h"

namespace trainer::cuda {

/// Element of an activation in device code: float, or bf16 as its bits.
struct Bf16 {
    uint16_t bits;
};

/// What a step's kernels read from the device's memory, since a recorded graph holds its arguments
/// for good.
struct StepConstants {
    const float* images;  ///< [batch, channels, height, width], on the device
    uint64_t seed;
    int64_t step;
    int64_t first_sample;
    int64_t batch;
    int64_t mean_over;
};

/// A tensor of an activation, or its gradient, in the device's memory.
struct Tensor {
    void* data = nullptr;
    DType type = DType::f32;  ///< f32 or bf16
    int64_t samples = 0;
    int64_t height = 1, width = 1;
    int64_t channels = 0;  ///< that count
    int64_t stored = 0;    ///< with the padding

    TRAINER_HOST_DEVICE int64_t rows() const { return samples * height * width; }
    TRAINER_HOST_DEVICE int64_t elements() const { return rows() * stored; }
};

// --- elementwise.cu

/// The step's images to `out`, zero in the padding.
void line_up_input(const StepConstants* constants, const Tensor& out, cudaStream_t stream);
/// y = max(x, 0), a NaN stays one.
void line_up_relu(const Tensor& x, const Tensor& y, cudaStream_t stream);
/// dx = dy where y > 0 or is NaN, else 0.
void line_up_relu_gradient(const Tensor& y, const Tensor& dy, const Tensor& dx,
                           cudaStream_t stream);
/// Every stride-th row and column of x; zero in the channels that y has more.
void line_up_shortcut(const Tensor& x, const Tensor& y, int64_t stride, cudaStream_t stream);
void line_up_shortcut_gradient(const Tensor& dy, const Tensor& dx, int64_t stride,
                               cudaStream_t stream);
/// to = from where the mask keeps an element, times 1 / (1 - drop); else 0. Forward and backward.
void line_up_dropout(const Tensor& from, const Tensor& to, const StepConstants* constants,
                     uint64_t node, double drop, cudaStream_t stream);
/// target += source.
void line_up_add(const Tensor& source, const Tensor& target, cudaStream_t stream);
/// float rows to bf16 ones.
void line_up_narrow(const float* from, Bf16* to, int64_t count, cudaStream_t stream);
/// y += bias of each channel, [channels].
void line_up_bias(const Tensor& y, const float* bias, cudaStream_t stream);

// --- packing.cu: parameters between PyTorch's form in the slab and the libraries'

/// A filter [outputs][inputs][area] in the slab, and [stored_outputs][area][stored_inputs] packed,
/// the padding zero.
struct FilterForm {
    int64_t outputs = 0, inputs = 0, area = 0;
    int64_t stored_outputs = 0, stored_inputs = 0;

    TRAINER_HOST_DEVICE int64_t packed_elements() const {
        return stored_outputs * area * stored_inputs;
    }
};
void line_up_pack(const FilterForm& form, const float* slab, void* packed, DType type,
                  cudaStream_t stream);
/// The gradient back: the padding is dropped.
void line_up_unpack(const FilterForm& form, const void* packed, DType type, float* slab,
                    cudaStream_t stream);

// --- channel_sums.cu: sums over the rows of a tensor, a channel each

/// Device memory for such sums, shared by the operations of one stream.
struct SumSpace {
    float* partial = nullptr;     ///< sum_space_floats() floats
    unsigned* arrived = nullptr;  ///< sum_space_counters() counters, zero between launches
};
/// What sums over any tensor of so many stored channels take.
int64_t sum_space_floats(int64_t stored_channels);
int64_t sum_space_counters(int64_t stored_channels);
inline constexpr int64_t most_summed_channels = int64_t{1} << 30;  // kernels count them in ints

/// sums[c] = sum over rows of t's channel c: the gradient of a bias.
void line_up_channel_sums(const Tensor& t, float* sums, const SumSpace& space, cudaStream_t stream);

// --- batch_norm.cu

/// Coefficients of one batch norm, arrays of its stored channels in one piece of device memory.
struct NormState {
    float *center, *scale, *shift, *inverse_std;  ///< y = (x - center) scale + shift
    float *dx_scale, *dx_slope, *dx_offset;       ///< dx = dx_scale g - (x - center) slope - offset
    static constexpr int64_t arrays = 7;
};
struct NormParameters {
    const float *gamma = nullptr, *beta = nullptr;  ///< [channels], of the slab
    float *running_mean = nullptr, *running_var = nullptr;
    double epsilon = 0, momentum = 0;
};
/// What a ReLU's gradient is masked by.
enum class Mask { none, input, output };

/// Statistics of the batch into `state`, and the running ones.
void line_up_norm_statistics(const Tensor& x, const NormParameters& parameters,
                             const NormState& state, const SumSpace& space, cudaStream_t stream);
/// Coefficients from the running statistics.
void line_up_norm_inference(int64_t channels, int64_t stored, const NormParameters& parameters,
                            const NormState& state, cudaStream_t stream);
/// y = relu?((x - center) scale + shift + residual?).
void line_up_norm_output(const Tensor& x, const Tensor* residual, const Tensor& y, bool relu,
                         const NormState& state, cudaStream_t stream);

/// The gradients that a batch norm adds up.
struct Gradients {
    static constexpr int most = 8;
    const void* data[most] = {};
    int count = 0;
};
/// Sums for the parameters' gradients and dx; leaves the masked sum of the gradients in `masked`
/// where it is there.
void line_up_norm_gradient_sums(const Tensor& x, const Tensor& y, const Gradients& gradients,
                                Mask mask, const Tensor* masked, const NormParameters& parameters,
                                const NormState& state, float* dgamma, float* dbeta,
                                const SumSpace& space, cudaStream_t stream);
/// dx, from the gradients again, or from `masked` where it is there.
void line_up_norm_input_gradient(const Tensor& x, const Gradients& gradients, Mask mask,
                                 const Tensor& y, const Tensor* masked, const Tensor& dx,
                                 const NormState& state, cudaStream_t stream);

/// Of a batch that several devices share: what each knows of its part.
struct NormParts {
    static constexpr int most = 16;  ///< devices
    double* sums = nullptr;          ///< [ranks][2][stored], this device's at its rank
    int rank = 0, ranks = 1;
    double counts[most] = {};  ///< values a channel, by rank
};
/// Means and squared deviations of this device's part of the batch into `parts`; then, of all
/// devices' parts, what line_up_norm_statistics() does.
void line_up_norm_part(const Tensor& x, const NormParts& parts, const SumSpace& space,
                       cudaStream_t stream);
void line_up_norm_statistics_of_parts(int64_t channels, int64_t stored, const NormParts& parts,
                                      const NormParameters& parameters, const NormState& state,
                                      cudaStream_t stream);
/// As line_up_norm_gradient_sums(), of this device's part of the batch, but for dx: its sums go
/// into `parts`; then, of all devices' parts, what dx takes.
void line_up_norm_gradient_part(const Tensor& x, const Tensor& y, const Gradients& gradients,
                                Mask mask, const Tensor* masked, const NormState& state,
                                float* dgamma, float* dbeta, const NormParts& parts,
                                const SumSpace& space, cudaStream_t stream);
void line_up_norm_gradient_of_parts(int64_t channels, int64_t stored, const NormParts& parts,
                                    const NormParameters& parameters, const NormState& state,
                                    cudaStream_t stream);

// --- slab_math.cu

/// sums[i] = parts[i] + parts[stride + i] + ... of all ranks, in that order.
void line_up_sum_of_parts(const float* parts, int64_t stride, int ranks, float* sums, int64_t count,
                          cudaStream_t stream);

// --- pooling.cu

struct Window {
    int64_t kernel = 1, stride = 1, padding = 0;
};
/// Padding never wins; of equal values the first in row order; a NaN wins. `winners`, where it is
/// there, gets for each element of y which of its window it is.
void line_up_max_pool(const Tensor& x, const Tensor& y, const Window& window, uint8_t* winners,
                      cudaStream_t stream);
void line_up_max_pool_gradient(const Tensor& dy, const uint8_t* winners, const Tensor& dx,
                               const Window& window, cudaStream_t stream);
/// Means over planes, to rows of `channels`.
void line_up_average_pool(const Tensor& x, const Tensor& y, cudaStream_t stream);
void line_up_average_pool_gradient(const Tensor& dy, const Tensor& dx, cudaStream_t stream);

// --- codes.cu

/// Neighbouring elements of a segment whose codes a block makes.
struct CodeRun {
    static constexpr int64_t most = 2048;  ///< as ErrorFeedback measures them
    int64_t first;                         ///< in slabs
    int64_t codes_at;                      ///< in the outbox
    int32_t count;
    int32_t scale;   ///< index of its scale
    int32_t begins;  ///< 1: the scale stands before its codes
};
/// A tensor whose threshold is measured: its runs, all of CodeRun::most but for the last.
struct MeasuredTensor {
    int64_t first;  ///< in slabs
    int64_t size;
    int64_t first_run;  ///< of all that are measured
    int64_t scale;
};

/// e + g of each run: the runs' shares of the thresholds, then the thresholds.
void line_up_thresholds(const MeasuredTensor* tensors, int64_t count, int64_t runs,
                        const float* gradients, const float* residual, double* shares,
                        float* scales, cudaStream_t stream);
/// e <- e + g; codes; e <- e - what they say. `residual` may be nullptr for floats.
void line_up_codes(DeviceCode code, const CodeRun* runs, int64_t count, const float* gradients,
                   float* residual, const float* scales, std::byte* outbox, cudaStream_t stream);

// --- loss.cu

/// Cross entropy over [samples][classes] float logits, of the constants' `batch` first samples;
/// zero gradients for the others. `sample_losses` and `sample_hits` have an element a sample.
/// Leaves the sums in `sums`, which may be the host's.
void line_up_loss(const float* logits, float* gradient, int64_t samples, int64_t classes,
                  const int32_t* labels, double smoothing, const StepConstants* constants,
                  double* sample_losses, uint8_t* sample_hits, LossSums* sums, cudaStream_t stream);

}  // namespace trainer::cuda
