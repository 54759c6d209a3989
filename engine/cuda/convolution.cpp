// Convolutions by cuDNN (its API of before the graphs): activations in NHWC, filters packed as
// [outputs][rows][columns][inputs], channels padded; in bf16 the filter's gradient is bf16 too,
// summed in fp32, as that API has no other.
#include <array>

#include "engine/cuda/algorithms.h"
#include "engine/cuda/operations.h"

namespace trainer::cuda {

namespace {

// Owns one of cuDNN's descriptors.
template <typename Handle, cudnnStatus_t (*create)(Handle*), cudnnStatus_t (*destroy)(Handle)>
class Descriptor {
  public:
    Descriptor() { TRAINER_CUDA(create(&handle_)); }
    ~Descriptor() { static_cast<void>(destroy(handle_)); }
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    operator Handle() const { return handle_; }

  private:
    Handle handle_ = nullptr;
};

using TensorDescriptor =
    Descriptor<cudnnTensorDescriptor_t, cudnnCreateTensorDescriptor, cudnnDestroyTensorDescriptor>;
using FilterDescriptor =
    Descriptor<cudnnFilterDescriptor_t, cudnnCreateFilterDescriptor, cudnnDestroyFilterDescriptor>;
using ConvolutionDescriptor =
    Descriptor<cudnnConvolutionDescriptor_t, cudnnCreateConvolutionDescriptor,
               cudnnDestroyConvolutionDescriptor>;

cudnnDataType_t cudnn_type(DType type) {
    return type == DType::bf16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
}

void describe(const TensorDescriptor& descriptor, const Tensor& tensor) {
    TRAINER_CUDA(cudnnSetTensor4dDescriptor(
        descriptor, CUDNN_TENSOR_NHWC, cudnn_type(tensor.type), static_cast<int>(tensor.samples),
        static_cast<int>(tensor.stored), static_cast<int>(tensor.height),
        static_cast<int>(tensor.width)));
}

// cuDNN's three kinds of results hold the same things.
template <typename Results>
std::vector<Candidate> candidates_of(const Results& results, int count) {
    std::vector<Candidate> candidates;
    for (int i = 0; i < count; ++i) {
        const auto& result = results[static_cast<size_t>(i)];
        candidates.push_back({{static_cast<int>(result.algo), result.mathType},
                              result.status == CUDNN_STATUS_SUCCESS,
                              result.determinism == CUDNN_DETERMINISTIC,
                              result.time,
                              result.memory});
    }
    return candidates;
}

constexpr int most_results = 32;  // more than any pass has algorithms, in each math type

class Convolution final : public CudaOperation {
  public:
    Convolution(Context& context, const Binding& binding);

    void load_weights() override {
        line_up_pack(form_, weights_, packed_.data.get(), type_, context_.stream());
    }
    void forward(Lane&) override;
    void backward(Lane&) override;
    std::string implementation() const override { return implementation_; }

  private:
    // A pass, with the algorithm that was found for it.
    struct Pass {
        ConvolutionDescriptor convolution;
        Algorithm algorithm;
    };

    void describe_pass(const Pass& pass) const;
    void choose(Pass& pass, const std::string& name,
                const std::function<cudnnStatus_t(const Algorithm&, size_t*)>& workspace_of,
                const std::function<std::vector<Candidate>()>& measure);
    void choose_forward();
    void choose_backward_data();
    void choose_backward_filter();
    std::string shape_text() const;
    size_t packed_bytes() const {
        return static_cast<size_t>(form_.packed_elements()) * size_of(type_);
    }

    DType type_;
    FilterForm form_;
    TensorDescriptor x_, y_;
    FilterDescriptor filter_;
    Memory packed_, packed_gradient_;
    const float* weights_;  // of the slab as the device sees it
    const float* bias_;     // nullptr where there is none
    SumSpace space_;
    Pass forward_, backward_data_, backward_filter_;
    std::string implementation_;
};

Convolution::Convolution(Context& context, const Binding& binding)
    : CudaOperation(context, binding),
      type_(context.activation()),
      form_{.outputs = node_.shape[0],
            .inputs = parameter_info(binding, 0).shape[1],
            .area = node_.kernel * node_.kernel,
            .stored_outputs = binding.output->channels,
            .stored_inputs = binding.inputs[0]->channels},
      packed_(context.allocate(packed_bytes())),
      packed_gradient_(context.allocate(binding.training ? packed_bytes() : 0)),
      weights_(parameter(0)),
      bias_(node_.has_bias ? parameter(1) : nullptr) {
    describe(x_, input());
    describe(y_, output());
    TRAINER_CUDA(cudnnSetFilter4dDescriptor(
        filter_, cudnn_type(type_), CUDNN_TENSOR_NHWC, static_cast<int>(form_.stored_outputs),
        static_cast<int>(form_.stored_inputs), static_cast<int>(node_.kernel),
        static_cast<int>(node_.kernel)));
    if (binding.training && node_.has_bias)
        space_ = context.sum_space(binding.output->channels);
    static_cast<void>(context.workspace());  // now, since a step allocates nothing
    choose_forward();
    if (!binding.training)
        return;
    choose_backward_filter();
    if (wants_input_gradient())
        choose_backward_data();
}

void Convolution::describe_pass(const Pass& pass) const {
    const auto padding = static_cast<int>(node_.padding), stride = static_cast<int>(node_.stride);
    TRAINER_CUDA(cudnnSetConvolution2dDescriptor(pass.convolution, padding, padding, stride, stride,
                                                 1, 1, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT));
    TRAINER_CUDA(cudnnSetConvolutionMathType(pass.convolution, context_.algorithms().math()));
}

std::string Convolution::shape_text() const {
    const Tensor x = input();
    std::string text = type_ == DType::bf16 ? "bf16" : "fp32";
    for (const int64_t extent : {x.samples, x.height, x.width, form_.stored_inputs,
                                 form_.stored_outputs, node_.kernel, node_.stride, node_.padding})
        text += "x" + std::to_string(extent);
    return text;
}

void Convolution::choose(
    Pass& pass, const std::string& name,
    const std::function<cudnnStatus_t(const Algorithm&, size_t*)>& workspace_of,
    const std::function<std::vector<Candidate>()>& measure) {
    describe_pass(pass);
    const auto usable = [&](const Algorithm& algorithm) {
        size_t bytes = 0;
        return cudnnSetConvolutionMathType(pass.convolution, algorithm.math) ==
                   CUDNN_STATUS_SUCCESS &&
               workspace_of(algorithm, &bytes) == CUDNN_STATUS_SUCCESS &&
               bytes <= context_.workspace_bytes();
    };
    pass.algorithm = context_.algorithms().find(name + "/" + shape_text(), usable, [&] {
        TRAINER_CUDA(cudnnSetConvolutionMathType(pass.convolution, context_.algorithms().math()));
        return measure();
    });
    TRAINER_CUDA(cudnnSetConvolutionMathType(pass.convolution, pass.algorithm.math));
    implementation_ += (implementation_.empty() ? "cudnn:" : " ") + name + "_" +
                       std::to_string(pass.algorithm.number);
}

void Convolution::choose_forward() {
    choose(
        forward_, "forward",
        [&](const Algorithm& algorithm, size_t* bytes) {
            return cudnnGetConvolutionForwardWorkspaceSize(
                context_.cudnn(), x_, filter_, forward_.convolution, y_,
                static_cast<cudnnConvolutionFwdAlgo_t>(algorithm.number), bytes);
        },
        [&] {
            std::array<cudnnConvolutionFwdAlgoPerf_t, most_results> results{};
            int count = 0;
            TRAINER_CUDA(cudnnFindConvolutionForwardAlgorithmEx(
                context_.cudnn(), x_, input().data, filter_, packed_.data.get(),
                forward_.convolution, y_, output().data, most_results, &count, results.data(),
                context_.workspace(), context_.workspace_bytes()));
            return candidates_of(results, count);
        });
}

void Convolution::choose_backward_data() {
    choose(
        backward_data_, "data",
        [&](const Algorithm& algorithm, size_t* bytes) {
            return cudnnGetConvolutionBackwardDataWorkspaceSize(
                context_.cudnn(), filter_, y_, backward_data_.convolution, x_,
                static_cast<cudnnConvolutionBwdDataAlgo_t>(algorithm.number), bytes);
        },
        [&] {
            std::array<cudnnConvolutionBwdDataAlgoPerf_t, most_results> results{};
            int count = 0;
            TRAINER_CUDA(cudnnFindConvolutionBackwardDataAlgorithmEx(
                context_.cudnn(), filter_, packed_.data.get(), y_, output_gradient().data,
                backward_data_.convolution, x_, input_gradient().data, most_results, &count,
                results.data(), context_.workspace(), context_.workspace_bytes()));
            return candidates_of(results, count);
        });
}

void Convolution::choose_backward_filter() {
    choose(
        backward_filter_, "filter",
        [&](const Algorithm& algorithm, size_t* bytes) {
            return cudnnGetConvolutionBackwardFilterWorkspaceSize(
                context_.cudnn(), x_, y_, backward_filter_.convolution, filter_,
                static_cast<cudnnConvolutionBwdFilterAlgo_t>(algorithm.number), bytes);
        },
        [&] {
            std::array<cudnnConvolutionBwdFilterAlgoPerf_t, most_results> results{};
            int count = 0;
            TRAINER_CUDA(cudnnFindConvolutionBackwardFilterAlgorithmEx(
                context_.cudnn(), x_, input().data, y_, output_gradient().data,
                backward_filter_.convolution, filter_, packed_gradient_.data.get(), most_results,
                &count, results.data(), context_.workspace(), context_.workspace_bytes()));
            return candidates_of(results, count);
        });
}

// Results overwrite: alpha 1, beta 0, on the host.
constexpr float one = 1, zero = 0;

void Convolution::forward(Lane&) {
    TRAINER_CUDA(cudnnConvolutionForward(
        context_.cudnn(), &one, x_, input().data, filter_, packed_.data.get(), forward_.convolution,
        static_cast<cudnnConvolutionFwdAlgo_t>(forward_.algorithm.number), context_.workspace(),
        context_.workspace_bytes(), &zero, y_, output().data));
    if (bias_ != nullptr)
        line_up_bias(output(), bias_, context_.stream());
}

void Convolution::backward(Lane&) {
    const Tensor dy = output_gradient();
    TRAINER_CUDA(cudnnConvolutionBackwardFilter(
        context_.cudnn(), &one, x_, input().data, y_, dy.data, backward_filter_.convolution,
        static_cast<cudnnConvolutionBwdFilterAlgo_t>(backward_filter_.algorithm.number),
        context_.workspace(), context_.workspace_bytes(), &zero, filter_,
        packed_gradient_.data.get()));
    line_up_unpack(form_, packed_gradient_.data.get(), type_, gradient(0), context_.stream());
    if (bias_ != nullptr)
        line_up_channel_sums(dy, gradient(1), space_, context_.stream());
    if (wants_input_gradient())
        TRAINER_CUDA(cudnnConvolutionBackwardData(
            context_.cudnn(), &one, filter_, packed_.data.get(), y_, dy.data,
            backward_data_.convolution,
            static_cast<cudnnConvolutionBwdDataAlgo_t>(backward_data_.algorithm.number),
            context_.workspace(), context_.workspace_bytes(), &zero, x_, input_gradient().data));
}

}  // namespace

std::unique_ptr<Operation> build_convolution(Context& context, const Binding& binding) {
    return std::make_unique<Convolution>(context, binding);
}

}  // namespace trainer::cuda
