// Elementwise arithmetic over slabs: the functors that the processor's loops run too.
#include "engine/cuda/device.cuh"
#include "engine/cuda/operations.h"
#include "engine/slab_math.h"

namespace trainer::cuda {

namespace {

template <typename Update>
__global__ void update_kernel(Update update, float* weights, float* velocity,
                              const float* gradients, int64_t count) {
    for (int64_t i = first_element(); i < count; i += element_stride())
        update(weights[i], velocity[i], gradients[i]);
}

__global__ void local_sgd_kernel(LocalSgdUpdate update, float* weights, const float* base,
                                 const float* gradients, int64_t count) {
    for (int64_t i = first_element(); i < count; i += element_stride())
        weights[i] = update(base[i], gradients[i]);
}
__global__ void local_dc_kernel(LocalDcUpdate update, float* weights, const float* base,
                                const float* gradients, int64_t count) {
    for (int64_t i = first_element(); i < count; i += element_stride())
        weights[i] = update(base[i], gradients[i], weights[i]);
}
__global__ void local_glu_kernel(LocalGluUpdate update, float* weights, const float* base,
                                 const float* gradients, const float* global, int64_t count) {
    for (int64_t i = first_element(); i < count; i += element_stride())
        weights[i] = update(base[i], gradients[i], global[i]);
}
__global__ void local_momentum_kernel(LocalMomentumUpdate update, float* weights, const float* base,
                                      const float* gradients, const float* before, float* velocity,
                                      int64_t count) {
    for (int64_t i = first_element(); i < count; i += element_stride())
        weights[i] = update(base[i], gradients[i], before[i], velocity[i]);
}
__global__ void global_gradient_kernel(GlobalGradientUpdate update, float* global, float* pulled,
                                       const float* incoming, int64_t count) {
    for (int64_t i = first_element(); i < count; i += element_stride())
        update(global[i], pulled[i], incoming[i]);
}

__global__ void scale_kernel(float* values, float factor, int64_t count) {
    for (int64_t i = first_element(); i < count; i += element_stride())
        values[i] *= factor;
}

__global__ void sum_of_parts_kernel(const float* parts, int64_t stride, int ranks, float* sums,
                                    int64_t count) {
    for (int64_t i = first_element(); i < count; i += element_stride()) {
        float sum = parts[i];
        for (int rank = 1; rank < ranks; ++rank)
            sum += parts[rank * stride + i];
        sums[i] = sum;
    }
}

// Of the block's threads, in a tree; the sum is thread 0's.
__device__ double block_sum(double mine) {
    __shared__ double sums[threads_a_block];
    sums[threadIdx.x] = mine;
    for (unsigned half = threads_a_block / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half)
            sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    return sums[0];
}

__global__ void squares_kernel(const float* values, int64_t count, double* partial) {
    double mine = 0;
    for (int64_t i = first_element(); i < count; i += element_stride()) {
        const auto value = static_cast<double>(values[i]);
        mine = fma(value, value, mine);
    }
    const double sum = block_sum(mine);
    if (threadIdx.x == 0)
        partial[blockIdx.x] = sum;
}

__global__ void total_kernel(const double* partial, unsigned count, double* total) {
    double mine = 0;
    for (unsigned i = threadIdx.x; i < count; i += threads_a_block)
        mine += partial[i];
    const double sum = block_sum(mine);
    if (threadIdx.x == 0)
        *total = sum;
}

class CudaSlabMath final : public SlabMath {
  public:
    explicit CudaSlabMath(Context& context)
        : context_(context),
          partial_(context.allocate(blocks_for(INT64_MAX / 2) * sizeof(double))),
          total_(Context::allocate_pinned(sizeof(double))) {}

    void update(const MomentumUpdate<float>& update, float* weights, float* velocity,
                const float* gradients, int64_t count) override {
        run(update, weights, velocity, gradients, count);
    }
    void update(const NesterovUpdate<float>& update, float* weights, float* velocity,
                const float* gradients, int64_t count) override {
        run(update, weights, velocity, gradients, count);
    }
    void update(const LarsUpdate<float>& update, float* weights, float* velocity,
                const float* gradients, int64_t count) override {
        run(update, weights, velocity, gradients, count);
    }

    void local(const LocalSgdUpdate& update, float* weights, const float* base,
               const float* gradients, int64_t count) override {
        context_.use();
        local_sgd_kernel<<<blocks_for(count), threads_a_block, 0, context_.stream()>>>(
            update, weights, base, gradients, count);
        check_launch("local rule sgd");
    }
    void local(const LocalDcUpdate& update, float* weights, const float* base,
               const float* gradients, int64_t count) override {
        context_.use();
        local_dc_kernel<<<blocks_for(count), threads_a_block, 0, context_.stream()>>>(
            update, weights, base, gradients, count);
        check_launch("local rule dc");
    }
    void local(const LocalGluUpdate& update, float* weights, const float* base,
               const float* gradients, const float* global, int64_t count) override {
        context_.use();
        local_glu_kernel<<<blocks_for(count), threads_a_block, 0, context_.stream()>>>(
            update, weights, base, gradients, global, count);
        check_launch("local rule glu");
    }
    void local(const LocalMomentumUpdate& update, float* weights, const float* base,
               const float* gradients, const float* before, float* velocity,
               int64_t count) override {
        context_.use();
        local_momentum_kernel<<<blocks_for(count), threads_a_block, 0, context_.stream()>>>(
            update, weights, base, gradients, before, velocity, count);
        check_launch("local rule momentum");
    }
    void local(const GlobalGradientUpdate& update, float* global, float* pulled,
               const float* incoming, int64_t count) override {
        context_.use();
        global_gradient_kernel<<<blocks_for(count), threads_a_block, 0, context_.stream()>>>(
            update, global, pulled, incoming, count);
        check_launch("global gradient");
    }

    double sum_of_squares(const float* values, int64_t count) override {
        context_.use();
        auto* const partial = reinterpret_cast<double*>(partial_.data.get());
        auto* const total = reinterpret_cast<double*>(total_.data.get());
        const unsigned blocks = blocks_for(count);
        squares_kernel<<<blocks, threads_a_block, 0, context_.stream()>>>(values, count, partial);
        check_launch("sum of squares");
        total_kernel<<<1, threads_a_block, 0, context_.stream()>>>(partial, blocks, total);
        check_launch("sum of squares");
        wait();
        return *total;
    }

    void scale(float* values, float factor, int64_t count) override {
        context_.use();
        scale_kernel<<<blocks_for(count), threads_a_block, 0, context_.stream()>>>(values, factor,
                                                                                   count);
        check_launch("scaling");
    }

    void wait() override { TRAINER_CUDA(cudaStreamSynchronize(context_.stream())); }

  private:
    template <typename Update>
    void run(const Update& update, float* weights, float* velocity, const float* gradients,
             int64_t count) {
        context_.use();
        update_kernel<<<blocks_for(count), threads_a_block, 0, context_.stream()>>>(
            update, weights, velocity, gradients, count);
        check_launch("update of the weights");
    }
    Context& context_;
    Memory partial_;
    Memory total_;  // page-locked, written by the device
};

}  // namespace

void line_up_sum_of_parts(const float* parts, int64_t stride, int ranks, float* sums, int64_t count,
                          cudaStream_t stream) {
    if (count == 0)
        return;
    sum_of_parts_kernel<<<blocks_for(count), threads_a_block, 0, stream>>>(parts, stride, ranks,
                                                                           sums, count);
    check_launch("sum of the parts of all ranks");
}

std::unique_ptr<SlabMath> make_slab_math(Context& context) {
    return std::make_unique<CudaSlabMath>(context);
}

}  // namespace trainer::cuda
