// Softmax cross entropy with label smoothing s over K classes (arXiv 1512.00567, section 7):
// loss = -(1 - s) log p[label] - (s / K) sum over k of log p[k], p = softmax(logits), whose
// gradient is p - target, target = (1 - s) [k is label] + s / K. In double, logits are few.
#include "engine/cuda/device.cuh"

namespace trainer::cuda {

namespace {

constexpr int lanes = 32;  // of a warp, which has a sample
constexpr unsigned whole_warp = 0xffffffffU;

// Of all lanes' values, the same in each: butterflies.
__device__ double warp_sum(double value) {
    for (int apart = lanes / 2; apart > 0; apart /= 2)
        value += __shfl_xor_sync(whole_warp, value, apart);
    return value;
}
__device__ double warp_max(double value) {
    for (int apart = lanes / 2; apart > 0; apart /= 2)
        value = fmax(value, __shfl_xor_sync(whole_warp, value, apart));
    return value;
}

struct LossArguments {
    const float* logits;
    float* gradient;  // nullptr for evaluation
    int64_t samples, classes;
    const int32_t* labels;
    double smoothing;
    const StepConstants* constants;
    double* sample_losses;
    uint8_t* sample_hits;  // bit 0: the largest logit, bit 1: among the five largest
};

// A sample behind the batch, padding, counts nothing and has a zero gradient.
__device__ void skip_sample(const LossArguments& a, int64_t sample, int lane) {
    if (lane == 0) {
        a.sample_losses[sample] = 0;
        a.sample_hits[sample] = 0;
    }
    for (int64_t k = lane; a.gradient != nullptr && k < a.classes; k += lanes)
        a.gradient[sample * a.classes + k] = 0;
}

__device__ void take_sample(const LossArguments& a, int64_t sample, int lane) {
    const float* const z = a.logits + sample * a.classes;
    const int32_t label = a.labels[sample];
    const float own = z[label];
    double largest = -INFINITY;
    for (int64_t k = lane; k < a.classes; k += lanes)
        largest = fmax(largest, static_cast<double>(z[k]));
    largest = warp_max(largest);

    double exponentials = 0, sum = 0, above = 0, wrong = 0;
    for (int64_t k = lane; k < a.classes; k += lanes) {
        exponentials += exp(static_cast<double>(z[k]) - largest);
        sum += static_cast<double>(z[k]);
        // Of equal logits the lower class goes first.
        above += z[k] > own || (z[k] == own && k < label) ? 1 : 0;
        wrong += z[k] != z[k] ? 1 : 0;
    }
    const double log_sum = largest + log(warp_sum(exponentials));
    sum = warp_sum(sum);
    above = warp_sum(above);
    wrong = warp_sum(wrong);

    const auto classes = static_cast<double>(a.classes);
    if (lane == 0) {
        const double exact = log_sum - static_cast<double>(own);
        const double mean = log_sum - sum / classes;  // of -log p[k] over all classes
        a.sample_losses[sample] =
            a.smoothing == 0 ? exact : (1 - a.smoothing) * exact + a.smoothing * mean;
        a.sample_hits[sample] =
            static_cast<uint8_t>(wrong > 0 ? 0 : (above < 1 ? 1 : 0) + (above < 5 ? 2 : 0));
    }
    if (a.gradient == nullptr)
        return;
    const auto mean_over = static_cast<double>(a.constants->mean_over);
    for (int64_t k = lane; k < a.classes; k += lanes) {
        const double target = (k == label ? 1 - a.smoothing : 0) + a.smoothing / classes;
        const double p = exp(static_cast<double>(z[k]) - log_sum);
        a.gradient[sample * a.classes + k] = static_cast<float>((p - target) / mean_over);
    }
}

__global__ void loss_kernel(LossArguments a) {
    const int lane = static_cast<int>(threadIdx.x) % lanes;
    for (int64_t sample = first_element() / lanes; sample < a.samples;
         sample += element_stride() / lanes) {
        if (sample < a.constants->batch)
            take_sample(a, sample, lane);
        else
            skip_sample(a, sample, lane);
    }
}

// One block: the sums in an order that the number of samples alone decides.
__global__ void loss_sum_kernel(LossArguments a, LossSums* result) {
    __shared__ double losses[threads_a_block];
    __shared__ int64_t top1[threads_a_block], top5[threads_a_block];
    const unsigned me = threadIdx.x;
    losses[me] = 0;
    top1[me] = top5[me] = 0;
    for (int64_t i = me; i < a.samples; i += threads_a_block) {
        losses[me] += a.sample_losses[i];
        top1[me] += a.sample_hits[i] & 1;
        top5[me] += a.sample_hits[i] >> 1;
    }
    for (unsigned half = threads_a_block / 2; half > 0; half /= 2) {
        __syncthreads();
        if (me < half) {
            losses[me] += losses[me + half];
            top1[me] += top1[me + half];
            top5[me] += top5[me + half];
        }
    }
    if (me == 0) {
        result->loss = losses[0];
        result->top1 = top1[0];
        result->top5 = top5[0];
        result->samples = a.constants->batch;
    }
}

}  // namespace

void line_up_loss(const float* logits, float* gradient, int64_t samples, int64_t classes,
                  const int32_t* labels, double smoothing, const StepConstants* constants,
                  double* sample_losses, uint8_t* sample_hits, LossSums* sums,
                  cudaStream_t stream) {
    const LossArguments arguments{logits,    gradient,  samples,       classes,    labels,
                                  smoothing, constants, sample_losses, sample_hits};
    loss_kernel<<<blocks_for(samples * lanes), threads_a_block, 0, stream>>>(arguments);
    check_launch("loss");
    loss_sum_kernel<<<1, threads_a_block, 0, stream>>>(arguments, sums);
    check_launch("sum of losses");
}

}  // namespace trainer::cuda
