// The rules that update once a push: on_arrival (ASGD, and SSP with its gate) and the delay
// compensated ones (DC-ASGD, arXiv 1609.08326).
//
// A push is applied when all its ranges have come, so that every element of it meets the same
// model and the same learning rate. N pushes applied are a global step; during warm-up the pushes
// of a step are averaged as S-SGD's. A worker's pull is answered from a copy of its own, which is
// also G_bak(i): what the worker will compute its next gradient with.
#include <algorithm>
#include <cmath>
#include <limits>

#include "optim/shard.h"
#include "optim/shard_rules.h"

namespace trainer {

namespace {

class OnArrivalShard final : public Shard {
  public:
    OnArrivalShard(const ShardOptions& options, const Optimizer& optimizer,
                   const ParameterArena& arena, Range range)
        : Shard(options, optimizer, arena, range), workers_(static_cast<size_t>(options.workers)) {
        if (options.schedule.options().warmup_steps > 0)
            warm_up_ = make_average_shard(options, optimizer, arena, range);
        for (int worker = 0; worker < options.workers; ++worker)
            back_up(worker);
    }

    void push(int worker, int64_t step, Push push) override {
        if (options_.schedule.at(step).warm_up) {
            warm_up_->push(worker, step, std::move(push));
            steps_ = std::max(steps_, warm_up_->steps());
            return;
        }
        check_push(worker, step, push);
        Worker& from = workers_[static_cast<size_t>(worker)];
        const int64_t expected = std::max(from.pushed, options_.schedule.options().warmup_steps);
        if (step != expected)
            throw Error("worker " + std::to_string(worker) + " pushed step " +
                        std::to_string(step) + " where step " + std::to_string(expected) +
                        " is next");
        for (const Push& other : from.pieces)
            if (push.range.first < other.range.end() && other.range.first < push.range.end())
                throw Error("worker " + std::to_string(worker) + " pushed step " +
                            std::to_string(step) + " twice");
        from.elements += push.range.count;
        from.pieces.push_back(std::move(push));
        if (from.elements < range_.count)
            return;
        apply(worker, from);
        from.pieces.clear();
        from.elements = 0;
        from.pushed = step + 1;
        ++applied_;
        count_steps();
    }

    void leave(int worker) override {
        Shard::leave(worker);
        workers_[static_cast<size_t>(worker)].pieces.clear();
        workers_[static_cast<size_t>(worker)].elements = 0;
        if (members_ == 0)
            return;
        if (warm_up_) {
            warm_up_->leave(worker);
            steps_ = std::max(steps_, warm_up_->steps());
        }
        count_steps();
    }

    void set_members(int64_t step, const std::vector<bool>& members) override {
        for (size_t worker = 0; worker < members.size(); ++worker)
            if (members[worker] && !present_[worker])
                workers_[worker] = {step, 0, applied_, {}};
        Shard::set_members(step, members);
        if (warm_up_)
            warm_up_->set_members(step, members);
        count_steps();
    }

    void resume_at(int64_t step) override {
        Shard::resume_at(step);
        const int64_t warm_up = options_.schedule.options().warmup_steps;
        if (warm_up_)
            warm_up_->resume_at(std::min(step, warm_up));
        applied_ = std::max<int64_t>(step - warm_up, 0) * members_;
        for (Worker& worker : workers_)
            worker = {step, 0, applied_, {}};
    }

  protected:
    std::optional<std::span<const float>> answer(int worker, int64_t step) override {
        const int64_t warm_up = options_.schedule.options().warmup_steps;
        if (step <= warm_up) {
            if (step > steps_)
                return std::nullopt;
        } else {
            if (workers_[static_cast<size_t>(worker)].pushed < step)
                return std::nullopt;
            if (options_.staleness && step > slowest() + *options_.staleness)
                return std::nullopt;
        }
        return back_up(worker);
    }

  private:
    struct Worker {
        int64_t pushed = 0;     // its next push is of this step
        int64_t elements = 0;   // of it that have come
        int64_t pulled_at = 0;  // updates applied when it pulled last
        std::vector<Push> pieces;
    };

    // Steps completed by the worker that has completed the fewest, of those who are there.
    int64_t slowest() const {
        int64_t least = std::numeric_limits<int64_t>::max();
        for (size_t worker = 0; worker < workers_.size(); ++worker)
            if (present_[worker])
                least = std::min(least, workers_[worker].pushed);
        return std::max(least, options_.schedule.options().warmup_steps);
    }

    // As many pushes as there are workers are a step: the mean of how far each is.
    void count_steps() {
        const int64_t warm_up = options_.schedule.options().warmup_steps;
        int64_t sum = 0;
        for (size_t worker = 0; worker < workers_.size(); ++worker)
            if (present_[worker])
                sum += std::max<int64_t>(workers_[worker].pushed - warm_up, 0);
        if (sum > 0)
            steps_ = std::max(steps_, warm_up + sum / members_);
    }

    std::span<float> backup(int worker) const { return part("backup_" + std::to_string(worker)); }

    std::span<const float> back_up(int worker) {
        const auto weights = part(slab::weights);
        std::copy(weights.begin(), weights.end(), backup(worker).begin());
        workers_[static_cast<size_t>(worker)].pulled_at = applied_;
        return backup(worker);
    }

    void apply(int worker, const Worker& from) {
        const int64_t missed = applied_ - from.pulled_at;
        Staleness& staleness = staleness_[static_cast<size_t>(worker)];
        staleness.sum += missed;
        staleness.pushes += 1;
        staleness.largest = std::max(staleness.largest, missed);
        const double lr = options_.lr(steps_);
        for (const Push& piece : from.pieces) {
            sum_pushes({&piece, 1}, 1, [&](Range block) { compensate(worker, block); });
            optimizer_.update(arena_, piece.range, lr);
        }
    }

    // g <- g + λ g⊙g⊙(G - G_bak(i)); adaptive: λ = λ_0 / √(MS + ε), MS <- m MS + (1 - m) g⊙g.
    void compensate(int worker, Range block) const {
        using Rule = ShardOptions::Rule;
        if (options_.rule == Rule::on_arrival)
            return;
        const bool adaptive = options_.rule == Rule::delay_compensated_adaptive;
        float* gradients = arena_.slab<float>(slab::gradients).data();
        const float* weights = arena_.slab<float>(slab::weights).data();
        const float* before = backup(worker).data() - range_.first;
        float* mean_square = adaptive ? arena_.slab<float>(slab::mean_square).data() : nullptr;
        constexpr float epsilon = 1e-7F;
        const auto m = static_cast<float>(options_.m);
        for (int64_t i = block.first; i < block.end(); ++i) {
            const float g = gradients[i], square = g * g;
            auto lambda = static_cast<float>(options_.lambda);
            if (adaptive) {
                mean_square[i] = std::fma(m, mean_square[i], (1 - m) * square);
                lambda = static_cast<float>(options_.lambda0) / std::sqrt(mean_square[i] + epsilon);
            }
            gradients[i] = std::fma(lambda * square, weights[i] - before[i], g);
        }
    }

    std::unique_ptr<Shard> warm_up_;
    std::vector<Worker> workers_;
    int64_t applied_ = 0;  // pushes since the warm-up
};

}  // namespace

std::unique_ptr<Shard> make_on_arrival_shard(const ShardOptions& options,
                                             const Optimizer& optimizer,
                                             const ParameterArena& arena, Range range) {
    return std::make_unique<OnArrivalShard>(options, optimizer, arena, range);
}

}  // namespace trainer
