#include "tools/trainer/coordinator.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tools/trainer/model_card.h"
#include "tools/trainer/setup.h"

namespace trainer {
namespace {

using job::bytes_of;

template <typename... Values>
std::string format(const char* pattern, Values... values) {
    char text[256];
    std::snprintf(text, sizeof text, pattern, values...);
    return text;
}

void append(std::vector<std::byte>& body, std::span<const std::byte> bytes) {
    body.insert(body.end(), bytes.begin(), bytes.end());
}

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
      rhythm_{.steps_per_epoch = plan.steps_per_epoch,
              .total_steps = plan.total_steps,
              .eval_every_epochs = config.train.eval_every_epochs,
              .checkpoint_every_epochs = config.checkpoint.every_epochs,
              .checkpoint_every_steps = config.checkpoint.every_steps,
              .log_every_steps = config.log.every_steps},
      starting_(static_cast<size_t>(workers_)),
      boundary_(static_cast<size_t>(workers_)),
      totals_(static_cast<size_t>(workers_)),
      traffic_(static_cast<size_t>(workers_)),
      staleness_(static_cast<size_t>(workers_)) {}

void JobCoordinator::attach(Server& server, ServerEndpoint& endpoint) {
    server_ = &server;
    endpoint_ = &endpoint;
}

// --- the start -----------------------------------------------------------------------------------

void JobCoordinator::open() {
    if (log_)
        return;
    log_.emplace(config_);
    store_.emplace(config_.checkpoint.dir, config_.checkpoint.keep,
                   [this](const std::string& text) { log_->warn(text); });
    resumed_ = checkpoint_to_resume(config_, *store_,
                                    [this](const std::string& text) { log_->say(text); });
    fresh_ = !resumed_.has_value();
    introduce();
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
    log_->say("cluster      " + distributed.variant + ", " + std::to_string(workers_) +
              (workers_ == 1 ? " worker, " : " workers, ") + std::to_string(distributed.servers) +
              (distributed.servers == 1 ? " server" : " servers"));
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
    from_elsewhere_ =
        !std::filesystem::equivalent(resumed_->path().parent_path(), store_->directory());
    if (from_elsewhere_)
        state_.best_saved = -1;  // the link `best` is the other directory's
    log_->say("resume       " + resumed_->path().string() + ": " + grouped(state_.step) +
              " steps done");
}

void JobCoordinator::start_afresh() {
    initialize_weights(arena_, config_.seed);
    initialize_weights(statistics_, config_.seed);
    if (config_.model.init.empty())
        return;
    const SafetensorsFile file(config_.model.init);
    const InitResult result = read_model(file, plan_.network, arena_, statistics_);
    log_->say("start        from " + config_.model.init);
    for (const std::string& name : result.fresh)
        log_->say("             " + name + " is of another size there, and starts afresh");
}

void JobCoordinator::call(const Request& request, const std::string& name, PooledBytes body) {
    std::span<const std::byte> bytes = body.bytes();
    if (name == job::start) {
        start(request, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    } else if (name == job::part) {
        answer_part(request, job::take<int32_t>(bytes));
    } else if (name == job::ready) {
        starting_[0].request = request;
        start_all();
    } else if (name == job::boundary) {
        boundary(request, std::move(body));
    } else if (name == job::scored) {
        scored(request, bytes);
    } else {
        throw Error("worker " + std::to_string(request.worker) + " calls for '" + name +
                    "', which this server does not know: is every process of one build?");
    }
}

void JobCoordinator::start(const Request& request, std::string device) {
    open();
    starting_[static_cast<size_t>(request.worker)].device = std::move(device);
    if (request.worker == 0) {
        answer_start(request);  // its `ready` is what waits
        return;
    }
    starting_[static_cast<size_t>(request.worker)].request = request;
    start_all();
}

void JobCoordinator::start_all() {
    if (!std::ranges::all_of(starting_, [](const Starting& s) { return s.request.has_value(); }))
        return;
    log_->header({.device = starting_[0].device,
                  .data = training_.description,
                  .parameters = arena_.size(),
                  .global_batch = int64_t{config_.data.batch_size} * workers_,
                  .steps_per_epoch = plan_.steps_per_epoch,
                  .start_step = state_.step,
                  .fresh = fresh_});
    for (int worker = 0; worker < workers_; ++worker) {
        const Starting& starting = starting_[static_cast<size_t>(worker)];
        log_->note("worker " + std::to_string(worker) + "     " + starting.device);
        if (worker == 0)
            endpoint_->reply(*starting.request, std::span<const std::byte>());
        else
            answer_start(*starting.request);
    }
    resumed_.reset();
    started_ = true;
    if (stopping_)
        send_stop();
}

std::string JobCoordinator::worker_entry(int worker, std::string_view what) const {
    return "worker" + std::to_string(worker) + "." + std::string(what);
}

void JobCoordinator::answer_start(const Request& request) {
    job::Start start{.rhythm = rhythm_, .state = {}, .fresh = fresh_ ? 1 : 0};
    std::vector<float> statistics(static_cast<size_t>(statistics_.size()));
    std::ranges::copy(statistics_.slab<float>(slab::weights), statistics.begin());
    std::vector<std::vector<float>> slabs;
    if (resumed_) {
        const auto read = [&](std::string_view what, std::span<float> values) {
            resumed_->state.read(worker_entry(request.worker, what),
                                 {static_cast<int64_t>(values.size())}, values);
        };
        const auto number = [&](std::string_view what) {
            return resumed_->number(worker_entry(request.worker, what));
        };
        read("statistics", statistics);
        for (const std::string& name : plan_.saved_worker_slabs())
            read(name, slabs.emplace_back(static_cast<size_t>(arena_.size())));
        start.state = {.step = state_.step,
                       .pulled_step = number("pulled_step"),
                       .pull_pending = number("pull_pending"),
                       .window = sums_of(*resumed_, worker_entry(request.worker, "window_sums")),
                       .epoch = sums_of(*resumed_, worker_entry(request.worker, "epoch_sums"))};
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

// --- training ------------------------------------------------------------------------------------

void JobCoordinator::note(int worker, int64_t step, const std::string& name, PooledBytes body) {
    std::span<const std::byte> bytes = body.bytes();
    if (name == job::progress)
        progress(worker, step, job::take<job::Progress>(bytes));
    else if (name == job::stop)
        announce_stop("worker " + std::to_string(worker));
    else if (name == job::ended)
        outcome_ =
            job::take<job::Verdict>(bytes).stop != 0 ? ExitCode::interrupted : ExitCode::done;
}

void JobCoordinator::left(int /*worker*/) {
    ++departed_;
}

void JobCoordinator::progress(int worker, int64_t step, const job::Progress& progress) {
    auto& all = progress_[step];
    all.resize(static_cast<size_t>(workers_));
    all[static_cast<size_t>(worker)] = progress;
    totals_[static_cast<size_t>(worker)] = progress.total;
    if (!std::ranges::all_of(all, [](const auto& one) { return one.has_value(); }))
        return;
    std::vector<job::Progress> complete;
    for (const auto& one : all)
        complete.push_back(*one);
    progress_.erase(step);
    if (rhythm_.logs_window(step))
        log_window(step, complete);
    if (rhythm_.logs_comm(step))
        log_comm(step, complete);
    if (rhythm_.logs_epoch(step))
        log_epoch(step, complete);
}

void JobCoordinator::log_window(int64_t step, const std::vector<job::Progress>& progress) {
    Record record{.type = RecordType::step, .step = step, .epoch = epoch_of(step)};
    record.lr = plan_.schedule.at(step - 1);
    record.images_per_s = record.data_wait = 0;
    for (const job::Progress& worker : progress) {
        record.sums += worker.window;
        *record.images_per_s +=
            share(static_cast<double>(worker.window_spent.images), worker.window_spent.step_s);
        *record.data_wait += worker.window_spent.data_wait_s / workers_;
    }
    log_->record(record, position(step));
}

void JobCoordinator::log_comm(int64_t step, const std::vector<job::Progress>& progress) {
    // What the worker that waited least has waited for is communication; what others waited longer
    // is for slower workers.
    double exposed = progress.front().window_link.wait_s;
    for (const job::Progress& worker : progress)
        exposed = std::min(exposed, worker.window_link.wait_s);
    for (int worker = 0; worker < workers_; ++worker) {
        const job::Progress& from = progress[static_cast<size_t>(worker)];
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

void JobCoordinator::log_epoch(int64_t step, const std::vector<job::Progress>& progress) {
    Record record{.type = RecordType::epoch, .step = step, .epoch = epoch_of(step)};
    record.lr = plan_.schedule.at(step - 1);
    record.images_per_s = record.data_wait = 0;
    for (const job::Progress& worker : progress) {
        record.sums += worker.epoch;
        *record.images_per_s +=
            share(static_cast<double>(worker.epoch_spent.images), worker.epoch_spent.step_s);
        *record.data_wait += worker.epoch_spent.data_wait_s / workers_;
    }
    log_->record(record, position(step));
}

// --- boundaries ----------------------------------------------------------------------------------

void JobCoordinator::boundary(const Request& request, PooledBytes body) {
    AtBoundary at{request, std::move(body), {}, {}};
    at.rest = at.body.bytes();
    at.head = job::take<job::Boundary>(at.rest);
    totals_[static_cast<size_t>(request.worker)] = at.head.total;
    boundary_[static_cast<size_t>(request.worker)] = std::move(at);
    for (const auto& other : boundary_) {
        if (!other)
            return;
        check(other->request.step == request.step, "all workers stand at the same step");
    }
    state_.step = request.step;
    state_.window = state_.epoch = {};
    for (const auto& worker : boundary_) {
        state_.window += worker->head.state.window;
        state_.epoch += worker->head.state.epoch;
    }
    average_statistics();
    endpoint_->reply(boundary_[0]->request, std::as_bytes(statistics_.slab<float>(slab::weights)));
}

// In worker order, so that a run gives the same bits every time.
void JobCoordinator::average_statistics() {
    const auto mean = statistics_.slab<float>(slab::weights);
    std::vector<double> sums(mean.size(), 0);
    std::vector<float> values(mean.size());
    for (auto& worker : boundary_) {
        std::span<const std::byte> bytes = worker->rest;
        job::take_slab(bytes, values);
        for (size_t i = 0; i < values.size(); ++i)
            sums[i] += static_cast<double>(values[i]);
    }
    for (size_t i = 0; i < values.size(); ++i)
        mean[i] = static_cast<float>(sums[i] / workers_);
}

void JobCoordinator::scored(const Request& request, std::span<const std::byte> body) {
    check(boundary_[0].has_value(), "a score is of a boundary");
    const auto score = job::take<job::Scored>(body);
    if (score.evaluated != 0)
        note_score(score);
    const bool with_slabs = boundary_[0]->head.with_slabs != 0;
    const bool last = rhythm_.is_last(state_.step);
    const bool is_best = state_.best == state_.step && rhythm_.saves_best(state_.step);
    bool saved = false;
    if (with_slabs && (rhythm_.saves(state_.step) || is_best || stopping_)) {
        take_parts(body);
        save();
        saved = true;
    }
    const job::Verdict verdict{.stop = stopping_ && saved && !last};
    if (verdict.stop != 0) {
        outcome_ = ExitCode::interrupted;
        log_->say((signal_ != 0 ? format("stopped by signal %d after step ", signal_)
                                : "stopped after step ") +
                  std::to_string(state_.step) + ", checkpoint written to " +
                  store_->directory().string() + "; the same command goes on from there");
    }
    for (auto& worker : boundary_) {
        const Request& waiting = worker->request.worker == 0 ? request : worker->request;
        endpoint_->reply(waiting, bytes_of(verdict));
        worker.reset();
    }
}

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

void JobCoordinator::save() {
    CheckpointContents contents;
    check_finite(arena_, slab::weights, state_.step);
    append_model(contents, arena_, statistics_, state_.step);
    for (const std::string& name : plan_.saved_server_slabs()) {
        check_finite(arena_, name, state_.step);
        append_slab(contents.state, arena_, name, name);
    }
    const bool best =
        state_.evaluated == state_.step && (state_.best == state_.step || state_.best_saved < 0);
    if (best)
        state_.best_saved = state_.step;
    contents.metadata = metadata_of(state_, config_, plan_.steps_per_epoch);
    for (const auto& at : boundary_) {
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
    add_card(contents.metadata, training_, training_loader(config_).normalization);
    store_->save(state_.step, contents, best);
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

// At a step that no worker has passed when it hears of it: a worker that has pushed step s goes
// past s + 1 only with an answer that leaves here after this; of the variants that do not wait for
// every answer, at most a round of k or H later.
void JobCoordinator::send_stop() {
    const StepScheduleOptions& schedule = plan_.variant.exchange.schedule.options();
    const bool waits = schedule.kind == StepScheduleOptions::Kind::synchronous;
    const int64_t ahead = waits ? 0 : std::max(schedule.delay_steps, schedule.local_steps) + 1;
    stop_at_ = std::max(server_->newest_push(), start_step_ - 1) + 2 + ahead;
    for (int worker = 0; worker < workers_; ++worker)
        endpoint_->note(worker, stop_at_, std::string(job::stop), {});
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

int64_t JobCoordinator::epoch_of(int64_t step) const {
    return (step + plan_.steps_per_epoch - 1) / plan_.steps_per_epoch;
}

Position JobCoordinator::position(int64_t step) const {
    const int64_t epoch = std::max<int64_t>(epoch_of(step), 1);
    const job::Spent& spent = totals_[0];
    return {.step = step,
            .total_steps = plan_.total_steps,
            .epoch = epoch,
            .epochs = config_.train.epochs,
            .step_in_epoch = step - (epoch - 1) * plan_.steps_per_epoch,
            .steps_per_epoch = plan_.steps_per_epoch,
            .seconds_left = share(spent.step_s, static_cast<double>(spent.steps)) *
                            static_cast<double>(plan_.total_steps - step)};
}

}  // namespace trainer
