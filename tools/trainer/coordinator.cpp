#include "tools/trainer/coordinator.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "tools/trainer/format.h"
#include "tools/trainer/model_card.h"
#include "tools/trainer/setup.h"

namespace trainer {
namespace {

using job::append;
using job::bytes_of;

double share(double part, double whole) {
    return whole > 0 ? part / whole : 0;
}

}  // namespace

JobCoordinator::JobCoordinator(const Config& config, const ClusterPlan& plan,
                               const Dataset& training, ParameterArena& arena)
    : config_(config),
      plan_(plan),
      training_(training),
      arena_(arena),
      statistics_(plan.network.statistics(), DType::f32, {std::string(slab::weights)}),
      workers_(config.distributed.workers),
      rhythm_(rhythm_of(config, training)),
      starting_(static_cast<size_t>(workers_)),
      boundary_(static_cast<size_t>(workers_)),
      totals_(static_cast<size_t>(workers_)),
      traffic_(static_cast<size_t>(workers_)),
      staleness_(static_cast<size_t>(workers_)) {}

JobCoordinator::~JobCoordinator() {
    join_saver();
}

void JobCoordinator::join_saver() {
    if (saver_.joinable())
        saver_.join();
}

void JobCoordinator::attach(Server& server, ServerEndpoint& endpoint) {
    server_ = &server;
    endpoint_ = &endpoint;
}

// --- training ------------------------------------------------------------------------------------

void JobCoordinator::note(int worker, int64_t step, const std::string& name, PooledBytes body) {
    std::span<const std::byte> bytes = body.bytes();
    if (name == job::progress)
        progress(worker, step, job::take<job::Progress>(bytes));
    else if (name == job::stop)
        announce_stop("worker " + std::to_string(worker));
    else if (name == job::warning)
        log_->warn("worker " + std::to_string(worker) + ": " + printable(bytes));
    else if (name == job::hint && std::exchange(hinted_, step) != step)  // one of all workers'
        log_->say("hint         worker " + std::to_string(worker) + ": " + printable(bytes));
    else if (name == job::leaving) {
        leaving_.add(worker);
        ask_for_change();
    } else if (name == job::ended) {
        ended_ = true;
        outcome_ =
            job::take<job::Verdict>(bytes).stop != 0 ? ExitCode::interrupted : ExitCode::done;
    }
}

void JobCoordinator::left(int worker) {
    there_.remove(worker);
    starting_[static_cast<size_t>(worker)] = {};
}

void JobCoordinator::progress(int worker, int64_t step, const job::Progress& progress) {
    auto& all = progress_[step];
    all.resize(static_cast<size_t>(workers_));
    all[static_cast<size_t>(worker)] = progress;
    totals_[static_cast<size_t>(worker)] = progress.total;
    log_progress();
}

/// What all who are there have reported.
void JobCoordinator::log_progress() {
    while (!progress_.empty()) {
        const auto& [step, all] = *progress_.begin();
        std::vector<job::Progress> complete;
        std::vector<int> ranks;
        for (int worker = 0; worker < workers_; ++worker) {
            const auto& one = all[static_cast<size_t>(worker)];
            if (!one && there_.has(worker))
                return;
            if (one) {
                complete.push_back(*one);
                ranks.push_back(worker);
            }
        }
        if (rhythm_.logs_window(step))
            log_training(RecordType::step, step, complete, &job::Progress::window,
                         &job::Progress::window_spent);
        if (rhythm_.logs_comm(step))
            log_comm(step, complete, ranks);
        if (rhythm_.logs_epoch(step))
            log_training(RecordType::epoch, step, complete, &job::Progress::epoch,
                         &job::Progress::epoch_spent);
        progress_.erase(progress_.begin());
    }
}

void JobCoordinator::log_training(RecordType type, int64_t step,
                                  const std::vector<job::Progress>& progress,
                                  LossSums job::Progress::*sums, job::Spent job::Progress::*spent) {
    Record record{.type = type, .step = step, .epoch = epoch_of(step)};
    record.lr = learning_rate(plan_, rhythm_, step - 1);
    record.images_per_s = record.data_wait = 0;
    for (const job::Progress& worker : progress) {
        const job::Spent& time = worker.*spent;
        record.sums += worker.*sums;
        *record.images_per_s += share(static_cast<double>(time.images), time.step_s);
        *record.data_wait += time.data_wait_s / static_cast<double>(progress.size());
    }
    log_->record(record, position(step));
}

void JobCoordinator::log_comm(int64_t step, const std::vector<job::Progress>& progress,
                              const std::vector<int>& ranks) {
    // What the worker that waited least has waited for is communication; what others waited longer
    // is for slower workers.
    double exposed = progress.front().window_link.wait_s;
    for (const job::Progress& worker : progress)
        exposed = std::min(exposed, worker.window_link.wait_s);
    for (size_t i = 0; i < progress.size(); ++i) {
        const int worker = ranks[i];
        const job::Progress& from = progress[i];
        const LinkCounters& link = from.window_link;
        Record comm{.type = RecordType::comm, .step = step, .epoch = epoch_of(step)};
        comm.worker = worker;
        comm.push_bytes = link.push_bytes;
        comm.pull_bytes = link.pull_bytes;
        comm.push_s = link.push_s;
        comm.pull_s = link.pull_s;
        comm.wait_s = link.wait_s;
        comm.data_wait = from.window_spent.data_wait_s;
        comm.compute_s = from.window_spent.step_s - from.window_spent.data_wait_s - link.wait_s;
        comm.exposed_s = exposed;
        comm.hidden_s = std::max(0.0, link.travel_s - link.wait_s);
        const Shard::Staleness& now = server_->shard().staleness(worker);
        Shard::Staleness& before = staleness_[static_cast<size_t>(worker)];
        comm.staleness = share(static_cast<double>(now.sum - before.sum),
                               static_cast<double>(now.pushes - before.pushes));
        before = now;
        log_->record(comm, position(step));
        LinkCounters& total = traffic_[static_cast<size_t>(worker)];
        total.push_bytes += link.push_bytes;
        total.pull_bytes += link.pull_bytes;
        total.travel_s += link.travel_s;
        total.wait_s += exposed;
    }
}

// --- boundaries ----------------------------------------------------------------------------------

void JobCoordinator::boundary(const Request& request, PooledBytes body) {
    AtBoundary at{request, std::move(body), {}, {}};
    at.rest = at.body.bytes();
    at.head = job::take<job::Boundary>(at.rest);
    totals_[static_cast<size_t>(request.worker)] = at.head.total;
    boundary_[static_cast<size_t>(request.worker)] = std::move(at);
    look_at_boundary();
}

/// Once all who are there stand at it.
void JobCoordinator::look_at_boundary() {
    std::optional<int64_t> step;
    for (int worker = 0; worker < workers_; ++worker) {
        const auto& at = boundary_[static_cast<size_t>(worker)];
        if (there_.has(worker) && !at)
            return;
        if (!at)
            continue;
        check(step.value_or(at->request.step) == at->request.step,
              "all workers stand at the same step");
        step = at->request.step;
    }
    if (!step || scorer_ || scored_)
        return;
    state_.step = *step;
    state_.window = state_.epoch = {};
    for (const auto& at : boundary_)
        if (at) {
            state_.window += at->head.state.window;
            state_.epoch += at->head.state.epoch;
        }
    average_statistics();
    appoint_scorer();
}

/// The first of those who are there scores the model, and brings what the other servers have.
void JobCoordinator::appoint_scorer() {
    scorer_ = there_.ranks().front();
    const Request& request = boundary_[static_cast<size_t>(*scorer_)]->request;
    std::vector<std::byte> body;
    append(body, bytes_of(job::Verdict{.leads = 1}));
    append(body, std::as_bytes(statistics_.slab<float>(slab::weights)));
    endpoint_->reply(request, body);
}

// In worker order, so that a run gives the same bits every time.
void JobCoordinator::average_statistics() {
    const auto mean = statistics_.slab<float>(slab::weights);
    std::vector<double> sums(mean.size(), 0);
    std::vector<float> values(mean.size());
    int count = 0;
    for (const auto& worker : boundary_) {
        if (!worker)
            continue;
        std::span<const std::byte> bytes = worker->rest;
        job::take_slab(bytes, values);
        for (size_t i = 0; i < values.size(); ++i)
            sums[i] += static_cast<double>(values[i]);
        ++count;
    }
    for (size_t i = 0; i < values.size(); ++i)
        mean[i] = static_cast<float>(sums[i] / count);
}

void JobCoordinator::scored(const Request& request, std::span<const std::byte> body) {
    check(scorer_ == request.worker && boundary_[static_cast<size_t>(request.worker)].has_value(),
          "a score is of a boundary");
    const auto score = job::take<job::Scored>(body);
    scorer_.reset();
    scored_ = request;
    if (score.evaluated != 0)
        note_score(score);
    const bool with_slabs = boundary_[static_cast<size_t>(request.worker)]->head.with_slabs != 0;
    const bool is_best = state_.best == state_.step && rhythm_.saves_best(state_.step);
    if (with_slabs && (rhythm_.saves(state_.step) || is_best || stopping_ || !leaving_.empty())) {
        take_parts(body);
        save();
    } else {
        saved(false);
    }
}

/// What was to be saved at the boundary is; now it ends.
void JobCoordinator::saved(bool whole) {
    is_saved_ = whole;
    const bool last = rhythm_.is_last(state_.step);
    if (!stopping_ && !last && members_change() &&
        boundary_[static_cast<size_t>(scored_->worker)]->head.with_slabs != 0) {
        change_members();
        return;
    }
    if (change_at_ <= state_.step)
        change_at_ = -1;
    if (last) {
        count_lost_samples(state_.step);
        ended_ = true;
    }
    const job::Verdict verdict{.stop = stopping_ && is_saved_ && !last};
    if (verdict.stop != 0) {
        ended_ = true;
        outcome_ = ExitCode::interrupted;
        log_->say((signal_ != 0 ? format("stopped by signal %d after step ", signal_)
                                : "stopped after step ") +
                  std::to_string(state_.step) + ", checkpoint written to " +
                  store_->directory().string() + "; the same command goes on from there");
    }
    if (last || verdict.stop != 0)
        for (int worker = 0; worker < workers_; ++worker)
            if (!there_.has(worker) && starting_[static_cast<size_t>(worker)].request)
                turn_away(worker, last ? job::late_done : job::late_stopped);
    for (auto& at : boundary_) {
        if (!at)
            continue;
        const bool scored = at->request.worker == scored_->worker;
        endpoint_->reply(scored ? *scored_ : at->request, bytes_of(verdict));
    }
    end_boundary();
}

void JobCoordinator::end_boundary() {
    for (auto& at : boundary_)
        at.reset();
    scored_.reset();
}

// --- scores and checkpoints
// ------------------------------------------------------------------------

void JobCoordinator::note_score(const job::Scored& score) {
    state_.evaluated = state_.step;
    state_.evaluation = score.sums;
    if (state_.best < 0 || score.sums.top1 > state_.best_evaluation.top1) {
        state_.best = state_.step;
        state_.best_evaluation = score.sums;
    }
    Record record{.type = RecordType::eval, .step = state_.step, .epoch = epoch_of(state_.step)};
    record.sums = score.sums;
    record.images_per_s = share(static_cast<double>(score.sums.samples), score.seconds);
    log_->record(record, position(state_.step));
}

void JobCoordinator::take_parts(std::span<const std::byte> parts) {
    const int servers = config_.distributed.servers;
    for (int server = 1; server < servers; ++server) {
        const Range range = shard_of(plan_.cuts, server);
        if (range.count == 0)
            continue;
        for (const std::string& name : arena_.slabs())
            if (name != slab::gradients)
                job::take_slab(parts,
                               arena_.slab<float>(name).subspan(static_cast<size_t>(range.first),
                                                                static_cast<size_t>(range.count)));
    }
}

// The file is written by a thread of its own. Nothing that it reads changes meanwhile: all workers
// wait for the boundary's end.
void JobCoordinator::save() {
    CheckpointContents contents;
    append_model(contents, arena_, statistics_, state_.step);
    for (const std::string& name : plan_.saved_server_slabs()) {
        append_slab(contents.state, arena_, name, name);
    }
    const bool best =
        state_.evaluated == state_.step && (state_.best == state_.step || state_.best_saved < 0);
    if (best)
        state_.best_saved = state_.step;
    contents.metadata = metadata_of(state_, config_, plan_.steps_per_epoch);
    for (const auto& at : boundary_) {
        if (!at)
            continue;
        const int worker = at->request.worker;
        std::span<const std::byte> rest = at->rest;
        const auto add = [&](std::string_view what, int64_t size) {
            const size_t bytes = static_cast<size_t>(size) * sizeof(float);
            if (rest.size() < bytes)
                throw Error("worker " + std::to_string(worker) + " sent less than its state");
            contents.state.push_back(
                {worker_entry(worker, what), "F32", {size}, rest.subspan(0, bytes)});
            rest = rest.subspan(bytes);
        };
        add("statistics", statistics_.size());
        for (const std::string& name : plan_.saved_worker_slabs())
            add(name, arena_.size());
        const job::WorkerState& state = at->head.state;
        contents.metadata[worker_entry(worker, "pulled_step")] = std::to_string(state.pulled_step);
        contents.metadata[worker_entry(worker, "pull_pending")] =
            std::to_string(state.pull_pending);
        put_sums(contents.metadata, worker_entry(worker, "window_sums"), state.window);
        put_sums(contents.metadata, worker_entry(worker, "epoch_sums"), state.epoch);
    }
    add_members(contents.metadata);
    add_card(contents.metadata, training_, training_loader(config_).normalization);
    saver_ = std::thread([this, contents = std::move(contents), best] {
        std::exception_ptr error;
        try {
            check_finite(arena_, slab::weights, state_.step);
            for (const std::string& name : plan_.saved_server_slabs())
                check_finite(arena_, name, state_.step);
            store_->save(state_.step, contents, best);
        } catch (...) {
            error = std::current_exception();
        }
        endpoint_->loop().post([this, error, generation = generation_] {
            if (generation != generation_)
                return;  // all has begun again, and waited for this
            join_saver();
            try {
                if (error)
                    std::rethrow_exception(error);
                saved(true);
            } catch (...) {
                endpoint_->fail(std::current_exception());
            }
        });
    });
}

// --- the end -------------------------------------------------------------------------------------

void JobCoordinator::request_stop(int signal) {
    endpoint_->loop().post([this, signal] {
        signal_ = signal;
        try {
            announce_stop("a signal");
        } catch (...) {
            endpoint_->fail(std::current_exception());
        }
    });
}

void JobCoordinator::announce_stop(const std::string& who) {
    if (stopping_)
        return;
    stopping_ = true;
    if (log_)
        log_->note(who + " asks for the run to stop");
    if (started_)
        send_stop();
}

// A step that no worker has passed when it hears of it: a worker that has pushed step s goes past
// s + 1 only with an answer that leaves here after this; of the variants that do not wait for every
// answer, at most a round of k or H later.
int64_t JobCoordinator::step_ahead() const {
    const StepScheduleOptions& schedule = plan_.variant.exchange.schedule.options();
    const bool waits = schedule.kind == StepScheduleOptions::Kind::synchronous;
    const int64_t ahead = waits ? 0 : std::max(schedule.delay_steps, schedule.local_steps) + 1;
    return std::max({server_->newest_push(), start_step_ - 1, rhythm_.first_step - 1}) + 2 + ahead;
}

void JobCoordinator::send_stop() {
    stop_at_ = step_ahead();
    for (const int worker : there_.ranks())
        endpoint_->note(worker, stop_at_, std::string(job::stop), bytes_of(rhythm_.first_step));
}

ExitCode JobCoordinator::finish() {
    if (!log_ || outcome_ != ExitCode::done)
        return outcome_;
    log_->say("done         " + grouped(state_.step) + " steps");
    if (state_.evaluation.samples > 0) {
        const auto accuracy = [](const LossSums& sums) {
            return percent(
                share(static_cast<double>(sums.top1), static_cast<double>(sums.samples)));
        };
        log_->say("accuracy     last " + accuracy(state_.evaluation) +
                  format(" (loss %.4f), best ",
                         state_.evaluation.loss / static_cast<double>(state_.evaluation.samples)) +
                  accuracy(state_.best_evaluation) + " after step " + grouped(state_.best));
    }
    int slowest = 0;
    const auto own_s = [&](int worker) {
        const job::Spent& spent = totals_[static_cast<size_t>(worker)];
        return share(spent.step_s - spent.wait_s, static_cast<double>(spent.steps));
    };
    for (int worker = 0; worker < workers_; ++worker) {
        const job::Spent& spent = totals_[static_cast<size_t>(worker)];
        if (spent.steps == 0)
            continue;
        if (own_s(worker) > own_s(slowest))
            slowest = worker;
        const LinkCounters& link = traffic_[static_cast<size_t>(worker)];
        const double computing = spent.step_s - spent.wait_s - spent.data_wait_s;
        const Shard::Staleness& staleness = server_->shard().staleness(worker);
        const std::string late =
            staleness.pushes == 0
                ? std::string()
                : format("; staleness %.2f, at most %ld",
                         static_cast<double>(staleness.sum) / static_cast<double>(staleness.pushes),
                         staleness.largest);
        log_->say(format(
            "worker %-5d %.1f ms a step: computing %.1f %%, waiting for data %.1f %%, "
            "for messages to travel %.1f %%, for other workers %.1f %%; messages travel in "
            "%.0f %% of the time%s",
            worker, 1e3 * spent.step_s / static_cast<double>(spent.steps),
            100 * share(computing, spent.step_s), 100 * share(spent.data_wait_s, spent.step_s),
            100 * share(std::min(link.wait_s, spent.wait_s), spent.step_s),
            100 * share(std::max(0.0, spent.wait_s - link.wait_s), spent.step_s),
            100 * share(link.travel_s, spent.step_s), late.c_str()));
    }
    if (workers_ > 1 && totals_[0].steps > 0)
        log_->say(format("slowest      worker %d, %.1f ms a step without waiting for servers",
                         slowest, 1e3 * own_s(slowest)));
    if (lost_samples_ > 0)
        log_->say("lost         " + grouped(lost_samples_) + " samples, with workers");
    if (const int64_t late = server_->shard().late_pushes(); late > 0)
        log_->say("backup       " + grouped(late) + " pushes came after their step was closed");
    log_->say("checkpoints  " + (store_->directory() / "latest").string() + " and best; logs " +
              (log_->directory() / "metrics.jsonl").string());
    log_->finish();
    return outcome_;
}

void JobCoordinator::failed(const std::string& why) {
    if (!log_)
        return;
    log_->note("error: " + why);
    if (!store_)
        return;
    if (const auto steps = store_->steps(); !steps.empty())
        log_->say("the last checkpoint is " +
                  (store_->directory() / ("step-" + std::to_string(steps.back()))).string());
}

/// The epoch, from 1, that the last of so many steps belongs to.
int64_t JobCoordinator::epoch_of(int64_t step) const {
    if (step <= rhythm_.first_step)
        return rhythm_.first_epoch + (rhythm_.first_position > 0 ? 1 : 0);
    return rhythm_.place(step - 1).epoch + 1;
}

Position JobCoordinator::position(int64_t step) const {
    const int64_t epoch = std::max<int64_t>(epoch_of(step), 1);
    const size_t first = there_.empty() ? 0 : static_cast<size_t>(there_.ranks().front());
    const job::Spent& spent = totals_[first];
    const bool begun = step > rhythm_.first_step;
    return {.step = step,
            .total_steps = rhythm_.total_steps(),
            .epoch = epoch,
            .epochs = config_.train.epochs,
            .step_in_epoch = begun ? rhythm_.place(step - 1).step_in_epoch + 1 : 0,
            .steps_per_epoch = rhythm_.steps_per_epoch(),
            .seconds_left = share(spent.step_s, static_cast<double>(spent.steps)) *
                            static_cast<double>(rhythm_.total_steps() - step)};
}

}  // namespace trainer
