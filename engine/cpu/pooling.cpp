// Max pooling over windows, and average pooling over whole planes.
#include <algorithm>
#include <cstring>
#include <limits>

#include "engine/cpu/operations.h"

namespace trainer::cpu {

namespace {

// Padding never wins. Of equal values the first in row order takes the gradient; a NaN wins, so
// that it is seen further on.
template <typename T, int B>
class MaxPool final : public PlainOperation {
  public:
    MaxPool(Context& context, const Binding& binding)
        : PlainOperation(context, binding),
          in_(binding.inputs[0]->shape),
          blocks_(binding.output->channels / B),
          winners_(static_cast<size_t>(
              binding.training ? binding.batch * blocks_ * plane(node_.shape) * B : 0)),
          row_windows_(windows_around(in_[1], node_.shape[1])),
          column_windows_(windows_around(in_[2], node_.shape[2])) {
        check(node_.kernel <= 16, node_.name + ": a window of more than 16 x 16");
    }

    void forward(Lane& lane) override {
        const Range part = samples(lane);
        for (int64_t n = part.first; n < part.end(); ++n)
            for (int64_t b = 0; b < blocks_; ++b)
                pool(binding_.inputs[0]->sample<T>(n) + b * plane(in_) * B,
                     binding_.output->sample<T>(n) + b * plane(node_.shape) * B, winners(n, b));
    }

    void backward(Lane& lane) override {
        if (!wants_input_gradient())
            return;
        const Range part = samples(lane);
        for (int64_t n = part.first; n < part.end(); ++n)
            for (int64_t b = 0; b < blocks_; ++b)
                spread(binding_.output_gradients[0]->sample<T>(n) + b * plane(node_.shape) * B,
                       winners(n, b),
                       binding_.input_gradients[0]->sample<T>(n) + b * plane(in_) * B);
    }

  private:
    static int64_t plane(const Shape& shape) { return shape[1] * shape[2]; }

    // The place within its window, row after row, of each output's winner; nullptr in inference.
    uint8_t* winners(int64_t n, int64_t block) {
        return binding_.training ? winners_.data() + (n * blocks_ + block) * plane(node_.shape) * B
                                 : nullptr;
    }

    void pool(const T* x, T* y, uint8_t* winners) const {
        for (int64_t row = 0; row < node_.shape[1]; ++row)
            for (int64_t column = 0; column < node_.shape[2]; ++column) {
                pool_window(x, row, column, y, winners);
                y += B;
                winners += winners ? B : 0;
            }
    }

    void pool_window(const T* x, int64_t row, int64_t column, T* y, uint8_t* winner) const {
        const int64_t top = row * node_.stride - node_.padding;
        const int64_t left = column * node_.stride - node_.padding;
        FloatBlock<B> best = FloatBlock<B>{} - std::numeric_limits<float>::infinity();
        typename Simd<B>::Int best_at{};
        bool first = true;
        for (int64_t i = std::max<int64_t>(0, -top); i < std::min(node_.kernel, in_[1] - top); ++i)
            for (int64_t j = std::max<int64_t>(0, -left); j < std::min(node_.kernel, in_[2] - left);
                 ++j) {
                const FloatBlock<B> value = load<B>(x + ((top + i) * in_[2] + left + j) * B);
                const auto at =
                    typename Simd<B>::Int{} + static_cast<int32_t>(i * node_.kernel + j);
                const auto wins = (value > best) | (value != value);
                best = first ? value : wins ? value : best;
                best_at = first ? at : wins ? at : best_at;
                first = false;
            }
        store<B>(y, best);
        if (winner) {
            const auto bytes = __builtin_convertvector(best_at, typename Simd<B>::Byte);
            std::memcpy(winner, &bytes, sizeof bytes);
        }
    }

    // Each input gathers what the windows around it give, so that sums are taken in fp32.
    void spread(const T* dy, const uint8_t* winners, T* dx) const {
        for (int64_t row = 0; row < in_[1]; ++row)
            for (int64_t column = 0; column < in_[2]; ++column) {
                store<B>(dx, gathered(dy, winners, row, column));
                dx += B;
            }
    }

    FloatBlock<B> gathered(const T* dy, const uint8_t* winners, int64_t row, int64_t column) const {
        const Windows& rows = row_windows_[static_cast<size_t>(row)];
        const Windows& columns = column_windows_[static_cast<size_t>(column)];
        FloatBlock<B> sum{};
        for (int64_t i = rows.first; i < rows.end; ++i)
            for (int64_t j = columns.first; j < columns.end; ++j) {
                const int64_t at = (i * node_.shape[2] + j) * B;
                const int64_t here = (row + node_.padding - i * node_.stride) * node_.kernel +
                                     column + node_.padding - j * node_.stride;
                typename Simd<B>::Byte winner;
                std::memcpy(&winner, winners + at, sizeof winner);
                const auto won = __builtin_convertvector(winner, typename Simd<B>::Int) ==
                                 static_cast<int32_t>(here);
                sum += won ? load<B>(dy + at) : FloatBlock<B>{};
            }
        return sum;
    }

    // The windows [first, end) that a row (or column) of the input lies in.
    struct Windows {
        int64_t first, end;
    };
    std::vector<Windows> windows_around(int64_t in_extent, int64_t out_extent) const {
        std::vector<Windows> result;
        for (int64_t at = node_.padding; at < in_extent + node_.padding; ++at)
            result.push_back({at < node_.kernel ? 0 : (at - node_.kernel) / node_.stride + 1,
                              std::min(at / node_.stride + 1, out_extent)});
        return result;
    }

    const Shape in_;
    int64_t blocks_;
    std::vector<uint8_t> winners_;
    std::vector<Windows> row_windows_, column_windows_;
};

template <typename T, int B>
class GlobalAveragePool final : public PlainOperation {
  public:
    GlobalAveragePool(Context& context, const Binding& binding)
        : PlainOperation(context, binding),
          channels_(node_.shape[0]),
          positions_(binding.inputs[0]->shape[1] * binding.inputs[0]->shape[2]) {}

    void forward(Lane& lane) override {
        if (binding_.output->type == DType::f32)
            average<float>(lane);
        else
            average<T>(lane);
    }

    void backward(Lane& lane) override {
        if (!wants_input_gradient())
            return;
        if (binding_.output->type == DType::f32)
            spread<float>(lane);
        else
            spread<T>(lane);
    }

  private:
    template <typename Row>
    void average(const Lane& lane) const {
        const Range part = samples(lane);
        for (int64_t n = part.first; n < part.end(); ++n)
            for (int64_t c = 0; c < channels_; c += B) {
                const T* const x = binding_.inputs[0]->sample<T>(n) + c * positions_;
                FloatBlock<B> sum{};
                for (int64_t i = 0; i < positions_; ++i)
                    sum += load<B>(x + i * B);
                sum /= static_cast<float>(positions_);
                Row* const y = binding_.output->sample<Row>(n) + c;
                for (int64_t j = 0; j < std::min<int64_t>(B, channels_ - c); ++j)
                    assign(y[j], sum[j]);
            }
    }

    template <typename Row>
    void spread(const Lane& lane) const {
        const Range part = samples(lane);
        for (int64_t n = part.first; n < part.end(); ++n)
            for (int64_t c = 0; c < channels_; c += B) {
                const Row* const dy = binding_.output_gradients[0]->sample<Row>(n) + c;
                FloatBlock<B> value{};  // zero in the padding
                for (int64_t j = 0; j < std::min<int64_t>(B, channels_ - c); ++j)
                    value[j] = to_float(dy[j]) / static_cast<float>(positions_);
                T* const dx = binding_.input_gradients[0]->sample<T>(n) + c * positions_;
                for (int64_t i = 0; i < positions_; ++i)
                    store<B>(dx + i * B, value);
            }
    }

    int64_t channels_, positions_;
};

}  // namespace

std::unique_ptr<Operation> build_max_pool(Context& context, const Binding& binding) {
    return for_element_and_block(context, [&]<typename T, int B>() -> std::unique_ptr<Operation> {
        return std::make_unique<MaxPool<T, B>>(context, binding);
    });
}

std::unique_ptr<Operation> build_global_average_pool(Context& context, const Binding& binding) {
    return for_element_and_block(context, [&]<typename T, int B>() -> std::unique_ptr<Operation> {
        return std::make_unique<GlobalAveragePool<T, B>>(context, binding);
    });
}

}  // namespace trainer::cpu
