// JobCoordinator: how a run begins, or goes on from a checkpoint.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "tools/trainer/coordinator.h"
#include "tools/trainer/format.h"
#include "tools/trainer/model_card.h"
#include "tools/trainer/setup.h"

namespace trainer {
namespace {

using job::append;
using job::bytes_of;

}  // namespace

void JobCoordinator::open() {
    if (std::exchange(opened_, true))
        return;
    if (log_) {  // all begins again
        resumed_ = store_->newest();
    } else {
        log_.emplace(config_);
        store_.emplace(config_.checkpoint.dir, config_.checkpoint.keep,
                       [this](const std::string& text) { log_->warn(text); });
        resumed_ = checkpoint_to_resume(config_, *store_,
                                        [this](const std::string& text) { log_->say(text); });
        introduce();
    }
    fresh_ = !resumed_.has_value();
    if (resumed_)
        restore();
    else
        start_afresh();
    start_step_ = state_.step;
    server_->begin(state_.step);
}

void JobCoordinator::introduce() {
    const auto& distributed = config_.distributed;
    log_->say("model        " + config_.model.name + ", " +
              std::to_string(config_.model.num_classes) + " classes, " + grouped(arena_.size()) +
              " parameters");
    log_->say("data         " + training_.description);
    log_->say("             " + grouped(training_.count) + " training images");
    for (const std::string& note : training_.notes)
        log_->warn(note);
    log_->say("cluster      " + distributed.variant + ", " + std::to_string(workers_) +
              (workers_ == 1 ? " worker, " : " workers, ") +
              (plan_.allreduce            ? "allreduce"
               : distributed.servers == 1 ? "1 server"
                                          : std::to_string(distributed.servers) + " servers"));
    const auto& emulate = config_.comm.emulate;
    if (emulate.bandwidth || emulate.latency || emulate.step_time) {
        std::string line = "emulated    ";
        if (emulate.bandwidth)
            line += format(" %g Mbit/s", static_cast<double>(*emulate.bandwidth) * 1e-6);
        if (emulate.latency)
            line += format(" %g ms latency", static_cast<double>(emulate.latency->count()) * 1e-6);
        if (emulate.step_time)
            line += format(" %g ms forward and backward",
                           static_cast<double>(emulate.step_time->count()) * 1e-6);
        log_->say(line);
    }
    log_->say("batch        " + std::to_string(int64_t{config_.data.batch_size} * workers_) +
              " (global), " + grouped(plan_.steps_per_epoch) + " steps an epoch, " +
              std::to_string(config_.train.epochs) + " epochs, " + grouped(plan_.total_steps) +
              " steps");
    log_->say("checkpoints  " + store_->directory().string());
    log_->say("logs         " + (log_->directory() / "metrics.jsonl").string());
    if (distributed.warmup_steps >= plan_.total_steps && distributed.variant != "ssgd")
        log_->warn("distributed.warmup_steps (" + std::to_string(distributed.warmup_steps) +
                   ") is the whole run: all of it is ssgd");
}

void JobCoordinator::restore() {
    check_class_names(*resumed_, training_);
    read_tensors(resumed_->model, arena_, slab::weights);
    read_tensors(resumed_->model, statistics_, slab::weights);
    for (const std::string& name : plan_.saved_server_slabs())
        read_slab(resumed_->state, arena_, name, name);
    // What each worker is taken to have pulled last; it does so again.
    const auto weights = arena_.slab<float>(slab::weights);
    for (const std::string& name : arena_.slabs())
        if (name.starts_with("backup_"))
            std::ranges::copy(weights, arena_.slab<float>(name).begin());
    state_ = state_of(*resumed_);
    rhythm_ = rhythm_of(config_, training_);
    restore_members(*resumed_, rhythm_);
    from_elsewhere_ =
        !std::filesystem::equivalent(resumed_->path().parent_path(), store_->directory());
    if (from_elsewhere_)
        state_.best_saved = -1;  // the link `best` is the other directory's
    log_->say("resume       " + resumed_->path().string() + ": " + grouped(state_.step) +
              " steps done");
}

void JobCoordinator::start_afresh() {
    state_ = {};
    rhythm_ = rhythm_of(config_, training_);
    for (const std::string& line : start_model(config_, plan_.network, arena_, statistics_))
        log_->say(line);
}

void JobCoordinator::call(const Request& request, const std::string& name, PooledBytes body) {
    std::span<const std::byte> bytes = body.bytes();
    if (name == job::gather) {
        gather(request, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    } else if (name == job::start) {
        start(request, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    } else if (name == job::part) {
        answer_part(request, job::take<int32_t>(bytes));
    } else if (name == job::ready) {
        endpoint_->reply(request, std::span<const std::byte>());
        all_started();
    } else if (name == job::boundary) {
        boundary(request, std::move(body));
    } else if (name == job::scored) {
        scored(request, bytes);
    } else {
        throw Error("worker " + std::to_string(request.worker) + " calls for '" + name +
                    "', which this server does not know: is every process of one build?");
    }
}

void JobCoordinator::gather(const Request& request, std::string word) {
    words_[request.worker] = {request, std::move(word)};
    if (static_cast<int>(words_.size()) < workers_)
        return;
    std::vector<std::byte> body;
    for (const auto& [worker, said] : words_)
        job::append_text(body, said.text);
    for (const auto& [worker, said] : std::exchange(words_, {}))
        endpoint_->reply(said.request, body);
}

void JobCoordinator::start(const Request& request, std::string device) {
    open();
    starting_[static_cast<size_t>(request.worker)] = {request, std::move(device)};
    if (!started_) {
        if (!std::exchange(awaiting_, true))
            await_workers();
        return start_all(false);
    }
    log_->say(endpoint_->name_of_worker(request.worker) + " wants to take part");
    if (rhythm_.is_last(std::max(state_.step, step_ahead())))
        return turn_away(request.worker, job::late_done);
    ask_for_change();
}

/// The run ends, or is about to, without a worker that wants to take part.
void JobCoordinator::turn_away(int worker, job::Late why) {
    Starting& starting = starting_[static_cast<size_t>(worker)];
    log_->note(endpoint_->name_of_worker(worker) + " comes too late to take part");
    const job::Start answer{.rhythm = rhythm_, .state = {}, .late = why};
    endpoint_->reply(*starting.request, bytes_of(answer));
    starting = {};
}

/// Who is late is not waited for longer than this.
void JobCoordinator::await_workers() {
    endpoint_->loop().post_at(std::chrono::steady_clock::now() + comm_timeout(config_),
                              [this, generation = generation_] {
                                  if (generation != generation_ || started_)
                                      return;
                                  try {
                                      start_all(true);
                                  } catch (...) {
                                      endpoint_->fail(std::current_exception());
                                  }
                              });
}

/// Begins with all workers; where some are late and the run survives that, with those who are here.
void JobCoordinator::start_all(bool late) {
    if (leader_)
        return;
    job::Members here;
    std::string missing;
    for (int worker = 0; worker < workers_; ++worker)
        if (starting_[static_cast<size_t>(worker)].request)
            here.add(worker);
        else
            missing += (missing.empty() ? "" : ", ") + std::to_string(worker);
    if (!missing.empty() && !late)
        return;
    if (!missing.empty() && !server_->survives_losses)
        throw Error("of " + std::to_string(workers_) + " workers, number " + missing +
                    " did not come back within comm.timeout: start the run again, it goes on from "
                    "its last checkpoint");
    if (!missing.empty())
        log_->warn("worker " + missing +
                   " has not come within comm.timeout; the run goes on "
                   "without");
    there_ = here;
    if (!(rhythm_.members == here))
        rhythm_.change(state_.step, here);
    server_->set_members(state_.step, server_members());
    leader_ = here.ranks().front();
    const bool others = plan_.cuts.size() > 2;
    answer_start(*starting_[static_cast<size_t>(*leader_)].request, others);
    if (!others)
        all_started();
}

/// The other servers have what they need; now the others may begin.
void JobCoordinator::all_started() {
    if (!leader_ || started_)
        return;
    log_->header({.device = starting_[static_cast<size_t>(*leader_)].device,
                  .data = training_.description,
                  .parameters = arena_.size(),
                  .global_batch = rhythm_.batch * rhythm_.members.count(),
                  .steps_per_epoch = rhythm_.steps_per_epoch(),
                  .start_step = state_.step,
                  .fresh = fresh_});
    for (int worker = 0; worker < workers_; ++worker) {
        Starting& starting = starting_[static_cast<size_t>(worker)];
        if (!there_.has(worker))
            continue;
        log_->note("worker " + std::to_string(worker) + "     " + starting.device);
        if (worker != *leader_ && starting.request)
            answer_start(*starting.request, false);
        starting = {};
    }
    leader_.reset();
    resumed_.reset();
    started_ = true;
    if (stopping_)
        send_stop();
    else if (members_change())
        ask_for_change();
}

std::string JobCoordinator::worker_entry(int worker, std::string_view what) {
    return "worker" + std::to_string(worker) + "." + std::string(what);
}

void JobCoordinator::answer_start(const Request& request, bool leads) {
    job::Start start{.rhythm = rhythm_, .state = {}, .fresh = fresh_ ? 1 : 0};
    start.leads = leads ? 1 : 0;
    std::vector<float> statistics(static_cast<size_t>(statistics_.size()));
    std::ranges::copy(statistics_.slab<float>(slab::weights), statistics.begin());
    std::vector<std::vector<float>> slabs;
    if (resumed_) {
        // A worker that was not there when the checkpoint was written takes after one that was.
        const bool known = has_worker(*resumed_, request.worker);
        const int like = known ? request.worker : first_worker(*resumed_, workers_);
        const auto read = [&](const std::string& what, std::span<float> values) {
            resumed_->state.read(worker_entry(like, what), {static_cast<int64_t>(values.size())},
                                 values);
        };
        const auto number = [&](std::string_view what) {
            return resumed_->number(worker_entry(like, what));
        };
        if (known)
            read("statistics", statistics);
        for (const std::string& name : plan_.saved_worker_slabs()) {
            slabs.emplace_back(static_cast<size_t>(arena_.size()));
            if (known || name != slab::residual)
                read(name, slabs.back());
        }
        start.state.step = state_.step;
        start.state.pulled_step = number("pulled_step");
        start.state.pull_pending = number("pull_pending");
        if (known) {
            start.state.window = sums_of(*resumed_, worker_entry(like, "window_sums"));
            start.state.epoch = sums_of(*resumed_, worker_entry(like, "epoch_sums"));
        }
        const bool last = rhythm_.is_last(state_.step);
        start.boundary_first = last && (state_.evaluated != state_.step || from_elsewhere_);
        start.nothing_left = last && start.boundary_first == 0;
    } else {
        start.boundary_first = rhythm_.has_boundary(0);
    }
    std::vector<std::byte> body;
    append(body, bytes_of(start));
    append(body, std::as_bytes(std::span(statistics)));
    for (const std::vector<float>& slab : slabs)
        append(body, std::as_bytes(std::span(slab)));
    endpoint_->reply(request, body);
}

void JobCoordinator::answer_part(const Request& request, int server) {
    const Range range = shard_of(plan_.cuts, server);
    std::vector<std::byte> body;
    for (const std::string& name : arena_.slabs())
        if (name == slab::weights || (!fresh_ && name != slab::gradients))
            append(body, std::as_bytes(arena_.slab<float>(name).subspan(
                             static_cast<size_t>(range.first), static_cast<size_t>(range.count))));
    endpoint_->reply(request, body);
}

}  // namespace trainer
