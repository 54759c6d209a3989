#include "optim/server.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace trainer {

Server::Server(const ShardOptions& options, const Optimizer& optimizer, const ParameterArena& arena,
               Coordinator* coordinator)
    : options_(options),
      optimizer_(optimizer),
      arena_(arena),
      coordinator_(coordinator),
      pushed_(static_cast<size_t>(options.workers)),
      there_(static_cast<size_t>(options.workers), false) {}

void Server::attach(ServerEndpoint& endpoint) {
    endpoint_ = &endpoint;
}

void Server::make_shard() {
    if (!shard_)
        shard_ = Shard::make(options_, optimizer_, arena_, endpoint_->shard());
}

void Server::begin(int64_t step) {
    make_shard();
    shard_->resume_at(step);
    begun_ = true;
    answer_ready();
}

void Server::joined(int worker) {
    there_[static_cast<size_t>(worker)] = true;
    pushed_[static_cast<size_t>(worker)] = {};
}

void Server::push(int worker, int64_t step, Range range, uint8_t codec, PooledBytes payload) {
    if (!begun_)
        throw Error("worker " + std::to_string(worker) + " pushed before the servers had a model");
    Pushed& pushed = pushed_[static_cast<size_t>(worker)];
    pushed.elements = range.count + (pushed.step == step ? pushed.elements : 0);
    pushed.step = step;
    auto owner = std::make_shared<PooledBytes>(std::move(payload));
    const std::span<const std::byte> bytes = owner->bytes();
    shard_->push(worker, step, {range, static_cast<CodecId>(codec), bytes, std::move(owner)});
    newest_push_ = std::max(newest_push_, step);
    answer_ready();
}

void Server::pull(const Request& request) {
    pulls_.push_back(request);
    if (begun_)
        shard_->pull(request.worker, request.step);
    answer_ready();
}

void Server::answer_ready() {
    if (!begun_)
        return;
    for (const PullReply& reply : shard_->replies()) {
        const auto found = std::ranges::find_if(pulls_, [&](const Request& pull) {
            return pull.worker == reply.worker && pull.step == reply.step;
        });
        check(found != pulls_.end(), "an answer has its request");
        const Request request = *found;
        pulls_.erase(found);
        const auto values =
            reply.weights.subspan(static_cast<size_t>(request.range.first - shard_->range().first),
                                  static_cast<size_t>(request.range.count));
        if (shard_->answers_change()) {
            const auto copy = std::make_shared<std::vector<float>>(values.begin(), values.end());
            Request newest = request;
            newest.step = std::max(request.step, shard_->steps());
            endpoint_->answer(newest, std::as_bytes(std::span(*copy)), copy);
            continue;
        }
        // The shard keeps them as they are until this worker's next push.
        endpoint_->answer(request, std::as_bytes(values), nullptr);
    }
    std::erase_if(calls_, [&](const Waiting& waiting) {
        if (!shard_->completed(waiting.request.step))
            return false;
        answer_slabs(waiting.request, waiting.name);
        return true;
    });
}

void Server::answer_slabs(const Request& request, const std::string& name) {
    Parts parts;
    const Range range = shard_->range();
    for (const std::string& slab_name : arena_.slabs())
        if (name == call::weights ? slab_name == slab::weights : slab_name != slab::gradients)
            parts.push_back(std::as_bytes(arena_.slab<float>(slab_name).subspan(
                static_cast<size_t>(range.first), static_cast<size_t>(range.count))));
    // Nothing changes before the workers go on, which they do once they have this.
    endpoint_->reply(request, parts, nullptr);
}

void Server::load(const Request& request, std::span<const std::byte> body) {
    make_shard();
    const Range range = shard_->range();
    const size_t bytes = static_cast<size_t>(range.count) * sizeof(float);
    size_t at = 0;
    for (const std::string& name : arena_.slabs()) {
        if (name == slab::gradients || at + bytes > body.size())
            continue;
        std::memcpy(arena_.slab<float>(name).data() + range.first, body.data() + at, bytes);
        at += bytes;
    }
    if (at != body.size())
        throw Error("worker 0 sent " + std::to_string(body.size()) +
                    " bytes of state where this server's part takes " + std::to_string(at));
    // Copies that the rule keeps are those of these weights, unless they came along.
    if (at == bytes)
        shard_ = Shard::make(options_, optimizer_, arena_, range);
    begin(request.step);
    endpoint_->reply(request, std::span<const std::byte>());
    for (const Request& pull : pulls_)
        shard_->pull(pull.worker, pull.step);
    answer_ready();
}

void Server::call(const Request& request, const std::string& name, PooledBytes body) {
    if (name == call::weights || name == call::slabs) {
        calls_.push_back({request, name});
        answer_ready();
    } else if (name == call::members) {
        gather(request, body.bytes());
    } else if (name == call::load) {
        load(request, body.bytes());
    } else if (coordinator_ != nullptr) {
        coordinator_->call(request, name, std::move(body));
    } else {
        throw Error("worker " + std::to_string(request.worker) + " calls for '" + name +
                    "', which only server 0 answers");
    }
}

void Server::note(int worker, int64_t step, const std::string& name, PooledBytes body) {
    if (coordinator_ != nullptr)
        coordinator_->note(worker, step, name, std::move(body));
}

// --- who takes part ------------------------------------------------------------------------------

void Server::set_members(int64_t step, const std::vector<bool>& members) {
    make_shard();
    shard_->set_members(step, members);
    for (size_t worker = 0; worker < members.size(); ++worker)
        if (members[worker] && !there_[worker])  // lost meanwhile
            shard_->leave(static_cast<int>(worker));
    endpoint_->expect(shard_->members());
    running_ = true;
    answer_ready();
}

void Server::gather(const Request& request, std::span<const std::byte> body) {
    if (body.size() < there_.size())
        throw Error("worker " + std::to_string(request.worker) +
                    " named the members in too few bytes: is every process of one build?");
    if (gathered_.empty())
        gathering_.assign(body.begin(), body.end());
    if (!std::ranges::equal(body, gathering_) ||
        (!gathered_.empty() && gathered_.front().step != request.step))
        throw Error("the workers do not agree on who takes part from step " +
                    std::to_string(request.step) + " on");
    gathered_.push_back(request);
    try_members();
}

void Server::try_members() {
    if (gathered_.empty())
        return;
    std::vector<bool> members(there_.size());
    for (size_t worker = 0; worker < members.size(); ++worker) {
        members[worker] = gathering_[worker] != std::byte{0};
        const auto said = [&](const Request& request) {
            return request.worker == static_cast<int>(worker);
        };
        if (members[worker] && there_[worker] && std::ranges::none_of(gathered_, said))
            return;
    }
    const std::vector<Request> all = std::exchange(gathered_, {});
    const int64_t step = all.front().step;
    if (on_members)
        on_members(step, std::span(gathering_).subspan(members.size()));
    set_members(step, members);
    for (const Request& request : all)
        endpoint_->reply(request, std::span<const std::byte>());
}

/// All of a worker's pushes of the steps before this one are there.
int64_t Server::pushed_by(int worker) const {
    const Pushed& pushed = pushed_[static_cast<size_t>(worker)];
    const bool whole = shard_ && pushed.elements >= shard_->range().count;
    return pushed.step + (whole ? 1 : 0);
}

void Server::forget(int worker) {
    there_[static_cast<size_t>(worker)] = false;
    const auto of_worker = [&](const auto& item) { return item.worker == worker; };
    std::erase_if(pulls_, of_worker);
    if (shard_)
        shard_->forget_pulls(worker);
    std::erase_if(gathered_, of_worker);
    std::erase_if(calls_, [&](const Waiting& waiting) { return of_worker(waiting.request); });
}

void Server::left(int worker) {
    forget(worker);
    if (coordinator_ != nullptr)
        coordinator_->left(worker);
}

void Server::lost(int worker, const std::string& who, const std::string& reason) {
    const int64_t pushed = pushed_by(worker);
    forget(worker);
    const std::string what = who + " is lost " +
                             (pushed_[static_cast<size_t>(worker)].step < 0
                                  ? "before its first step"
                                  : "after step " + std::to_string(std::max<int64_t>(pushed, 0))) +
                             ": " + reason;
    const bool last = std::ranges::none_of(there_, [](bool there) { return there; });
    if (coordinator_ != nullptr && coordinator_->is_over()) {
        if (last)
            endpoint_->finish();
        return;
    }
    if (!survives_losses)
        throw Error(what + "; start the run again, it goes on from its last checkpoint");
    if (last && running_)
        return begin_again(what + "; it was the last worker");
    if (shard_)
        shard_->leave(worker);
    if (coordinator_ != nullptr)
        coordinator_->lost(worker, who, reason, pushed);
    try_members();
    answer_ready();
}

void Server::failed(int worker, const std::string& who, const std::string& reason) {
    const bool over = coordinator_ != nullptr && coordinator_->is_over();
    if (!survives_losses && !over)
        throw Error(who + " has failed: " + reason);
    lost(worker, who, "it has failed: " + reason);
}

void Server::again(int /*worker*/, const std::string& who, const std::string& reason) {
    begin_again(who + " asks all to begin again: " + reason);
}

void Server::begin_again(const std::string& why) {
    if (coordinator_ != nullptr)  // first: it may still be writing what the arena holds
        coordinator_->restarted(why);
    begun_ = running_ = false;
    shard_.reset();
    pulls_.clear();
    calls_.clear();
    gathered_.clear();
    newest_push_ = -1;
    std::ranges::fill(pushed_, Pushed{});
    there_.assign(there_.size(), false);
    for (const std::string& name : arena_.slabs())
        std::ranges::fill(arena_.slab<float>(name), 0.0F);
    endpoint_->restart(why);
}

}  // namespace trainer
