// Codes of gradients with error feedback: the arithmetic of optim/codec*.cpp, in its order.
#include <cuda_fp16.h>

#include "engine/cuda/device.cuh"
#include "engine/elementwise.h"

namespace trainer::cuda {

namespace {

constexpr int sums_side_by_side = 16, values_a_sum_block = 512;  // as the processor sums sizes
constexpr int threads_a_run = CodeRun::most / values_a_sum_block * sums_side_by_side;
constexpr int values_a_word = 16;
constexpr double two_bit_auto_factor = 2;

// A block a run: sizes of 512 values in 16 sums, those one after the other; then the rest one by
// one; as a share of the tensor's mean.
__global__ void measure_kernel(const MeasuredTensor* tensors, int64_t count, const float* gradients,
                               const float* residual, double* shares) {
    __shared__ float sums[threads_a_run];
    const auto run = static_cast<int64_t>(blockIdx.x);
    int64_t which = 0, behind = count;  // the last tensor whose first run is no later
    while (behind - which > 1) {
        const int64_t middle = (which + behind) / 2;
        if (tensors[middle].first_run <= run)
            which = middle;
        else
            behind = middle;
    }
    const MeasuredTensor tensor = tensors[which];
    const int64_t first = (run - tensor.first_run) * CodeRun::most;
    const int64_t left = tensor.size - first;
    const int64_t values = left < CodeRun::most ? left : CodeRun::most;
    const float* const g = gradients + tensor.first + first;
    const float* const e = residual + tensor.first + first;

    const int me = static_cast<int>(threadIdx.x);
    const int64_t block = me / sums_side_by_side * values_a_sum_block;
    float sum = 0;
    if (block + values_a_sum_block <= values)
        for (int64_t i = block + me % sums_side_by_side; i < block + values_a_sum_block;
             i += sums_side_by_side)
            sum += fabsf(e[i] + g[i]);
    sums[me] = sum;
    __syncthreads();
    if (me != 0)
        return;
    const int64_t blocks = values / values_a_sum_block;
    double total = 0;
    for (int64_t b = 0; b < blocks; ++b) {
        float of_block = 0;
        for (int j = 0; j < sums_side_by_side; ++j)
            of_block += sums[b * sums_side_by_side + j];
        total += static_cast<double>(of_block);
    }
    for (int64_t i = blocks * values_a_sum_block; i < values; ++i)
        total += fabs(static_cast<double>(e[i] + g[i]));
    const auto size = static_cast<double>(values);
    const auto threshold = static_cast<float>(two_bit_auto_factor * total / size);
    shares[run] = static_cast<double>(threshold) * size;
}

__global__ void threshold_kernel(const MeasuredTensor* tensors, int64_t count, const double* shares,
                                 float* scales) {
    for (int64_t i = first_element(); i < count; i += element_stride()) {
        const MeasuredTensor tensor = tensors[i];
        const int64_t runs = (tensor.size + CodeRun::most - 1) / CodeRun::most;
        double total = 0;
        for (int64_t run = 0; run < runs; ++run)
            total += shares[tensor.first_run + run];
        scales[tensor.scale] = static_cast<float>(total / static_cast<double>(tensor.size));
    }
}

// A thread a word of 16 values.
__global__ void two_bit_kernel(const CodeRun* runs, const float* gradients, float* residual,
                               const float* scales, std::byte* outbox) {
    const CodeRun run = runs[blockIdx.x];
    const float threshold = scales[run.scale];
    const TwoBitCode code{threshold};
    const bool reachable = threshold > 0;  // a tensor of zeros measures a threshold of 0
    auto* const words = reinterpret_cast<uint32_t*>(outbox + run.codes_at);
    if (run.begins != 0 && threadIdx.x == 0)
        reinterpret_cast<float*>(words)[-1] = threshold;
    for (int first = static_cast<int>(threadIdx.x) * values_a_word; first < run.count;
         first += static_cast<int>(blockDim.x) * values_a_word) {
        uint32_t word = 0;
        for (int j = 0; j < values_a_word && first + j < run.count; ++j) {
            const int64_t i = run.first + first + j;
            const float value = residual[i] + gradients[i];
            const uint32_t bits = reachable ? code.encode(value) : 0;
            residual[i] = bits != 0 ? code.rest(value, bits) : value;
            word |= bits << (2 * j);
        }
        words[first / values_a_word] = word;
    }
}

struct HalfCode {
    __device__ static uint16_t narrow(float value) {
        return __half_as_ushort(__float2half_rn(value));
    }
    __device__ static float widen(uint16_t code) { return __half2float(__ushort_as_half(code)); }
};
struct BrainCode {
    __device__ static uint16_t narrow(float value) { return bf16_of(value); }
    __device__ static float widen(uint16_t code) { return float_of_bf16(code); }
};

template <typename Code>
__global__ void sixteen_bit_kernel(const CodeRun* runs, const float* gradients, float* residual,
                                   std::byte* outbox) {
    const CodeRun run = runs[blockIdx.x];
    auto* const codes = reinterpret_cast<uint16_t*>(outbox + run.codes_at);
    for (int at = static_cast<int>(threadIdx.x); at < run.count;
         at += static_cast<int>(blockDim.x)) {
        const int64_t i = run.first + at;
        const float value = residual[i] + gradients[i];
        codes[at] = Code::narrow(value);
        residual[i] = value - Code::widen(codes[at]);
    }
}

__global__ void floats_kernel(const CodeRun* runs, const float* gradients, float* residual,
                              std::byte* outbox) {
    const CodeRun run = runs[blockIdx.x];
    auto* const values = reinterpret_cast<float*>(outbox + run.codes_at);
    for (int at = static_cast<int>(threadIdx.x); at < run.count;
         at += static_cast<int>(blockDim.x)) {
        const int64_t i = run.first + at;
        values[at] = residual != nullptr ? gradients[i] + residual[i] : gradients[i];
        if (residual != nullptr)
            residual[i] = 0;
    }
}

}  // namespace

void line_up_thresholds(const MeasuredTensor* tensors, int64_t count, int64_t runs,
                        const float* gradients, const float* residual, double* shares,
                        float* scales, cudaStream_t stream) {
    measure_kernel<<<static_cast<unsigned>(runs), threads_a_run, 0, stream>>>(
        tensors, count, gradients, residual, shares);
    check_launch("sizes of gradients");
    threshold_kernel<<<blocks_for(count), threads_a_block, 0, stream>>>(tensors, count, shares,
                                                                        scales);
    check_launch("thresholds");
}

void line_up_codes(DeviceCode code, const CodeRun* runs, int64_t count, const float* gradients,
                   float* residual, const float* scales, std::byte* outbox, cudaStream_t stream) {
    const auto blocks = static_cast<unsigned>(count);
    constexpr int words = CodeRun::most / values_a_word;
    switch (code) {
        case DeviceCode::floats:
            floats_kernel<<<blocks, threads_a_block, 0, stream>>>(runs, gradients, residual,
                                                                  outbox);
            break;
        case DeviceCode::fp16:
            sixteen_bit_kernel<HalfCode>
                <<<blocks, threads_a_block, 0, stream>>>(runs, gradients, residual, outbox);
            break;
        case DeviceCode::bf16:
            sixteen_bit_kernel<BrainCode>
                <<<blocks, threads_a_block, 0, stream>>>(runs, gradients, residual, outbox);
            break;
        case DeviceCode::two_bit:
            two_bit_kernel<<<blocks, words, 0, stream>>>(runs, gradients, residual, scales, outbox);
            break;
    }
    check_launch("codes of gradients");
}

}  // namespace trainer::cuda
