// Linear layers by cuBLASLt. The weights are packed with their columns in the order in which the
// input lies, so that an image [h][w][c] is read as the row that it is; its padding meets zeros.
//
// cuBLAS sees matrices by columns: a row-major X [n, k] is its X' [k, n] with leading extent k.
#include "engine/cuda/operations.h"

namespace trainer::cuda {

namespace {

cudaDataType_t cublas_type(DType type) {
    return type == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F;
}

// A matrix as cuBLAS sees it, without gaps between columns.
struct Matrix {
    DType type;
    int64_t rows, columns;
    bool transposed = false;
};

// Descriptors, each destroyed by whoever has it.
template <auto destroy>
struct Destroy {
    template <typename Opaque>
    void operator()(Opaque* descriptor) const {
        static_cast<void>(destroy(descriptor));
    }
};
using ProductDescriptor =
    std::unique_ptr<cublasLtMatmulDescOpaque_t, Destroy<cublasLtMatmulDescDestroy>>;
using Layout = std::unique_ptr<cublasLtMatrixLayoutOpaque_t, Destroy<cublasLtMatrixLayoutDestroy>>;
using Preference =
    std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, Destroy<cublasLtMatmulPreferenceDestroy>>;

Layout layout_of(const Matrix& matrix) {
    cublasLtMatrixLayout_t layout = nullptr;
    TRAINER_CUDA(cublasLtMatrixLayoutCreate(&layout, cublas_type(matrix.type),
                                            static_cast<uint64_t>(matrix.rows),
                                            static_cast<uint64_t>(matrix.columns), matrix.rows));
    return Layout(layout);
}

// D = op(A) op(B), in fp32 inside, with an algorithm chosen when it is made.
class Product {
  public:
    Product(Context& context, const Matrix& a, const Matrix& b, const Matrix& d)
        : context_(context),
          product_(
              describe(context.options().tf32 && a.type == DType::f32 && b.type == DType::f32)),
          a_(layout_of(a)),
          b_(layout_of(b)),
          d_(layout_of(d)) {
        set_transposed(CUBLASLT_MATMUL_DESC_TRANSA, a.transposed);
        set_transposed(CUBLASLT_MATMUL_DESC_TRANSB, b.transposed);
        choose();
    }

    // REQUIRES: all at multiples of 16 bytes.
    void line_up(const void* a, const void* b, void* d) const {
        constexpr float one = 1, zero = 0;
        TRAINER_CUDA(cublasLtMatmul(context_.cublas(), product_.get(), &one, a, a_.get(), b,
                                    b_.get(), &zero, d, d_.get(), d, d_.get(), &algorithm_,
                                    context_.workspace(), context_.workspace_bytes(),
                                    context_.stream()));
    }

  private:
    static ProductDescriptor describe(bool tf32) {
        cublasLtMatmulDesc_t product = nullptr;
        TRAINER_CUDA(cublasLtMatmulDescCreate(
            &product, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F));
        return ProductDescriptor(product);
    }

    void set_transposed(cublasLtMatmulDescAttributes_t which, bool transposed) {
        const int32_t operation = transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
        TRAINER_CUDA(
            cublasLtMatmulDescSetAttribute(product_.get(), which, &operation, sizeof operation));
    }

    void choose() {
        static_cast<void>(context_.workspace());  // now, since a step allocates nothing
        cublasLtMatmulPreference_t preference = nullptr;
        TRAINER_CUDA(cublasLtMatmulPreferenceCreate(&preference));
        const Preference owner(preference);
        const auto set = [&](cublasLtMatmulPreferenceAttributes_t which, auto value) {
            TRAINER_CUDA(
                cublasLtMatmulPreferenceSetAttribute(preference, which, &value, sizeof value));
        };
        set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{context_.workspace_bytes()});
        for (const auto which : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                                 CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                                 CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                                 CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
            set(which, uint32_t{16});
        cublasLtMatmulHeuristicResult_t result{};
        int count = 0;
        TRAINER_CUDA(cublasLtMatmulAlgoGetHeuristic(context_.cublas(), product_.get(), a_.get(),
                                                    b_.get(), d_.get(), d_.get(), preference, 1,
                                                    &result, &count));
        if (count == 0)
            throw Error("cuBLAS has no algorithm for the product of a linear layer");
        TRAINER_CUDA(result.state);
        algorithm_ = result.algo;
    }

    Context& context_;
    ProductDescriptor product_;
    Layout a_, b_, d_;
    cublasLtMatmulAlgo_t algorithm_{};
};

class Linear final : public CudaOperation {
  public:
    Linear(Context& context, const Binding& binding);

    void load_weights() override {
        line_up_pack(form_, weights_, packed_.data.get(), type_, context_.stream());
    }
    void forward(Lane&) override;
    void backward(Lane&) override;
    std::string implementation() const override { return "cublasLt"; }

  private:
    int64_t width() const { return form_.area * form_.stored_inputs; }
    size_t packed_elements() const { return static_cast<size_t>(form_.packed_elements()); }
    // The gradient of the output in the type of activations.
    const void* narrowed_gradient() const;

    DType type_;
    FilterForm form_;
    Memory packed_, packed_gradient_, narrow_;
    const float *weights_, *bias_;
    SumSpace space_;
    std::unique_ptr<Product> forward_, backward_data_, backward_weights_;
};

FilterForm form_of(const Binding& binding) {
    const Tensor x = tensor_of(*binding.inputs[0], binding.batch);
    const int64_t outputs = binding.node->shape[0];
    return {.outputs = outputs,
            .inputs = x.channels,
            .area = x.height * x.width,
            .stored_outputs = outputs,
            .stored_inputs = x.stored};
}

Linear::Linear(Context& context, const Binding& binding)
    : CudaOperation(context, binding),
      type_(context.activation()),
      form_(form_of(binding)),
      packed_(context.allocate(packed_elements() * size_of(type_))),
      weights_(parameter(0)),
      bias_(parameter(1)) {
    const int64_t outputs = form_.outputs, batch = binding.batch;
    // Y' [outputs, batch] = W X', with W' [width, outputs] and X' [width, batch] in memory.
    const Matrix weights{type_, width(), outputs}, x{type_, width(), batch};
    const Matrix dy{type_, outputs, batch};
    Matrix weights_transposed = weights, dy_transposed = dy;
    weights_transposed.transposed = dy_transposed.transposed = true;
    forward_ = std::make_unique<Product>(context, weights_transposed, x,
                                         Matrix{binding.output->type, outputs, batch});
    if (!binding.training)
        return;
    packed_gradient_ = context.allocate(packed_elements() * sizeof(float));
    space_ = context.sum_space(outputs);
    if (binding.output->type != type_)
        narrow_ = context.allocate(static_cast<size_t>(batch * outputs) * size_of(type_));
    // W' gradient [width, outputs] = X' dY; X' gradient [width, batch] = W' dY'.
    backward_weights_ =
        std::make_unique<Product>(context, x, dy_transposed, Matrix{DType::f32, width(), outputs});
    if (wants_input_gradient())
        backward_data_ = std::make_unique<Product>(context, weights, dy, x);
}

void Linear::forward(Lane&) {
    forward_->line_up(packed_.data.get(), input().data, output().data);
    line_up_bias(output(), bias_, context_.stream());
}

const void* Linear::narrowed_gradient() const {
    const Tensor dy = output_gradient();
    if (narrow_.bytes == 0)
        return dy.data;
    line_up_narrow(static_cast<const float*>(dy.data), reinterpret_cast<Bf16*>(narrow_.data.get()),
                   dy.elements(), context_.stream());
    return narrow_.data.get();
}

void Linear::backward(Lane&) {
    const void* const dy = narrowed_gradient();
    backward_weights_->line_up(input().data, dy, packed_gradient_.data.get());
    line_up_unpack(form_, packed_gradient_.data.get(), DType::f32, gradient(0), context_.stream());
    line_up_channel_sums(output_gradient(), gradient(1), space_, context_.stream());
    if (backward_data_)
        backward_data_->line_up(packed_.data.get(), dy, input_gradient().data);
}

}  // namespace

std::unique_ptr<Operation> build_linear(Context& context, const Binding& binding) {
    return std::make_unique<Linear>(context, binding);
}

}  // namespace trainer::cuda
