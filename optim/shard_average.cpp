// The rules that wait for all N workers: average (S-SGD and the delayed family) and
// average_weights (Local SGD, arXiv 1805.09767).
//
// A range is updated as soon as it has come from all workers, summed in worker order; the step is
// complete when all ranges are. Answers come from the weights themselves where every worker waits
// for its pull before it pushes again; in the delayed family a worker may be a step further, so
// they come from one of two snapshots: that of G(t+2) is made when all have pushed step t+1 and
// so have received G(t), whose place it takes.
#include <algorithm>
#include <iterator>

#include "optim/shard.h"
#include "optim/shard_rules.h"

namespace trainer {

namespace {

// Steps that may be under way at once: a worker that does not wait is at most k steps ahead of the
// others, whose pushes its last pull needed.
int64_t open_steps(const StepScheduleOptions& schedule) {
    return std::max(schedule.delay_steps, schedule.local_steps) + 4;
}

class AverageShard final : public Shard {
  public:
    AverageShard(const ShardOptions& options, const Optimizer& optimizer,
                 const ParameterArena& arena, Range range)
        : Shard(options, optimizer, arena, range),
          delayed_(options.schedule.options().kind == StepScheduleOptions::Kind::delayed),
          open_(static_cast<size_t>(open_steps(options.schedule.options()))) {}

    void push(int worker, int64_t step, Push push) override {
        check_push(worker, step, push);
        if (options_.backup > 0 && step < steps_) {
            ++late_;
            return;
        }
        Gate& gate = gate_of(worker, step, push.range);
        if (gate.closed) {
            ++late_;
            return;
        }
        Push& mine = gate.pushes[static_cast<size_t>(worker)];
        if (mine.range.count != 0)
            throw Error("worker " + std::to_string(worker) + " pushed step " +
                        std::to_string(step) + " twice");
        mine = std::move(push);
        ++gate.arrived;
        if (!may_close(gate))
            return;
        update(step, gate);
        advance();
    }

    void leave(int worker) override {
        Shard::leave(worker);
        if (members_ == 0)
            return;
        for (int64_t step = steps_; step < steps_ + static_cast<int64_t>(open_.size()); ++step)
            for (Gate& gate : open(step).gates)
                if (gate.arrived > 0 && may_close(gate))
                    update(step, gate);
        advance();
    }

    void resume_at(int64_t step) override {
        Shard::resume_at(step);
        open_ = std::vector<Step>(open_.size());
        if (delayed_)
            take_snapshot();
    }

  protected:
    std::optional<std::span<const float>> answer(int /*worker*/, int64_t step) override {
        if (step > steps_)
            return std::nullopt;
        if (!delayed_ || step == 0 || options_.schedule.at(step - 1).warm_up)
            return part(slab::weights);
        return part(snapshot_name(step));
    }

  private:
    // What has come of one range in one step.
    struct Gate {
        Range range;
        int arrived = 0;
        std::vector<Push> pushes;  // by worker; an empty range: not yet there
        bool closed = false;       // without some (backup), who are still to come
    };
    struct Step {
        std::vector<Gate> gates;  // kept from step to step, since the ranges come again
        int64_t updated = 0;      // elements
    };

    Step& open(int64_t step) { return open_[static_cast<size_t>(step) % open_.size()]; }

    static std::string_view snapshot_name(int64_t step) {
        return step % 2 == 0 ? "snapshot_0" : "snapshot_1";
    }

    Gate& gate_of(int worker, int64_t step, Range range) {
        if (step < steps_ || step >= steps_ + static_cast<int64_t>(open_.size()) ||
            !options_.schedule.at(step).push)
            throw Error("worker " + std::to_string(worker) + " pushed step " +
                        std::to_string(step) + " while the servers are at step " +
                        std::to_string(steps_));
        auto& gates = open(step).gates;
        Gate* mine = nullptr;
        for (Gate& gate : gates) {
            if (gate.range == range)
                mine = &gate;
            else if (gate.arrived > 0 && gate.range.first < range.end() &&
                     range.first < gate.range.end())
                throw Error("the workers cut their pushes of step " + std::to_string(step) +
                            " differently; they are not of one job");
        }
        if (mine == nullptr) {
            gates.push_back(
                {range, 0, std::vector<Push>(static_cast<size_t>(options_.workers)), false});
            mine = &gates.back();
        }
        return *mine;
    }

    /// Whether as many have pushed as a step needs, of those who are there.
    bool may_close(const Gate& gate) const {
        const int enough = std::max(members_ - options_.backup, 1);
        if (gate.arrived < enough)
            return false;
        int there = 0;
        for (size_t worker = 0; worker < gate.pushes.size(); ++worker)
            there += present_[worker] && gate.pushes[worker].range.count != 0 ? 1 : 0;
        return there >= enough;
    }

    /// The pushes of a gate, in the order of ranks.
    std::span<const Push> pushes_of(int64_t step, const Gate& gate) {
        std::span<const Push> pushes = gate.pushes;
        if (gate.arrived < options_.workers) {
            some_.clear();
            std::ranges::copy_if(gate.pushes, std::back_inserter(some_),
                                 [](const Push& push) { return push.range.count != 0; });
            pushes = some_;
        }
        if (std::ranges::any_of(
                pushes, [&](const Push& other) { return other.codec != pushes.front().codec; }))
            throw Error("the workers encoded their pushes of step " + std::to_string(step) +
                        " differently; they are not of one job");
        return pushes;
    }

    void update(int64_t step, Gate& gate) {
        const auto pushes = pushes_of(step, gate);
        const float factor = 1.0F / static_cast<float>(pushes.size());
        const double lr = options_.lr(step);
        const bool weights_come = options_.rule == ShardOptions::Rule::average_weights &&
                                  !options_.schedule.at(step).warm_up;
        const bool by_block = !optimizer_.whole_tensors();
        sum_pushes(pushes, factor, [&](Range block) {
            if (weights_come)
                take_weights(block);
            else if (by_block)
                optimizer_.update(arena_, block, lr);
        });
        if (!weights_come && !by_block)
            optimizer_.update(arena_, gate.range, lr);
        open(step).updated += gate.range.count;
        gate.closed = options_.backup > 0;
        gate.arrived = 0;
        for (Push& push : gate.pushes)
            push = {};
        some_.clear();
    }

    void take_weights(Range block) const {
        const float* mean = arena_.slab<float>(slab::gradients).data();
        std::copy(mean + block.first, mean + block.end(),
                  arena_.slab<float>(slab::weights).data() + block.first);
    }

    // Closes the steps that are complete; local steps, which push nothing, with the next that does.
    void advance() {
        while (true) {
            int64_t pushing = steps_;
            while (!options_.schedule.at(pushing).push)
                ++pushing;
            Step& step = open(pushing);
            if (step.updated < range_.count)
                return;
            step.updated = 0;
            for (Gate& gate : step.gates)
                gate.closed = false;
            steps_ = pushing + 1;
            if (options_.schedule.at(pushing).request_pull)
                take_snapshot();
        }
    }

    void take_snapshot() const {
        const auto weights = part(slab::weights);
        std::copy(weights.begin(), weights.end(), part(snapshot_name(steps_)).begin());
    }

    const bool delayed_;
    std::vector<Push> some_;  // of a step that closes without some
    std::vector<Step> open_;  // by step, modulo their number
};

}  // namespace

std::unique_ptr<Shard> make_average_shard(const ShardOptions& options, const Optimizer& optimizer,
                                          const ParameterArena& arena, Range range) {
    return std::make_unique<AverageShard>(options, optimizer, arena, range);
}

}  // namespace trainer
