#include "optim/sgd.h"

#include <algorithm>
#include <type_traits>

#include "optim/update.h"

namespace trainer {

Optimizer::Optimizer(const OptimizerOptions& options, const TensorTable& table, bool by_tensor)
    : options_(options) {
    const auto is_frozen = [&](const TensorInfo& tensor) {
        return std::any_of(
            options.frozen.begin(), options.frozen.end(),
            [&](const std::string& prefix) { return tensor.name.starts_with(prefix); });
    };
    for (const TensorInfo& tensor : table.tensors()) {
        starts_.push_back(tensor.offset);
        if (is_frozen(tensor))
            continue;
        const bool decay = tensor.decay || options.decay_bn_bias;
        if (!by_tensor && !segments_.empty() && segments_.back().decay == decay &&
            segments_.back().range.end() == tensor.offset)
            segments_.back().range.count += tensor.size();
        else
            segments_.push_back({tensor.range(), decay});
    }
    starts_.push_back(table.size());
}

void Optimizer::update(const ParameterArena& arena, Range range, double lr,
                       SlabMath* device) const {
    // The first segment that reaches into the range.
    auto segment = std::partition_point(
        segments_.begin(), segments_.end(),
        [&](const Segment& other) { return other.range.end() <= range.first; });
    for (; segment != segments_.end() && segment->range.first < range.end(); ++segment) {
        const int64_t first = std::max(segment->range.first, range.first);
        const int64_t end = std::min(segment->range.end(), range.end());
        update_segment(arena, {{first, end - first}, segment->decay}, lr, device);
    }
    if (device != nullptr)
        device->wait();
}

Range Optimizer::part(Range range, int64_t index, int64_t parts) const {
    const Range even = part_of(range.count, index, parts);
    if (!whole_tensors())
        return {range.first + even.first, even.count};
    // Cut at the first tensor that starts at or after each even cut.
    const auto cut = [&](int64_t at) {
        return at >= range.end() ? range.end()
                                 : *std::lower_bound(starts_.begin(), starts_.end(), at);
    };
    const int64_t first = cut(range.first + even.first);
    return {first, cut(range.first + even.end()) - first};
}

namespace {

// On the device, where there is one; it computes in float.
template <typename T, typename Update>
void update_on(SlabMath* device, const Update& update, T* weights, T* velocity, const T* gradients,
               int64_t count) {
    if constexpr (std::is_same_v<T, float>) {
        if (device != nullptr) {
            device->update(update, weights, velocity, gradients, count);
            return;
        }
    }
    update_elements(update, weights, velocity, gradients, count);
}

template <typename T>
double squares_on(SlabMath* device, const T* values, int64_t count) {
    if constexpr (std::is_same_v<T, float>)
        if (device != nullptr)
            return device->sum_of_squares(values, count);
    return sum_of_squares(values, count);
}

/// An optimizer whose update is one functor of optim/update.h, alike for every element.
template <template <typename> class Update>
class ElementwiseOptimizer final : public Optimizer {
  public:
    ElementwiseOptimizer(const OptimizerOptions& options, const TensorTable& table)
        : Optimizer(options, table, false) {}
    bool whole_tensors() const override { return false; }

  protected:
    void update_segment(const ParameterArena& arena, Segment part, double lr,
                        SlabMath* device) const override {
        if (arena.type() == DType::f64)
            run<double>(arena, part, lr, nullptr);
        else
            run<float>(arena, part, lr, device);
    }

  private:
    template <typename T>
    void run(const ParameterArena& arena, Segment part, double lr, SlabMath* device) const {
        const Update<T> update{static_cast<T>(lr), static_cast<T>(options_.momentum),
                               static_cast<T>(part.decay ? options_.weight_decay : 0)};
        const int64_t first = part.range.first;
        update_on(device, update, arena.slab<T>(slab::weights).data() + first,
                  arena.slab<T>(slab::momentum).data() + first,
                  arena.slab<T>(slab::gradients).data() + first, part.range.count);
    }
};

class LarsOptimizer final : public Optimizer {
  public:
    LarsOptimizer(const OptimizerOptions& options, const TensorTable& table)
        : Optimizer(options, table, true) {}
    bool whole_tensors() const override { return true; }

  protected:
    void update_segment(const ParameterArena& arena, Segment part, double lr,
                        SlabMath* device) const override {
        if (arena.type() == DType::f64)
            run<double>(arena, part, lr, nullptr);
        else
            run<float>(arena, part, lr, device);
    }

  private:
    template <typename T>
    void run(const ParameterArena& arena, Segment part, double lr, SlabMath* device) const {
        const int64_t count = part.range.count;
        T* weights = arena.slab<T>(slab::weights).data() + part.range.first;
        T* velocity = arena.slab<T>(slab::momentum).data() + part.range.first;
        const T* gradients = arena.slab<T>(slab::gradients).data() + part.range.first;
        const double decay = part.decay ? options_.weight_decay : 0;
        const double rate =
            part.decay ? lr * local_rate(std::sqrt(squares_on(device, weights, count)),
                                         std::sqrt(squares_on(device, gradients, count)), decay)
                       : lr;
        update_on(device,
                  LarsUpdate<T>{static_cast<T>(rate), static_cast<T>(options_.momentum),
                                static_cast<T>(decay)},
                  weights, velocity, gradients, count);
    }

    /// Equation 6 of the paper; 1 where a norm is zero, so that zero weights can leave zero.
    double local_rate(double weight_norm, double gradient_norm, double decay) const {
        if (weight_norm == 0 || gradient_norm == 0)
            return 1;
        return options_.trust * weight_norm / (gradient_norm + decay * weight_norm);
    }
};

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options,
                                          const TensorTable& table) {
    if (options.name == "sgd")
        return std::make_unique<ElementwiseOptimizer<MomentumUpdate>>(options, table);
    if (options.name == "nesterov")
        return std::make_unique<ElementwiseOptimizer<NesterovUpdate>>(options, table);
    if (options.name == "lars")
        return std::make_unique<LarsOptimizer>(options, table);
    throw UsageError("optim.name: '" + options.name + "' is none of sgd, nesterov, lars");
}

}  // namespace trainer
