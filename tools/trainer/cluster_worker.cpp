#include "tools/trainer/cluster_worker.h"

#include <algorithm>
#include <iostream>

#include "optim/server.h"
#include "tools/trainer/setup.h"

namespace trainer {
namespace {

using job::bytes_of;
using Clock = std::chrono::steady_clock;

// Of what takes as long as it takes: others starting, an evaluation, a checkpoint. A server or
// worker that is lost ends the wait at once.
constexpr std::chrono::hours patience{24};

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

LoaderOptions loader_options(const Config& config, int rank) {
    LoaderOptions options = training_loader(config);
    options.worker = rank;
    options.workers = config.distributed.workers;
    return options;
}

WorkerOptions worker_options(const Config& config) {
    const auto step_time = config.comm.emulate.step_time.value_or(Duration(0));
    return {.seed = config.seed,
            .label_smoothing = config.train.label_smoothing,
            .clip_grad_norm = config.train.clip_grad_norm,
            .step_seconds = std::chrono::duration<double>(step_time).count()};
}

LinkCounters operator-(const LinkCounters& a, const LinkCounters& b) {
    return {a.push_bytes - b.push_bytes, a.pull_bytes - b.pull_bytes, a.push_s - b.push_s,
            a.pull_s - b.pull_s,         a.travel_s - b.travel_s,     a.wait_s - b.wait_s};
}

std::string name(std::string_view text) {
    return std::string(text);
}

}  // namespace

struct ClusterWorker::Scorer {
    static std::function<Memory(size_t)> slabs_of(Backend& backend) {
        return [&backend](size_t bytes) { return backend.allocate_slabs(bytes, SlabHome::host); };
    }

    Scorer(Loader& loader, const Network& network, Backend& backend)
        : parameters(network.parameters(), DType::f32, {name(slab::weights)}, slabs_of(backend)),
          statistics(network.statistics(), DType::f32, {name(slab::weights)}, slabs_of(backend)),
          evaluator(loader, network, backend, parameters, statistics) {}

    ParameterArena parameters, statistics;
    Evaluator evaluator;
};

ClusterWorker::ClusterWorker(const Config& config, const ClusterPlan& plan, const Dataset& training,
                             const Dataset* test, Link& link, const ClusterWorkerOptions& options)
    : config_(config),
      plan_(plan),
      link_(link),
      options_(options),
      loader_(training, loader_options(config, link.rank())),
      test_loader_(test == nullptr
                       ? nullptr
                       : std::make_unique<Loader>(*test, evaluation_loader(config, *test))),
      backend_(make_own_backend()),
      parameters_(plan.network.parameters(), DType::f32, plan.worker_slabs(),
                  [this](size_t bytes) { return backend_->allocate_slabs(bytes, SlabHome::host); }),
      statistics_(plan.network.statistics(), DType::f32, {name(slab::weights)},
                  [this](size_t bytes) { return backend_->allocate_slabs(bytes, SlabHome::host); }),
      exchange_(plan.variant.exchange, link, parameters_, *plan.optimizer, backend_->lanes()),
      worker_({plan.network, *backend_, parameters_, statistics_, loader_, *plan.optimizer,
               plan.schedule, &exchange_},
              worker_options(config)) {
    warn(training.notes);
    if (test_loader_)
        scorer_ = std::make_unique<Scorer>(*test_loader_, plan.network, *backend_);
}

ClusterWorker::~ClusterWorker() = default;

std::unique_ptr<Backend> ClusterWorker::make_own_backend() const {
    const bool pin = options_.first_processor >= 0;
    if (pin)
        use_processors(options_.first_processor, options_.threads);
    Config own = config_;
    own.threads = options_.threads;
    return make_backend(own, std::nullopt, pin);
}

ExitCode ClusterWorker::run() {
    try {
        return train();
    } catch (const std::exception& error) {
        link_.fail(error.what());
        throw;
    }
}

ExitCode ClusterWorker::train() {
    const job::Start begin = start();
    worker_.executor().profile(config_.profile);
    bool due = begin.boundary_first != 0;
    bool stopped = false;
    while (begin.nothing_left == 0) {
        if (due && boundary()) {
            stopped = true;
            break;
        }
        if (rhythm_.is_last(worker_.steps()))
            break;
        step();
        report_progress();
        hear_of_stops();
        due = rhythm_.has_boundary(worker_.steps()) || worker_.steps() == stop_at_;
    }
    leave(stopped);
    return stopped ? ExitCode::interrupted : ExitCode::done;
}

// --- the start -----------------------------------------------------------------------------------

job::Start ClusterWorker::start() {
    const std::string device = backend_->description();
    options_.log("device       " + device);
    const PooledBytes reply =
        link_.call(0, 0, name(job::start), {std::as_bytes(std::span(device))}, patience);
    std::span<const std::byte> body = reply.bytes();
    const auto start = job::take<job::Start>(body);
    rhythm_ = start.rhythm;
    if (link_.rank() == 0) {
        share_out(start.state.step);
        link_.call(0, start.state.step, name(job::ready), {}, patience);
    }
    adopt(start, body);
    if (start.state.step > 0)
        options_.log("resume       after step " + std::to_string(start.state.step));
    return start;
}

// What server 0 has read or drawn, to the other servers.
void ClusterWorker::share_out(int64_t step) {
    for (int32_t server = 1; server < link_.servers(); ++server) {
        if (!plan_.has_shard(server))
            continue;
        const PooledBytes part = link_.call(0, step, name(job::part), {bytes_of(server)}, patience);
        link_.call(server, step, name(call::load), {part.bytes()}, patience);
    }
}

void ClusterWorker::adopt(const job::Start& start, std::span<const std::byte> body) {
    job::take_slab(body, statistics_.slab<float>(slab::weights));
    bool own_weights = false;
    if (start.fresh == 0)
        for (const std::string& slab_name : plan_.saved_worker_slabs()) {
            job::take_slab(body, parameters_.slab<float>(slab_name));
            own_weights = own_weights || slab_name == slab::weights;
        }
    const int64_t step = start.state.step;
    if (!own_weights)
        link_.wait(link_.pull(step, {0, parameters_.size()}, parameters_.address(slab::weights)),
                   patience);
    window_ = start.state.window;
    epoch_ = start.state.epoch;
    exchange_.start(start.state.exchange());
    worker_.start(step);
    window_link_ = link_.counters();
}

// --- training ------------------------------------------------------------------------------------

void ClusterWorker::hear_of_stops() {
    while (const std::optional<Note> note = link_.take_note())
        if (note->name == job::stop && note->server == 0)
            stop_at_ = note->step;
        else if (note->name == job::stop && !std::exchange(told_signal_, true))
            link_.note(0, worker_.steps(), name(job::stop), {});
    if (options_.signal && options_.signal() != 0 && !std::exchange(told_signal_, true))
        link_.note(0, worker_.steps(), name(job::stop), {});
}

void ClusterWorker::warn(const std::vector<std::string>& notes) const {
    for (const std::string& note : notes)
        std::cerr << "trainer: warning: worker " + std::to_string(link_.rank()) + ": " + note +
                         "\n";
}

void ClusterWorker::step() {
    const auto begin = Clock::now();
    const double data_wait = loader_.waited_seconds(), wait = link_.counters().wait_s;
    const StepResult result = worker_.step();
    warn(loader_.take_notes());
    if (test_loader_)
        warn(test_loader_->take_notes());
    spent_.step_s += seconds_since(begin);
    spent_.data_wait_s += loader_.waited_seconds() - data_wait;
    spent_.wait_s += link_.counters().wait_s - wait;
    spent_.images += result.sums.samples;
    ++spent_.steps;
    window_ += result.sums;
    epoch_ += result.sums;
    if (options_.exposition != nullptr)
        expose(result);
}

void ClusterWorker::expose(const StepResult& result) {
    const LinkCounters link = link_.counters();
    const job::Spent epoch = spent_ - epoch_start_;
    options_.exposition->update([&](RunNumbers& numbers) {
        const double samples = static_cast<double>(std::max<int64_t>(epoch_.samples, 1));
        numbers.step = worker_.steps();
        numbers.epoch = static_cast<double>((worker_.steps() - 1) / plan_.steps_per_epoch + 1);
        numbers.loss = epoch_.loss / samples;
        numbers.top1 = static_cast<double>(epoch_.top1) / samples;
        numbers.learning_rate = result.lr;
        numbers.images_per_s = static_cast<double>(epoch.images) / epoch.step_s;
        numbers.images_total = static_cast<double>(spent_.images);
        numbers.data_wait_s_total = spent_.data_wait_s;
        numbers.traffic[link_.rank()] = {.push_bytes_total = static_cast<double>(link.push_bytes),
                                         .pull_bytes_total = static_cast<double>(link.pull_bytes),
                                         .push_s_total = link.push_s,
                                         .pull_s_total = link.pull_s,
                                         .wait_s_total = link.wait_s,
                                         .staleness = {}};
    });
}

void ClusterWorker::report_progress() {
    const int64_t step = worker_.steps();
    const bool window = rhythm_.logs_window(step), epoch = rhythm_.logs_epoch(step);
    if (!window && !epoch)
        return;
    job::Progress progress{.window = window_,
                           .epoch = epoch_,
                           .window_spent = spent_ - window_start_,
                           .epoch_spent = spent_ - epoch_start_,
                           .total = spent_,
                           .window_link = link_.counters() - window_link_};
    progress.window_link.wait_s = progress.window_spent.wait_s;
    link_.note(0, step, name(job::progress), bytes_of(progress));
    if (window) {
        window_ = {};
        window_start_ = spent_;
        window_link_ = link_.counters();
    }
    if (rhythm_.ends_epochs(step, 1)) {
        epoch_ = {};
        epoch_start_ = spent_;
    }
}

job::WorkerState ClusterWorker::state() const {
    const ExchangeState exchange = exchange_.state();
    return {.step = exchange.step,
            .pulled_step = exchange.pulled_step,
            .pull_pending = exchange.pull_pending ? 1 : 0,
            .window = window_,
            .epoch = epoch_};
}

// --- boundaries ----------------------------------------------------------------------------------

bool ClusterWorker::boundary() {
    const int64_t step = worker_.steps();
    const bool evaluates = rhythm_.evaluates(step);
    const bool with_slabs = rhythm_.saves(step) || rhythm_.saves_best(step) || step == stop_at_;
    const job::Boundary head{.state = state(), .total = spent_, .with_slabs = with_slabs ? 1 : 0};
    Parts body{bytes_of(head), std::as_bytes(statistics_.slab<float>(slab::weights))};
    if (with_slabs)
        for (const std::string& slab_name : plan_.saved_worker_slabs())
            body.push_back(std::as_bytes(parameters_.slab<float>(slab_name)));
    PooledBytes verdict = link_.call(0, step, name(job::boundary), std::move(body), patience);
    if (link_.rank() == 0) {
        const PooledBytes statistics = std::exchange(verdict, {});
        score(statistics.bytes(), evaluates, with_slabs, verdict);
    }
    std::span<const std::byte> bytes = verdict.bytes();
    return job::take<job::Verdict>(bytes).stop != 0;
}

// Worker 0: the model of this step, from all servers, with the average of the statistics.
void ClusterWorker::score(std::span<const std::byte> statistics, bool evaluates, bool with_slabs,
                          PooledBytes& verdict) {
    const int64_t step = worker_.steps();
    job::Scored scored{};
    if (evaluates) {
        job::take_slab(statistics, scorer_->statistics.slab<float>(slab::weights));
        for (int server = 0; server < link_.servers(); ++server) {
            if (!plan_.has_shard(server))
                continue;
            const Range range = shard_of(plan_.cuts, server);
            const PooledBytes part = link_.call(server, step, name(call::weights), {}, patience);
            std::span<const std::byte> bytes = part.bytes();
            job::take_slab(bytes, scorer_->parameters.slab<float>(slab::weights)
                                      .subspan(static_cast<size_t>(range.first),
                                               static_cast<size_t>(range.count)));
        }
        const auto begin = Clock::now();
        scored.sums = *scorer_->evaluator.run();
        scored.seconds = seconds_since(begin);
        scored.evaluated = 1;
    }
    std::vector<PooledBytes> slabs;
    Parts body{bytes_of(scored)};
    for (int server = 1; with_slabs && server < link_.servers(); ++server) {
        if (!plan_.has_shard(server))
            continue;
        slabs.push_back(link_.call(server, step, name(call::slabs), {}, patience));
        body.push_back(slabs.back().bytes());
    }
    verdict = link_.call(0, step, name(job::scored), std::move(body), patience);
}

void ClusterWorker::leave(bool stopped) {
    if (const int64_t late = worker_.executor().late_steps(); late > 0)
        options_.log("emulated     " + std::to_string(late) + " of " +
                     std::to_string(spent_.steps) +
                     " steps took longer here than comm.emulate.step_time");
    const job::Verdict verdict{.stop = stopped ? 1 : 0};
    for (int server = 1; server < link_.servers(); ++server)
        link_.note(server, worker_.steps(), name(job::ended), bytes_of(verdict));
    link_.close();
}

}  // namespace trainer
