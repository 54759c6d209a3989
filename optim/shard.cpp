#include "optim/shard.h"

#include <algorithm>

#include "optim/shard_rules.h"

namespace trainer {

Shard::Shard(const ShardOptions& options, const Optimizer& optimizer, const ParameterArena& arena,
             Range range)
    : options_(options),
      optimizer_(optimizer),
      arena_(arena),
      range_(range),
      staleness_(static_cast<size_t>(std::max(options.workers, 0))),
      present_(static_cast<size_t>(std::max(options.workers, 0)), true),
      members_(options.workers) {
    check(options.workers >= 1, "a shard serves at least one worker");
    raw_ = make_raw_codec();
}

Shard::Staleness Shard::staleness() const {
    Staleness all;
    for (const Staleness& one : staleness_) {
        all.sum += one.sum;
        all.pushes += one.pushes;
        all.largest = std::max(all.largest, one.largest);
    }
    return all;
}

std::unique_ptr<Shard> Shard::make(const ShardOptions& options, const Optimizer& optimizer,
                                   const ParameterArena& arena, Range range) {
    const bool averages = options.rule == ShardOptions::Rule::average ||
                          options.rule == ShardOptions::Rule::average_weights;
    return averages ? make_average_shard(options, optimizer, arena, range)
                    : make_on_arrival_shard(options, optimizer, arena, range);
}

std::vector<std::string> Shard::slabs(const ShardOptions& options) {
    using Rule = ShardOptions::Rule;
    std::vector<std::string> result;
    if (options.schedule.options().kind == StepScheduleOptions::Kind::delayed)
        result = {"snapshot_0", "snapshot_1"};
    if (options.rule == Rule::on_arrival || options.rule == Rule::delay_compensated ||
        options.rule == Rule::delay_compensated_adaptive)
        for (int worker = 0; worker < options.workers; ++worker)
            result.push_back("backup_" + std::to_string(worker));
    if (options.rule == Rule::delay_compensated_adaptive)
        result.emplace_back(slab::mean_square);
    return result;
}

void Shard::resume_at(int64_t step) {
    steps_ = step;
}

void Shard::forget_pulls(int worker) {
    std::erase_if(pulls_, [&](const Waiting& pull) { return pull.worker == worker; });
}

void Shard::leave(int worker) {
    forget_pulls(worker);
    if (!present_[static_cast<size_t>(worker)])
        return;
    present_[static_cast<size_t>(worker)] = false;
    --members_;
}

void Shard::set_members(int64_t /*step*/, const std::vector<bool>& members) {
    check(members.size() == present_.size(), "members are told by rank");
    present_ = members;
    members_ = static_cast<int>(std::ranges::count(members, true));
}

bool Shard::completed(int64_t step) const {
    for (int64_t s = steps_; s < step; ++s)
        if (options_.schedule.at(s).push)
            return false;
    return true;
}

void Shard::pull(int worker, int64_t step) {
    pulls_.push_back({worker, step});
}

std::vector<PullReply> Shard::replies() {
    std::vector<PullReply> ready;
    std::erase_if(pulls_, [&](const Waiting& pull) {
        const auto weights = answer(pull.worker, pull.step);
        if (weights)
            ready.push_back({pull.worker, pull.step, *weights});
        return weights.has_value();
    });
    return ready;
}

const Codec& Shard::codec_of(const Push& push) const {
    if (push.codec == CodecId::raw)
        return *raw_;
    check(options_.codec != nullptr && options_.codec->id() == push.codec, "check_push has passed");
    return *options_.codec;
}

const std::vector<Segment>& Shard::segments(const Codec& codec, Range range) const {
    for (const auto& layout : layouts_)
        if (layout->codec == codec.id() && layout->range == range)
            return layout->segments;
    layouts_.push_back(std::make_unique<Layout>(
        Layout{codec.id(), range, segments_of(codec, arena_.table(), range)}));
    return layouts_.back()->segments;
}

void Shard::check_push(int worker, int64_t step, const Push& push) const {
    const std::string who = "worker " + std::to_string(worker) + " at step " + std::to_string(step);
    if (worker < 0 || worker >= options_.workers)
        throw Error("a push of " + who + " in a job of " + std::to_string(options_.workers) +
                    " workers");
    if (push.range.count <= 0 || push.range.first < range_.first || push.range.end() > range_.end())
        throw Error(who + " pushed elements " + std::to_string(push.range.first) + " to " +
                    std::to_string(push.range.end()) + ", which this server does not hold");
    if (push.codec != CodecId::raw && (!options_.codec || options_.codec->id() != push.codec))
        throw Error(who + " pushed in codec " + std::to_string(static_cast<int>(push.codec)) +
                    ", which is not this job's");
    const Codec& codec = codec_of(push);
    check_encoded(codec, segments(codec, push.range), push.bytes);
}

std::span<float> Shard::part(std::string_view slab_name) const {
    return arena_.slab<float>(slab_name).subspan(static_cast<size_t>(range_.first),
                                                 static_cast<size_t>(range_.count));
}

void Shard::sum_pushes(std::span<const Push> pushes, float factor,
                       const std::function<void(Range)>& done) const {
    constexpr int64_t block_elements = 8192;
    const Codec& codec = codec_of(pushes.front());
    const auto gradients = arena_.slab<float>(slab::gradients);
    for_each_block(codec, segments(codec, pushes.front().range), block_elements,
                   [&](const EncodedBlock& block) {
                       const auto sum = gradients.subspan(static_cast<size_t>(block.range.first),
                                                          static_cast<size_t>(block.range.count));
                       // -0 + x is x for every x: one push comes through bit for bit.
                       std::ranges::fill(sum, -0.0F);
                       for (const Push& push : pushes)
                           add_decoded_block(codec, block, push.bytes, sum);
                       if (factor != 1)
                           for (float& value : sum)
                               value *= factor;
                       done(block.range);
                   });
}

}  // namespace trainer
