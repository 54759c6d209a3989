// Parameters between the slab, where they lie as PyTorch lays them out, and the libraries' forms.
#include "engine/cuda/device.cuh"

namespace trainer::cuda {

namespace {

template <typename T>
__global__ void pack_kernel(FilterForm form, const float* slab, T* packed) {
    const int64_t count = form.packed_elements();
    for (int64_t i = first_element(); i < count; i += element_stride()) {
        const int64_t input = i % form.stored_inputs;
        const int64_t place = i / form.stored_inputs % form.area;
        const int64_t output = i / form.stored_inputs / form.area;
        const bool real = input < form.inputs && output < form.outputs;
        assign(packed[i], real ? slab[(output * form.inputs + input) * form.area + place] : 0.0F);
    }
}

template <typename T>
__global__ void unpack_kernel(FilterForm form, const T* packed, float* slab) {
    const int64_t count = form.outputs * form.inputs * form.area;
    for (int64_t i = first_element(); i < count; i += element_stride()) {
        const int64_t place = i % form.area;
        const int64_t input = i / form.area % form.inputs;
        const int64_t output = i / form.area / form.inputs;
        slab[i] = to_float(packed[(output * form.area + place) * form.stored_inputs + input]);
    }
}

}  // namespace

void line_up_pack(const FilterForm& form, const float* slab, void* packed, DType type,
                  cudaStream_t stream) {
    for_type(type, [&]<typename T>() {
        pack_kernel<<<blocks_for(form.packed_elements()), threads_a_block, 0, stream>>>(
            form, slab, static_cast<T*>(packed));
    });
    check_launch("packing of a filter");
}

void line_up_unpack(const FilterForm& form, const void* packed, DType type, float* slab,
                    cudaStream_t stream) {
    for_type(type, [&]<typename T>() {
        unpack_kernel<<<blocks_for(form.outputs * form.inputs * form.area), threads_a_block, 0,
                        stream>>>(form, static_cast<const T*>(packed), slab);
    });
    check_launch("unpacking of a filter's gradient");
}

}  // namespace trainer::cuda
