// Gradients on their way from the device to a worker's outbox, and the slabs that stay there.
//
// A push goes by the copy stream: behind an event of the stream that computes, the kernels that
// make the codes, one copy of them to page-locked memory, an event for the host to wait for.
#include <algorithm>
#include <cstring>
#include <map>

#include "engine/cuda/event.h"
#include "engine/cuda/operations.h"

namespace trainer::cuda {

namespace {

class Exchange final : public DeviceExchange {
  public:
    Exchange(Context& context, SlabMath& math, const ParameterArena& arena)
        : context_(context), math_(math), arena_(arena) {
        check(Context::is_copied(arena), "a worker that exchanges has its slabs on the host");
    }
    ~Exchange() override;

    size_t prepare(const CodedRange& coded) override;
    void push(size_t prepared, float* gradients, float factor, std::byte* outbox) override;
    void await(size_t prepared) override { pushes_[prepared]->arrived.wait(); }

    Memory allocate_outbox(size_t bytes) override { return Context::allocate_pinned(bytes); }

    float* slab(std::string_view name) override;
    float* zeros() override;
    void send(std::string_view name) override { copy(name, cudaMemcpyHostToDevice); }
    void fetch(std::string_view name) override { copy(name, cudaMemcpyDeviceToHost); }
    void keep_weights(bool device) override { context_.keep_copy(arena_, device); }
    SlabMath& math() override { return math_; }

  private:
    // What one range needs at each push.
    struct Push {
        CodedRange coded;
        std::vector<CodeRun> host_runs;
        std::vector<MeasuredTensor> host_tensors;
        int64_t measured_runs = 0;
        Memory runs, tensors, shares, scales;  // of the device
        Event finished, arrived;
    };

    size_t slab_bytes() const { return static_cast<size_t>(arena_.size()) * sizeof(float); }
    float* mirror(std::string_view name);
    void copy(std::string_view name, cudaMemcpyKind kind);
    void add_runs(Push& push, const CodedRange::Segment& segment) const;
    void add_tensors(Push& push) const;
    template <typename T>
    Memory on_device(const std::vector<T>& values);

    Context& context_;
    SlabMath& math_;
    const ParameterArena& arena_;
    std::map<std::string, Memory, std::less<>> mirrors_;  // by slab
    Memory zeros_;
    Memory codes_;  // an outbox on the device
    std::vector<std::unique_ptr<Push>> pushes_;
};

Exchange::~Exchange() {
    // Work that an error has left under way still reads this memory.
    static_cast<void>(cudaStreamSynchronize(context_.copy_stream()));
    context_.keep_copy(arena_, false);
}

// Residuals and local rules' slabs, of zeros at first.
float* Exchange::mirror(std::string_view name) {
    auto found = mirrors_.find(name);
    if (found == mirrors_.end())
        found = mirrors_.emplace(name, context_.allocate(slab_bytes())).first;
    return reinterpret_cast<float*>(found->second.data.get());
}

float* Exchange::slab(std::string_view name) {
    if (name == slab::weights)
        return context_.on_device(arena_);
    if (name == "incoming")  // where the network writes; read once
        return reinterpret_cast<float*>(arena_.address(name));
    return mirror(name);
}

float* Exchange::zeros() {
    if (zeros_.bytes == 0)
        zeros_ = context_.allocate(slab_bytes());
    return reinterpret_cast<float*>(zeros_.data.get());
}

void Exchange::copy(std::string_view name, cudaMemcpyKind kind) {
    context_.use();
    std::byte* const host = arena_.address(name);
    auto* const device = reinterpret_cast<std::byte*>(slab(name));
    const bool in = kind == cudaMemcpyHostToDevice;
    // What either stream still does with the slab comes first.
    TRAINER_CUDA(cudaStreamSynchronize(context_.copy_stream()));
    TRAINER_CUDA(cudaMemcpyAsync(in ? device : host, in ? host : device, slab_bytes(), kind,
                                 context_.stream()));
    TRAINER_CUDA(cudaStreamSynchronize(context_.stream()));
}

template <typename T>
Memory Exchange::on_device(const std::vector<T>& values) {
    Memory memory = context_.allocate(values.size() * sizeof(T));
    if (memory.bytes > 0) {
        TRAINER_CUDA(cudaMemcpyAsync(memory.data.get(), values.data(), memory.bytes,
                                     cudaMemcpyHostToDevice, context_.stream()));
        TRAINER_CUDA(cudaStreamSynchronize(context_.stream()));
    }
    return memory;
}

int64_t bytes_of_codes(DeviceCode code, int64_t count) {
    switch (code) {
        case DeviceCode::floats:
            return 4 * count;
        case DeviceCode::fp16:
        case DeviceCode::bf16:
            return 2 * count;
        case DeviceCode::two_bit:
            break;
    }
    return (count + 15) / 16 * 4;
}

void Exchange::add_runs(Push& push, const CodedRange::Segment& segment) const {
    const DeviceCode code = push.coded.code;
    for (int64_t first = 0; first < segment.range.count; first += CodeRun::most)
        push.host_runs.push_back(
            {.first = segment.range.first + first,
             .codes_at = static_cast<int64_t>(segment.codes_at) + bytes_of_codes(code, first),
             .count = static_cast<int32_t>(std::min(CodeRun::most, segment.range.count - first)),
             .scale = std::max(segment.tensor, 0),
             .begins = code == DeviceCode::two_bit && first == 0 ? 1 : 0});
}

void Exchange::add_tensors(Push& push) const {
    const auto& tensors = arena_.table().tensors();
    for (size_t index = 0; index < tensors.size(); ++index) {
        const Range range = tensors[index].range();
        if (range.first < push.coded.range.first || range.first >= push.coded.range.end())
            continue;
        check(range.end() <= push.coded.range.end(), "a measured range holds whole tensors");
        push.host_tensors.push_back({.first = range.first,
                                     .size = range.count,
                                     .first_run = push.measured_runs,
                                     .scale = static_cast<int64_t>(index)});
        push.measured_runs += (range.count + CodeRun::most - 1) / CodeRun::most;
    }
}

size_t Exchange::prepare(const CodedRange& coded) {
    context_.use();
    auto push = std::make_unique<Push>();
    push->coded = coded;
    for (const CodedRange::Segment& segment : coded.segments)
        add_runs(*push, segment);
    push->runs = on_device(push->host_runs);
    if (coded.code == DeviceCode::two_bit) {
        if (coded.threshold) {
            push->scales = on_device(std::vector<float>{*coded.threshold});
        } else {
            add_tensors(*push);
            push->tensors = on_device(push->host_tensors);
            push->shares =
                context_.allocate(static_cast<size_t>(push->measured_runs) * sizeof(double));
            push->scales = context_.allocate(arena_.table().tensors().size() * sizeof(float));
        }
    }
    if (const size_t end = coded.first_byte + coded.bytes; codes_.bytes < end) {
        TRAINER_CUDA(cudaStreamSynchronize(context_.copy_stream()));  // which may use the old one
        codes_ = context_.allocate(std::max(end, slab_bytes()));
    }
    pushes_.push_back(std::move(push));
    return pushes_.size() - 1;
}

void Exchange::push(size_t prepared, float* gradients, float factor, std::byte* outbox) {
    context_.use();
    Push& its = *pushes_[prepared];
    const CodedRange& coded = its.coded;
    if (factor != 1)
        math_.scale(gradients + coded.range.first, factor, coded.range.count);
    its.finished.record(context_.stream());
    const cudaStream_t stream = context_.copy_stream();
    its.finished.hold_back(stream);
    float* const residual = coded.residual.empty() ? nullptr : mirror(coded.residual);
    auto* const scales = reinterpret_cast<float*>(its.scales.data.get());
    if (!its.host_tensors.empty())
        line_up_thresholds(reinterpret_cast<const MeasuredTensor*>(its.tensors.data.get()),
                           static_cast<int64_t>(its.host_tensors.size()), its.measured_runs,
                           gradients, residual, reinterpret_cast<double*>(its.shares.data.get()),
                           scales, stream);
    line_up_codes(coded.code, reinterpret_cast<const CodeRun*>(its.runs.data.get()),
                  static_cast<int64_t>(its.host_runs.size()), gradients, residual, scales,
                  codes_.data.get(), stream);
    TRAINER_CUDA(cudaMemcpyAsync(outbox + coded.first_byte, codes_.data.get() + coded.first_byte,
                                 coded.bytes, cudaMemcpyDeviceToHost, stream));
    its.arrived.record(stream);
}

}  // namespace

std::shared_ptr<DeviceExchange> make_exchange(Context& context, SlabMath& math,
                                              const ParameterArena& arena) {
    return std::make_shared<Exchange>(context, math, arena);
}

}  // namespace trainer::cuda
