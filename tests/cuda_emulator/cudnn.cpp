// cuDNN's interface, as far as the engine uses it: convolutions in NHWC, by plain loops. Algorithm
// 0 claims to be the fastest and not deterministic, algorithm 1 is the one that may be taken; both
// ask for a workspace, and spoil it.
#include <cudnn.h>

#include <cmath>
#include <cstring>

#include "tests/cuda_emulator/machine.h"
#include "tests/cuda_emulator/values.h"

struct cudnnContext {
    cudaStream_t stream = nullptr;
};
struct cudnnTensorStruct {
    int n = 0, c = 0, h = 0, w = 0;
    cudnnDataType_t type = CUDNN_DATA_FLOAT;
    size_t count() const { return size_t(n) * size_t(c) * size_t(h) * size_t(w); }
    bool bf16() const { return type == CUDNN_DATA_BFLOAT16; }
};
struct cudnnFilterStruct {
    int k = 0, c = 0, r = 0, s = 0;
    cudnnDataType_t type = CUDNN_DATA_FLOAT;
    size_t count() const { return size_t(k) * size_t(c) * size_t(r) * size_t(s); }
    bool bf16() const { return type == CUDNN_DATA_BFLOAT16; }
};
struct cudnnConvolutionStruct {
    int padding = 0, stride = 1;
    cudnnMathType_t math = CUDNN_DEFAULT_MATH;
};

namespace {

using namespace cuda_emulator;

constexpr size_t workspace_bytes = 1024;

// Shapes of one convolution, held by value, since descriptors change.
struct Convolution {
    cudnnTensorStruct x, y;
    cudnnFilterStruct filter;
    cudnnConvolutionStruct how;

    void check() const {
        const auto extent = [&](int in, int window) {
            return (in + 2 * how.padding - window) / how.stride + 1;
        };
        if (x.c != filter.c || y.c != filter.k || x.n != y.n || extent(x.h, filter.r) != y.h ||
            extent(x.w, filter.s) != y.w)
            refuse("shapes of a convolution that do not fit");
    }

    // Calls visit(first element of x, of the filter, of y) for every pixel of y and of its window.
    template <typename Visit>
    void for_each(Visit visit) const {
        for (int n = 0; n < y.n; ++n)
            for (int i = 0; i < y.h; ++i)
                for (int j = 0; j < y.w; ++j)
                    for (int r = 0; r < filter.r; ++r)
                        for (int s = 0; s < filter.s; ++s) {
                            const int row = i * how.stride - how.padding + r;
                            const int column = j * how.stride - how.padding + s;
                            if (row >= 0 && column >= 0 && row < x.h && column < x.w)
                                visit(at(x, n, row, column),
                                      size_t(r * filter.s + s) * size_t(filter.c), at(y, n, i, j));
                        }
    }

  private:
    static size_t at(const cudnnTensorStruct& t, int n, int row, int column) {
        return ((size_t(n) * size_t(t.h) + size_t(row)) * size_t(t.w) + size_t(column)) *
               size_t(t.c);
    }
};

// A pass works with what it was told to: alpha 1, beta 0, the algorithm that may be taken.
void check_pass(const void* alpha, const void* beta, int algorithm, void* workspace, size_t bytes) {
    if (*static_cast<const float*>(alpha) != 1 || *static_cast<const float*>(beta) != 0)
        refuse("a convolution that does not overwrite");
    if (algorithm != 1 || bytes < workspace_bytes)
        refuse("a convolution with another algorithm or workspace than was found");
    Machine::get().check_addressable(workspace, workspace_bytes, "workspace");
}

template <typename Function>
cudnnStatus_t line_up_pass(cudnnHandle_t handle, Function* code, void* workspace,
                           std::function<void()> pass) {
    Machine& machine = Machine::get();
    machine.load(machine.stream_of(handle->stream), reinterpret_cast<const void*>(code));
    machine.line_up(machine.stream_of(handle->stream), {[workspace, pass = std::move(pass)] {
                        std::memset(workspace, 0xab, workspace_bytes);
                        pass();
                    }});
    return CUDNN_STATUS_SUCCESS;
}

// What a search finds; it writes over its output, as a real one does.
template <typename Descriptor, typename Result>
cudnnStatus_t search(cudnnHandle_t handle, const Descriptor& written, void* output, int* count,
                     Result* results) {
    Machine& machine = Machine::get();
    const auto held = machine.lock();
    const size_t bytes = written.count() * (written.bf16() ? 2 : 4);
    machine.check_addressable(output, bytes, "output of a search");
    machine.line_up(machine.stream_of(handle->stream), {[=] { std::memset(output, 0xff, bytes); }});
    *count = 2;
    for (int i = 0; i < *count; ++i) {
        results[i] = {};
        results[i].algo = static_cast<decltype(results[i].algo)>(i);
        results[i].status = CUDNN_STATUS_SUCCESS;
        results[i].time = static_cast<float>(1 + i);
        results[i].memory = workspace_bytes;
        results[i].determinism = i == 0 ? CUDNN_NON_DETERMINISTIC : CUDNN_DETERMINISTIC;
        results[i].mathType = i == 0 ? CUDNN_TENSOR_OP_MATH : CUDNN_DEFAULT_MATH;
    }
    return CUDNN_STATUS_SUCCESS;
}

template <typename Descriptor>
cudnnStatus_t create(Descriptor** descriptor) {
    *descriptor = new Descriptor;
    return CUDNN_STATUS_SUCCESS;
}
template <typename Descriptor>
cudnnStatus_t destroy(Descriptor* descriptor) {
    delete descriptor;
    return CUDNN_STATUS_SUCCESS;
}

}  // namespace

extern "C" {

const char* cudnnGetErrorString(cudnnStatus_t) {
    return "an emulated error";
}
void cudnnGetLastErrorString(char* message, size_t) {
    *message = '\0';
}
size_t cudnnGetVersion() {
    return CUDNN_VERSION;
}
cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
    return create(handle);
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
    return destroy(handle);
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t* descriptor) {
    return create(descriptor);
}
cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t descriptor) {
    return destroy(descriptor);
}
cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t* descriptor) {
    return create(descriptor);
}
cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t descriptor) {
    return destroy(descriptor);
}
cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t* descriptor) {
    return create(descriptor);
}
cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t descriptor) {
    return destroy(descriptor);
}
cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t descriptor,
                                         cudnnTensorFormat_t format, cudnnDataType_t type, int n,
                                         int c, int h, int w) {
    *descriptor = {n, c, h, w, type};
    return format == CUDNN_TENSOR_NHWC ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}
cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t descriptor, cudnnDataType_t type,
                                         cudnnTensorFormat_t format, int k, int c, int r, int s) {
    *descriptor = {k, c, r, s, type};
    return format == CUDNN_TENSOR_NHWC ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}
cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t descriptor,
                                              int padding_h, int padding_w, int stride_h,
                                              int stride_w, int, int, cudnnConvolutionMode_t mode,
                                              cudnnDataType_t compute) {
    *descriptor = {padding_h, stride_h, CUDNN_DEFAULT_MATH};
    const bool supported = padding_h == padding_w && stride_h == stride_w &&
                           mode == CUDNN_CROSS_CORRELATION && compute == CUDNN_DATA_FLOAT;
    return supported ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}
cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t descriptor,
                                          cudnnMathType_t math) {
    descriptor->math = math;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(cudnnHandle_t, cudnnTensorDescriptor_t,
                                                      cudnnFilterDescriptor_t,
                                                      cudnnConvolutionDescriptor_t,
                                                      cudnnTensorDescriptor_t,
                                                      cudnnConvolutionFwdAlgo_t, size_t* bytes) {
    *bytes = workspace_bytes;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(
    cudnnHandle_t, cudnnFilterDescriptor_t, cudnnTensorDescriptor_t, cudnnConvolutionDescriptor_t,
    cudnnTensorDescriptor_t, cudnnConvolutionBwdDataAlgo_t, size_t* bytes) {
    *bytes = workspace_bytes;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(
    cudnnHandle_t, cudnnTensorDescriptor_t, cudnnTensorDescriptor_t, cudnnConvolutionDescriptor_t,
    cudnnFilterDescriptor_t, cudnnConvolutionBwdFilterAlgo_t, size_t* bytes) {
    *bytes = workspace_bytes;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnFindConvolutionForwardAlgorithmEx(
    cudnnHandle_t handle, cudnnTensorDescriptor_t, const void*, cudnnFilterDescriptor_t,
    const void*, cudnnConvolutionDescriptor_t, cudnnTensorDescriptor_t y, void* output, int,
    int* count, cudnnConvolutionFwdAlgoPerf_t* results, void*, size_t) {
    return search(handle, *y, output, count, results);
}
cudnnStatus_t cudnnFindConvolutionBackwardDataAlgorithmEx(
    cudnnHandle_t handle, cudnnFilterDescriptor_t, const void*, cudnnTensorDescriptor_t,
    const void*, cudnnConvolutionDescriptor_t, cudnnTensorDescriptor_t x, void* output, int,
    int* count, cudnnConvolutionBwdDataAlgoPerf_t* results, void*, size_t) {
    return search(handle, *x, output, count, results);
}
cudnnStatus_t cudnnFindConvolutionBackwardFilterAlgorithmEx(
    cudnnHandle_t handle, cudnnTensorDescriptor_t, const void*, cudnnTensorDescriptor_t,
    const void*, cudnnConvolutionDescriptor_t, cudnnFilterDescriptor_t filter, void* output, int,
    int* count, cudnnConvolutionBwdFilterAlgoPerf_t* results, void*, size_t) {
    return search(handle, *filter, output, count, results);
}

cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void* alpha,
                                      cudnnTensorDescriptor_t x, const void* x_data,
                                      cudnnFilterDescriptor_t filter, const void* filter_data,
                                      cudnnConvolutionDescriptor_t how,
                                      cudnnConvolutionFwdAlgo_t algorithm, void* workspace,
                                      size_t bytes, const void* beta, cudnnTensorDescriptor_t y,
                                      void* y_data) {
    const auto held = Machine::get().lock();
    check_pass(alpha, beta, algorithm, workspace, bytes);
    const Convolution c{*x, *y, *filter, *how};
    c.check();
    return line_up_pass(handle, cudnnConvolutionForward, workspace, [=] {
        const auto in = read_values(x_data, c.x.bf16(), c.x.count());
        const auto weights = read_values(filter_data, c.filter.bf16(), c.filter.count());
        // [rows][columns][inputs][outputs], so that the innermost loop runs over neighbours.
        const size_t outputs = size_t(c.filter.k), each = weights.size() / outputs;
        std::vector<float> turned(weights.size()), out(c.y.count());
        for (size_t k = 0; k < outputs; ++k)
            for (size_t i = 0; i < each; ++i)
                turned[i * outputs + k] = weights[k * each + i];
        c.for_each([&](size_t from, size_t window, size_t to) {
            for (size_t i = 0; i < size_t(c.x.c); ++i)
                for (size_t k = 0; k < outputs; ++k)
                    out[to + k] += in[from + i] * turned[(window + i) * outputs + k];
        });
        write_values(y_data, c.y.bf16(), out);
    });
}

cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void* alpha,
                                           cudnnFilterDescriptor_t filter, const void* filter_data,
                                           cudnnTensorDescriptor_t y, const void* dy_data,
                                           cudnnConvolutionDescriptor_t how,
                                           cudnnConvolutionBwdDataAlgo_t algorithm, void* workspace,
                                           size_t bytes, const void* beta,
                                           cudnnTensorDescriptor_t x, void* dx_data) {
    const auto held = Machine::get().lock();
    check_pass(alpha, beta, algorithm, workspace, bytes);
    const Convolution c{*x, *y, *filter, *how};
    c.check();
    return line_up_pass(handle, cudnnConvolutionBackwardData, workspace, [=] {
        const auto weights = read_values(filter_data, c.filter.bf16(), c.filter.count());
        const auto dy = read_values(dy_data, c.y.bf16(), c.y.count());
        const size_t inputs = size_t(c.x.c), each = weights.size() / size_t(c.filter.k);
        std::vector<float> dx(c.x.count());
        c.for_each([&](size_t to, size_t window, size_t from) {
            for (size_t k = 0; k < size_t(c.filter.k); ++k)
                for (size_t i = 0; i < inputs; ++i)
                    dx[to + i] += dy[from + k] * weights[k * each + window + i];
        });
        write_values(dx_data, c.x.bf16(), dx);
    });
}

cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void* alpha,
                                             cudnnTensorDescriptor_t x, const void* x_data,
                                             cudnnTensorDescriptor_t y, const void* dy_data,
                                             cudnnConvolutionDescriptor_t how,
                                             cudnnConvolutionBwdFilterAlgo_t algorithm,
                                             void* workspace, size_t bytes, const void* beta,
                                             cudnnFilterDescriptor_t filter, void* dfilter_data) {
    const auto held = Machine::get().lock();
    check_pass(alpha, beta, algorithm, workspace, bytes);
    const Convolution c{*x, *y, *filter, *how};
    c.check();
    return line_up_pass(handle, cudnnConvolutionBackwardFilter, workspace, [=] {
        const auto in = read_values(x_data, c.x.bf16(), c.x.count());
        const auto dy = read_values(dy_data, c.y.bf16(), c.y.count());
        std::vector<float> dfilter(c.filter.count());
        const size_t inputs = size_t(c.x.c), each = dfilter.size() / size_t(c.filter.k);
        c.for_each([&](size_t from, size_t window, size_t gradient) {
            for (size_t k = 0; k < size_t(c.filter.k); ++k)
                for (size_t i = 0; i < inputs; ++i)
                    dfilter[k * each + window + i] += dy[gradient + k] * in[from + i];
        });
        write_values(dfilter_data, c.filter.bf16(), dfilter);
    });
}
}
