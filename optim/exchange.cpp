#include "optim/exchange.h"

#include <algorithm>
#include <chrono>

namespace trainer {

namespace {

using Kind = StepScheduleOptions::Kind;

bool feeds_back(const ExchangeOptions& options) {
    return options.codec && !options.codec->lossless();
}

}  // namespace

std::vector<std::string> Exchange::slabs(const ExchangeOptions& options, const TensorTable& table,
                                         const Optimizer& optimizer) {
    std::vector<std::string> result;
    const Kind kind = options.schedule.options().kind;
    if (kind == Kind::local)
        for (const std::string& name : optimizer.slabs())
            result.push_back(name);
    if (kind == Kind::delayed) {
        result.emplace_back(slab::incoming);
        for (const std::string& name : make_local_rule(options.local.value(), table)->slabs())
            result.push_back(name);
    }
    if (feeds_back(options))
        result.emplace_back(slab::residual);
    return result;
}

Exchange::Exchange(const ExchangeOptions& options, Link& link, const ParameterArena& arena,
                   const Optimizer& optimizer, LaneTeam& lanes,
                   std::shared_ptr<DeviceExchange> device)
    : options_(options),
      link_(link),
      arena_(arena),
      optimizer_(optimizer),
      lanes_(lanes),
      device_(std::move(device)) {
    check(options_.max_inflight >= 1, "at least one step's pushes are under way");
    const bool delayed = options_.schedule.options().kind == Kind::delayed;
    if (delayed)
        rule_ = make_local_rule(options_.local.value(), arena_.table());
    if (feeds_back(options_))
        feedback_.emplace(*options_.codec, arena_.table(), arena_.slab<float>(slab::residual));
    // Where every push is waited for, one outbox will do, and none without a codec.
    const auto slab_bytes = static_cast<size_t>(arena_.size()) * sizeof(float);
    const size_t boxes = delayed ? static_cast<size_t>(options_.max_inflight) : feedback_ ? 1 : 0;
    // A scale a tensor and a server is more than any codec adds.
    const size_t extra =
        8 * (arena_.table().tensors().size() + static_cast<size_t>(link_.servers()) + 1);
    for (size_t i = 0; i < boxes; ++i)
        outboxes_.push_back({device_ ? device_->allocate_outbox(slab_bytes + extra)
                                     : allocate_host(slab_bytes + extra),
                             {}});
    local_work_ = [this](Lane& lane) {
        const Range all{0, arena_.size()};
        if (rule_) {
            const double lr = options_.local_lr.value_or(options_.lr(state_.step));
            rule_->step(arena_, lane.part(arena_.size()), actions_.take_pull, lr, lr_sum_);
        } else {
            optimizer_.update(arena_, optimizer_.part(all, lane.index(), lane.count()),
                              options_.lr(state_.step));
        }
    };
}

void Exchange::start(const ExchangeState& state) {
    state_ = state;
    pending_.reset();
    for (const std::string_view name : device_slab_names())
        device_->send(name);
    if (device_)
        device_->keep_weights(false);
    weights_on_device_ = false;
    if (state.pull_pending)
        pending_ = link_.pull(state.step, {0, arena_.size()}, arena_.address(slab::incoming));
}

// Slabs that live on the device while the worker works.
std::vector<std::string_view> Exchange::device_slab_names() const {
    std::vector<std::string_view> names;
    for (const std::string_view name :
         {slab::residual, slab::pulled, slab::global_gradient, slab::local_momentum})
        if (device_ && arena_.has_slab(name))
            names.push_back(name);
    return names;
}

void Exchange::fetch_slabs() const {
    for (const std::string_view name : device_slab_names())
        device_->fetch(name);
    if (weights_on_device_)
        device_->fetch(slab::weights);
}

Exchange::RangePlan& Exchange::plan_of(Range range) {
    const auto found =
        std::ranges::find_if(plans_, [&](const RangePlan& plan) { return plan.range == range; });
    if (found != plans_.end())
        return *found;
    RangePlan plan{range, {}, {}};
    // Room for this range's codes behind those of the ranges before it: codes take no more than
    // their floats, and a segment (a tensor, or a server's part of one) 8 bytes for scale and end.
    const auto& tensors = arena_.table().tensors();
    const auto before = std::ranges::count_if(
        tensors, [&](const TensorInfo& tensor) { return tensor.offset < range.first; });
    const size_t parts_before = link_.split({0, range.first}).size();
    size_t offset = static_cast<size_t>(range.first) * sizeof(float) +
                    8 * (static_cast<size_t>(before) + parts_before);
    for (const Piece& piece : link_.split(range)) {
        Part part{piece, segments_of(*options_.codec, arena_.table(), piece.range), offset, 0};
        part.bytes = encoded_bytes(*options_.codec, part.segments);
        offset += part.bytes;
        plan.parts.push_back(std::move(part));
    }
    plans_.push_back(std::move(plan));
    return plans_.back();
}

void Exchange::timed_wait(const Ticket& ticket, double& total) {
    if (link_.done(ticket))
        return;
    const auto start = std::chrono::steady_clock::now();
    link_.wait(ticket);
    total += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void Exchange::clear(Outbox& box) {
    for (const Ticket& ticket : box.tickets) {
        const double before = waited_;
        timed_wait(ticket, waited_);
        inflight_waited_ += waited_ - before;
    }
    box.tickets.clear();
}

void Exchange::push_raw(Range range, std::string_view slab_name) {
    direct_.push_back(link_.push(state_.step, range, arena_.address(slab_name)));
}

// Floats, as they leave from the outbox.
void Exchange::fill_outbox(Range range, bool flushes) {
    const std::span box(reinterpret_cast<float*>(outbox().memory.data.get()),
                        static_cast<size_t>(arena_.size()));
    const auto gradients = arena_.slab<float>(slab::gradients);
    std::copy(gradients.begin() + range.first, gradients.begin() + range.end(),
              box.begin() + range.first);
    if (flushes)
        feedback_->flush(box, range);
}

void Exchange::encode(Range range) {
    const auto gradients = arena_.slab<float>(slab::gradients);
    feedback_->begin(gradients, range);
    for (const Part& part : plan_of(range).parts)
        feedback_->encode(part.segments, gradients, outbox().memory.data.get() + part.offset);
}

void Exchange::push_encoded(Range range) {
    for (const Part& part : plan_of(range).parts) {
        const std::byte* const codes = outbox().memory.data.get() + part.offset;
        outbox().tickets.push_back(link_.push(state_.step, part.piece.range,
                                              static_cast<uint8_t>(options_.codec->id()),
                                              {std::span<const std::byte>(codes, part.bytes)}));
    }
}

Exchange::Push Exchange::push_of(const StepActions& actions) const {
    const bool local = options_.schedule.options().kind == Kind::local && !actions.warm_up;
    if (local || !actions.push)
        return Push::nothing;
    if (feedback_ && !actions.exact)
        return Push::encoded;
    if (feedback_ && !actions.warm_up && options_.flush_on_exact)
        return Push::flushed;
    return actions.wait_pull ? Push::slab : Push::exact;
}

namespace {

DeviceCode device_code(CodecId id) {
    switch (id) {
        case CodecId::raw:
            break;
        case CodecId::fp16:
            return DeviceCode::fp16;
        case CodecId::bf16:
            return DeviceCode::bf16;
        case CodecId::two_bit:
            return DeviceCode::two_bit;
    }
    return DeviceCode::floats;
}

}  // namespace

// The number under which the device knows that kind of push of a range.
size_t Exchange::prepared(Range range, Push push) {
    if (push != Push::encoded) {
        const bool flushes = push == Push::flushed;
        for (const FloatPlan& plan : float_plans_)
            if (plan.range == range && plan.flushes == flushes)
                return plan.on_device;
        const auto first_byte = static_cast<size_t>(range.first) * sizeof(float);
        const size_t number =
            device_->prepare({.range = range,
                              .residual = flushes ? slab::residual : std::string_view(),
                              .segments = {{range, -1, first_byte}},
                              .first_byte = first_byte,
                              .bytes = static_cast<size_t>(range.count) * sizeof(float)});
        float_plans_.push_back({range, flushes, number});
        return number;
    }
    RangePlan& plan = plan_of(range);
    if (plan.on_device)
        return *plan.on_device;
    const Codec& codec = *options_.codec;
    CodedRange coded{.range = range, .code = device_code(codec.id()), .residual = slab::residual};
    if (codec.has_scale() && !codec.measures())
        coded.threshold = codec.scale({});
    coded.first_byte = plan.parts.front().offset;
    for (const Part& part : plan.parts) {
        size_t at = part.offset;
        for (const Segment& segment : part.segments) {
            at += codec.has_scale() ? sizeof(float) : 0;
            coded.segments.push_back({segment.range, segment.tensor, at});
            at += codec.code_bytes(segment.range.count);
        }
        coded.bytes = at - coded.first_byte;
    }
    plan.on_device = device_->prepare(coded);
    return *plan.on_device;
}

bool Exchange::range_leaves(Range range, float* gradients, float factor) {
    const Push push = push_of(options_.schedule.at(state_.step));
    if (!device_ || push == Push::nothing || push == Push::slab)
        return false;
    device_gradients_ = gradients != nullptr ? gradients : device_->zeros();
    device_->push(prepared(range, push), device_gradients_, factor, outbox().memory.data.get());
    return true;
}

void Exchange::range_done(Range range) {
    const Push push = push_of(options_.schedule.at(state_.step));
    if (push == Push::slab)
        push_raw(range, slab::gradients);
    if (push == Push::nothing || push == Push::slab)
        return;
    if (device_gradients_ != nullptr)
        device_->await(prepared(range, push));
    else if (push == Push::encoded)
        encode(range);
    else
        fill_outbox(range, push == Push::flushed);
    if (push == Push::encoded)
        push_encoded(range);
    else
        outbox().tickets.push_back(link_.push(state_.step, range, outbox().memory.data.get()));
}

LocalSlabs Exchange::device_slabs() const {
    const auto find = [&](std::string_view name) {
        return arena_.has_slab(name) ? device_->slab(name) : nullptr;
    };
    return {find(slab::weights), device_gradients_,           find(slab::incoming),
            find(slab::pulled),  find(slab::global_gradient), find(slab::local_momentum)};
}

// As local_work_ on the processor, of all lanes.
void Exchange::local_step_on_device() {
    const double lr = options_.local_lr.value_or(options_.lr(state_.step));
    rule_->step(device_slabs(), {0, arena_.size()}, actions_.take_pull, lr, lr_sum_,
                &device_->math());
    if (actions_.take_pull)
        device_->math().wait();  // before the next pull arrives where this one did
    device_->keep_weights(true);
    weights_on_device_ = true;
}

void Exchange::local_step(const StepActions& actions) {
    const int64_t t = state_.step;
    if (rule_ && t == options_.schedule.options().warmup_steps) {
        rule_->start(arena_);
        for (const std::string_view name : device_slab_names())
            if (name != slab::residual)
                device_->send(name);
        state_.pulled_step = t;
    }
    lr_sum_ = 0;
    if (actions.take_pull) {
        check(pending_.has_value(), "a pull that is taken has been asked for");
        timed_wait(*pending_, waited_);
        pending_.reset();
        for (int64_t s = state_.pulled_step; s < t; ++s)
            lr_sum_ += options_.lr(s);
        state_.pulled_step = t;
    }
    actions_ = actions;
    if (rule_ && device_gradients_ != nullptr)
        local_step_on_device();
    else
        lanes_.run(local_work_);
}

void Exchange::finish() {
    const StepActions actions = options_.schedule.at(state_.step);
    const Range all{0, arena_.size()};
    waited_ = 0;
    if (actions.local_rule) {
        local_step(actions);
        if (actions.wait_pull)
            push_raw(all, slab::weights);
    }
    const int64_t next = state_.step + 1;
    if (actions.wait_pull) {
        // What leaves from a slab has left before the pull writes there: the servers answer once
        // they have used all pushes.
        for (const Ticket& ticket : direct_)
            timed_wait(ticket, waited_);
        timed_wait(link_.pull(next, all, arena_.address(slab::weights)), waited_);
    }
    direct_.clear();
    device_gradients_ = nullptr;
    if (actions.request_pull)
        pending_ = link_.pull(next, all, arena_.address(slab::incoming));
    state_.pull_pending = actions.request_pull;
    state_.step = next;
    if (!outboxes_.empty())
        clear(outbox());  // the next step's
}

}  // namespace trainer
