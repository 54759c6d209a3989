#include "optim/server.h"

#include <algorithm>
#include <cstring>

namespace trainer {

Server::Server(const ShardOptions& options, const Optimizer& optimizer, const ParameterArena& arena,
               Coordinator* coordinator)
    : options_(options), optimizer_(optimizer), arena_(arena), coordinator_(coordinator) {}

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

void Server::joined(int /*worker*/) {}

void Server::push(int worker, int64_t step, Range range, uint8_t codec, PooledBytes payload) {
    if (!begun_)
        throw Error("worker " + std::to_string(worker) + " pushed before the servers had a model");
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

void Server::left(int worker) {
    if (coordinator_ != nullptr)
        coordinator_->left(worker);
}

void Server::lost(int /*worker*/, const std::string& who, const std::string& reason) {
    throw Error(who + " is lost: " + reason +
                "; start the run again, it goes on from its last checkpoint");
}

}  // namespace trainer
