// cuBLASLt's interface, as far as the engine uses it: products of matrices by columns.
#include <cublasLt.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>

#include "tests/cuda_emulator/machine.h"
#include "tests/cuda_emulator/values.h"

namespace {

using namespace cuda_emulator;

struct Product {
    bool a_transposed = false, b_transposed = false;
};
struct Layout {
    cudaDataType_t type = CUDA_R_32F;
    uint64_t rows = 0, columns = 0, leading = 0;
    bool bf16() const { return type == CUDA_R_16BF; }
    size_t count() const { return leading * columns; }
};

Product& product_of(cublasLtMatmulDesc_t handle) {
    return *reinterpret_cast<Product*>(handle);
}
Layout& layout_of(cublasLtMatrixLayout_t handle) {
    return *reinterpret_cast<Layout*>(handle);
}

bool fits(const Product& product, const Layout& a, const Layout& b, const Layout& d) {
    const auto [rows, inner] =
        product.a_transposed ? std::pair(a.columns, a.rows) : std::pair(a.rows, a.columns);
    const auto [other, columns] =
        product.b_transposed ? std::pair(b.columns, b.rows) : std::pair(b.rows, b.columns);
    return rows == d.rows && columns == d.columns && inner == other;
}

std::atomic<int> handles{0}, descriptors{0};  // that there are

template <typename Handle>
cublasStatus_t create(Handle* handle, auto* object) {
    *handle = reinterpret_cast<Handle>(object);
    ++descriptors;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t destroy(auto* object) {
    delete object;
    --descriptors;
    return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

extern "C" {

const char* cublasLtGetStatusString(cublasStatus_t) {
    return "an emulated error";
}
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
    *handle = reinterpret_cast<cublasLtHandle_t>(new char);
    ++handles;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    delete reinterpret_cast<char*>(handle);
    if (--handles == 0 && descriptors != 0)
        refuse("cuBLASLt: descriptors are left behind");
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* handle, cublasComputeType_t,
                                        cudaDataType_t) {
    return create(handle, new Product);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t handle) {
    return destroy(&product_of(handle));
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t handle,
                                              cublasLtMatmulDescAttributes_t which,
                                              const void* value, size_t bytes) {
    if (bytes != sizeof(int32_t))
        return CUBLAS_STATUS_INVALID_VALUE;
    const bool transposed = *static_cast<const int32_t*>(value) == CUBLAS_OP_T;
    if (which == CUBLASLT_MATMUL_DESC_TRANSA)
        product_of(handle).a_transposed = transposed;
    else if (which == CUBLASLT_MATMUL_DESC_TRANSB)
        product_of(handle).b_transposed = transposed;
    else
        return CUBLAS_STATUS_NOT_SUPPORTED;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* handle, cudaDataType_t type,
                                          uint64_t rows, uint64_t columns, int64_t leading) {
    return create(handle, new Layout{type, rows, columns, static_cast<uint64_t>(leading)});
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t handle) {
    return destroy(&layout_of(handle));
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* handle) {
    return create(handle, new char);
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t handle) {
    return destroy(reinterpret_cast<char*>(handle));
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t,
                                                    cublasLtMatmulPreferenceAttributes_t,
                                                    const void*, size_t) {
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t product,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t, int,
                                              cublasLtMatmulHeuristicResult_t* results,
                                              int* count) {
    if (!fits(product_of(product), layout_of(a), layout_of(b), layout_of(d)))
        return CUBLAS_STATUS_INVALID_VALUE;
    *count = std::getenv("TRAINER_EMULATED_WITHOUT_PRODUCTS") == nullptr ? 1 : 0;
    results[0] = {};
    results[0].state = CUBLAS_STATUS_SUCCESS;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t product, const void* alpha,
                              const void* a_data, cublasLtMatrixLayout_t a, const void* b_data,
                              cublasLtMatrixLayout_t b, const void* beta, const void*,
                              cublasLtMatrixLayout_t, void* d_data, cublasLtMatrixLayout_t d,
                              const cublasLtMatmulAlgo_t*, void*, size_t, cudaStream_t stream) {
    Machine& machine = Machine::get();
    const auto held = machine.lock();
    if (*static_cast<const float*>(alpha) != 1 || *static_cast<const float*>(beta) != 0)
        refuse("a product that does not overwrite");
    for (const void* const data : {a_data, b_data, static_cast<const void*>(d_data)})
        if (reinterpret_cast<uintptr_t>(data) % 16 != 0)
            refuse("a matrix at no multiple of 16 bytes, which was promised");
    const Product how = product_of(product);
    const Layout A = layout_of(a), B = layout_of(b), D = layout_of(d);
    machine.check_addressable(a_data, A.count() * (A.bf16() ? 2 : 4), "a matrix");
    machine.check_addressable(b_data, B.count() * (B.bf16() ? 2 : 4), "a matrix");
    machine.check_addressable(d_data, D.count() * (D.bf16() ? 2 : 4), "a matrix");
    machine.load(machine.stream_of(stream), reinterpret_cast<const void*>(cublasLtMatmul));
    machine.line_up(
        machine.stream_of(stream), {[=] {
            const auto left = read_values(a_data, A.bf16(), A.count());
            const auto right = read_values(b_data, B.bf16(), B.count());
            const uint64_t inner = how.a_transposed ? A.rows : A.columns;
            std::vector<float> out(D.count());
            for (uint64_t j = 0; j < D.columns; ++j)
                for (uint64_t i = 0; i < D.rows; ++i) {
                    double sum = 0;
                    for (uint64_t l = 0; l < inner; ++l)
                        sum += static_cast<double>(
                                   left[how.a_transposed ? i * A.leading + l : l * A.leading + i]) *
                               static_cast<double>(
                                   right[how.b_transposed ? l * B.leading + j : j * B.leading + l]);
                    out[j * D.leading + i] = static_cast<float>(sum);
                }
            write_values(d_data, D.bf16(), out);
        }});
    return CUBLAS_STATUS_SUCCESS;
}
}
