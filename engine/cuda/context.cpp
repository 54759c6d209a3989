#include "engine/cuda/context.h"

#include <cstring>

#include "engine/cuda/algorithms.h"

namespace trainer::cuda {

namespace {

[[noreturn]] void fail(const char* library, const char* call, const char* file, int line,
                       const char* why) {
    throw Error(std::string(library) + ": " + call + " failed: " + why + " (" + file + ":" +
                std::to_string(line) + ")");
}

}  // namespace

void check_call(cudaError_t status, const char* call, const char* file, int line) {
    if (status == cudaSuccess)
        return;
    static_cast<void>(cudaGetLastError());  // else the next check of a launch would see it again
    fail("CUDA", call, file, line, cudaGetErrorString(status));
}

void check_call(cudnnStatus_t status, const char* call, const char* file, int line) {
    if (status == CUDNN_STATUS_SUCCESS)
        return;
    char more[512] = "";
    cudnnGetLastErrorString(more, sizeof more);
    const std::string why = std::string(cudnnGetErrorString(status)) +
                            (more[0] != '\0' ? std::string(", ") + more : std::string());
    fail("cuDNN", call, file, line, why.c_str());
}

void check_call(cublasStatus_t status, const char* call, const char* file, int line) {
    if (status != CUBLAS_STATUS_SUCCESS)
        fail("cuBLAS", call, file, line, cublasLtGetStatusString(status));
}

void check_launch(const char* what) {
    const cudaError_t status = cudaGetLastError();
    if (status != cudaSuccess)
        throw Error(std::string("CUDA: the kernel of ") + what +
                    " could not be launched: " + cudaGetErrorString(status));
}

Context::Context(const CudaOptions& options) : options_(options) {
    use();
    cudaDeviceProp properties{};
    TRAINER_CUDA(cudaGetDeviceProperties(&properties, options.device));
    name_ = properties.name;
    if (options.precision == Precision::bf16 && properties.major < 8)
        throw UsageError("precision: bf16: GPU " + std::to_string(options.device) + " (" + name_ +
                         ") has no bf16 arithmetic, which comes with compute capability 8.0; use "
                         "precision: fp32");
    managed_ = properties.managedMemory != 0 && properties.concurrentManagedAccess != 0;
    TRAINER_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    TRAINER_CUDA(cudaStreamCreateWithFlags(&copy_stream_, cudaStreamNonBlocking));
    TRAINER_CUDA(cudaStreamCreateWithFlags(&input_stream_, cudaStreamNonBlocking));
}

// What fails here fails because the device has failed before, which has been told.
Context::~Context() {
    static_cast<void>(cudaSetDevice(options_.device));
    team_.reset();  // else what waits for others in the stream would do so for ever
    if (stream_ != nullptr)
        static_cast<void>(cudaStreamSynchronize(stream_));
    if (cudnn_ != nullptr)
        static_cast<void>(cudnnDestroy(cudnn_));
    if (cublas_ != nullptr)
        static_cast<void>(cublasLtDestroy(cublas_));
    for (const cudaStream_t stream : {input_stream_, copy_stream_, stream_})
        if (stream != nullptr)
            static_cast<void>(cudaStreamDestroy(stream));
}

void Context::use() const {
    TRAINER_CUDA(cudaSetDevice(options_.device));
}

int64_t Context::padded(int64_t channels) const {
    const auto vector = static_cast<int64_t>(16 / size_of(activation()));
    return (channels + vector - 1) / vector * vector;
}

Buffer Context::layout(const Network& network, const Node& node) const {
    Buffer buffer;
    buffer.shape = node.shape;
    buffer.type = activation();
    if (&node == &network.nodes().back() && node.shape.size() == 1) {  // the logits
        check(node.kind == Kind::linear || node.kind == Kind::global_average_pool ||
                  options_.precision == Precision::fp32,
              "logits come from a linear layer or an average pool");
        buffer.type = DType::f32;
    }
    buffer.channels = node.shape.size() == 3 ? padded(node.shape[0]) : node.shape[0];
    buffer.sample_bytes = element_count(node.shape) / node.shape[0] * buffer.channels *
                          static_cast<int64_t>(size_of(buffer.type));
    return buffer;
}

cudnnHandle_t Context::cudnn() {
    if (cudnn_ == nullptr) {
        TRAINER_CUDA(cudnnCreate(&cudnn_));
        TRAINER_CUDA(cudnnSetStream(cudnn_, stream_));
    }
    return cudnn_;
}

cublasLtHandle_t Context::cublas() {
    if (cublas_ == nullptr)
        TRAINER_CUDA(cublasLtCreate(&cublas_));
    return cublas_;
}

Algorithms& Context::algorithms() {
    if (!algorithms_)
        algorithms_ = std::make_unique<Algorithms>(*this);
    return *algorithms_;
}

std::byte* Context::workspace() {
    if (workspace_.bytes == 0)
        workspace_ = allocate(workspace_size);
    return workspace_.data.get();
}

SumSpace Context::sum_space(int64_t stored_channels) {
    if (stored_channels > most_summed_channels)
        throw Error("a layer of " + std::to_string(stored_channels) +
                    " channels: the CUDA engine sums over no more than " +
                    std::to_string(most_summed_channels));
    const auto grown = [this](std::vector<Memory>& memories, size_t bytes) {
        if (memories.empty() || memories.back().bytes < bytes)
            memories.push_back(allocate(bytes));
        return memories.back().data.get();
    };
    const auto floats = static_cast<size_t>(sum_space_floats(stored_channels));
    const auto counters = static_cast<size_t>(sum_space_counters(stored_channels));
    return {reinterpret_cast<float*>(grown(sums_, floats * sizeof(float))),
            reinterpret_cast<unsigned*>(grown(counters_, counters * sizeof(unsigned)))};
}

namespace {

std::string mebibytes(size_t bytes) {
    return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB";
}

[[noreturn]] void fail_for_memory(size_t bytes) {
    static_cast<void>(cudaGetLastError());
    size_t free = 0, total = 0;
    const bool known = cudaMemGetInfo(&free, &total) == cudaSuccess;
    throw Error("the GPU refused " + mebibytes(bytes) + " of memory" +
                (known ? ", " + mebibytes(free) + " of its " + mebibytes(total) + " are free"
                       : std::string()) +
                "; take a smaller data.batch_size, or end what else runs there");
}

}  // namespace

Memory Context::allocate(size_t bytes) {
    if (bytes == 0)
        return {};
    use();
    void* memory = nullptr;
    const cudaError_t status = cudaMalloc(&memory, bytes);
    if (status == cudaErrorMemoryAllocation)
        fail_for_memory(bytes);
    check_call(status, "cudaMalloc(&memory, bytes)", __FILE__, __LINE__);
    Memory result{
        std::shared_ptr<std::byte>(static_cast<std::byte*>(memory),
                                   [](std::byte* data) { static_cast<void>(cudaFree(data)); }),
        bytes};
    TRAINER_CUDA(cudaMemsetAsync(memory, 0, bytes, stream_));
    TRAINER_CUDA(cudaStreamSynchronize(stream_));
    return result;
}

Memory Context::allocate_pinned(size_t bytes) {
    if (bytes == 0)
        return {};
    void* memory = nullptr;
    TRAINER_CUDA(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable | cudaHostAllocMapped));
    std::memset(memory, 0, bytes);
    return {
        std::shared_ptr<std::byte>(static_cast<std::byte*>(memory),
                                   [](std::byte* data) { static_cast<void>(cudaFreeHost(data)); }),
        bytes};
}

// Managed memory, which stays on the device unless the host comes for it, and moves there again.
Memory Context::allocate_slabs(size_t bytes, SlabHome home) {
    if (bytes == 0)
        return {};
    use();
    if (home == SlabHome::host || !managed_)
        return allocate_pinned(bytes);
    void* memory = nullptr;
    const cudaError_t status = cudaMallocManaged(&memory, bytes, cudaMemAttachGlobal);
    if (status == cudaErrorMemoryAllocation)
        fail_for_memory(bytes);
    check_call(status, "cudaMallocManaged(&memory, bytes, cudaMemAttachGlobal)", __FILE__,
               __LINE__);
    Memory result{
        std::shared_ptr<std::byte>(static_cast<std::byte*>(memory),
                                   [](std::byte* data) { static_cast<void>(cudaFree(data)); }),
        bytes};
#if CUDART_VERSION >= 13000
    const cudaMemLocation here{cudaMemLocationTypeDevice, {options_.device}};
#else
    const int here = options_.device;
#endif
    TRAINER_CUDA(cudaMemAdvise(memory, bytes, cudaMemAdviseSetPreferredLocation, here));
    TRAINER_CUDA(cudaMemsetAsync(memory, 0, bytes, stream_));
    TRAINER_CUDA(cudaStreamSynchronize(stream_));
    return result;
}

namespace {

cudaMemoryType type_of(const void* address) {
    cudaPointerAttributes attributes{};
    TRAINER_CUDA(cudaPointerGetAttributes(&attributes, address));
    return attributes.type;
}

}  // namespace

bool Context::is_copied(const ParameterArena& arena) {
    if (arena.size() == 0)
        return false;
    const cudaMemoryType type = type_of(arena.address(slab::weights));
    check(type != cudaMemoryTypeUnregistered,
          "slabs that the CUDA engine works on come from Backend::allocate_slabs");
    return type == cudaMemoryTypeHost;
}

float* Context::on_device(const ParameterArena& arena) {
    std::byte* const slab = arena.size() == 0 ? nullptr : arena.address(slab::weights);
    if (!is_copied(arena))
        return reinterpret_cast<float*>(slab);
    const size_t bytes = static_cast<size_t>(arena.size()) * sizeof(float);
    Memory& copy = copies_[slab];
    if (copy.bytes != bytes)  // none yet, or that of an arena that lay here before
        copy = allocate(bytes);
    return reinterpret_cast<float*>(copy.data.get());
}

void Context::keep_copy(const ParameterArena& arena, bool keep) {
    if (keep)
        kept_copies_.insert(arena.address(slab::weights));
    else
        kept_copies_.erase(arena.address(slab::weights));
}

void Context::set_step(const StepInput* step, const StepState* state) {
    if (state != nullptr)
        steps_[step] = state;
    else
        steps_.erase(step);
}

const StepState& Context::step_of(const StepInput* step) const {
    const auto found = steps_.find(step);
    check(found != steps_.end(), "Backend::make_steps comes before the operations of its steps");
    return *found->second;
}

Tensor tensor_of(const Buffer& buffer, int64_t samples) {
    Tensor tensor{.data = buffer.data,
                  .type = buffer.type,
                  .samples = samples,
                  .channels = buffer.shape[0],
                  .stored = buffer.channels};
    if (buffer.shape.size() == 3) {
        tensor.height = buffer.shape[1];
        tensor.width = buffer.shape[2];
    }
    return tensor;
}

const TensorInfo& parameter_info(const Binding& binding, size_t index) {
    return binding.parameters->table()[binding.node->parameters.at(index)];
}

float* parameter_in(const Binding& binding, void* slab, size_t index) {
    return static_cast<float*>(slab) + parameter_info(binding, index).offset;
}

}  // namespace trainer::cuda
