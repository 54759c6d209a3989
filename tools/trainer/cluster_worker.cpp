#include "tools/trainer/cluster_worker.h"

#include <algorithm>
#include <utility>

#include "optim/server.h"
#include "tools/trainer/profile.h"
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

Config own_config(const Config& config, const ClusterWorkerOptions& options) {
    Config own = config;
    own.threads = options.threads;
    if (options.gpu)
        own.device = "cuda:" + std::to_string(*options.gpu);
    return own;
}

LoaderOptions loader_options(const Config& config, const ClusterWorkerOptions& own, int rank) {
    LoaderOptions options = training_loader(own_config(config, own));
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

    Scorer(Loader& loader, const Dataset& test, const Network& network, Backend& backend)
        : parameters(network.parameters(), DType::f32, {name(slab::weights)}, slabs_of(backend)),
          statistics(network.statistics(), DType::f32, {name(slab::weights)}, slabs_of(backend)),
          kept(keep_images(test, loader.options(), backend)),
          evaluator(loader, network, backend, parameters, statistics, kept.get()) {}

    ParameterArena parameters, statistics;
    std::unique_ptr<DeviceImages> kept;
    Evaluator evaluator;
};

ClusterWorker::ClusterWorker(const Config& config, const ClusterPlan& plan, const Dataset& training,
                             std::function<const Dataset&()> test, Link& link,
                             const ClusterWorkerOptions& options)
    : config_(config),
      plan_(plan),
      test_(std::move(test)),
      link_(link),
      options_(options),
      rhythm_(rhythm_of(config, training)),
      loader_(training, loader_options(config, options, link.rank())),
      test_loader_(link.rank() != 0 ? nullptr : make_test_loader()),
      backend_(make_own_backend()),
      group_(options.join ? options.join(link, *backend_) : nullptr),
      kept_(keep_images(training, loader_.options(), *backend_)),
      parameters_(plan.network.parameters(), DType::f32, plan.worker_slabs(),
                  [this](size_t bytes) {
                      const SlabHome home = group_ ? SlabHome::device : SlabHome::host;
                      return backend_->allocate_slabs(bytes, home);
                  }),
      statistics_(plan.network.statistics(), DType::f32, {name(slab::weights)},
                  [this](size_t bytes) { return backend_->allocate_slabs(bytes, SlabHome::host); }),
      exchange_(make_exchange()),
      worker_({plan.network, *backend_, parameters_, statistics_, loader_, *plan.optimizer,
               plan.schedule, exchange_.get(), kept_.get()},
              worker_options(config)) {
    for (const std::string& note : training.notes)  // server 0 says so of its own
        options_.log("warning      " + note);
    if (test_loader_)
        scorer_ = std::make_unique<Scorer>(*test_loader_, test_(), plan.network, *backend_);
}

ClusterWorker::~ClusterWorker() = default;

std::unique_ptr<Loader> ClusterWorker::make_test_loader() const {
    const Dataset& test = test_();
    return std::make_unique<Loader>(test, evaluation_loader(own_config(config_, options_), test));
}

std::unique_ptr<NextWeights> ClusterWorker::make_exchange() {
    ExchangeOptions options = plan_.variant.exchange;
    options.lr = [this](int64_t step) { return learning_rate(plan_, rhythm_, step); };
    if (group_) {
        auto among = std::make_unique<CollectiveExchange>(options, *group_, parameters_,
                                                          *plan_.optimizer, *backend_);
        among_workers_ = among.get();
        return among;
    }
    // Clipping takes the whole gradient before any of it leaves, a team of devices sums it.
    const bool on_device = config_.train.clip_grad_norm <= 0 && backend_->followers().empty();
    auto with =
        std::make_unique<Exchange>(options, link_, parameters_, *plan_.optimizer, backend_->lanes(),
                                   on_device ? backend_->make_exchange(parameters_) : nullptr);
    with_servers_ = with.get();
    return with;
}

/// Of gradients and weights, whichever way they go.
LinkCounters ClusterWorker::traffic() const {
    if (!group_)
        return link_.counters();
    const CollectiveCounters sums = group_->counters();
    LinkCounters counters;
    counters.push_bytes = sums.sent_bytes;
    counters.pull_bytes = sums.received_bytes;
    counters.push_s = counters.pull_s = counters.travel_s = sums.travel_s;
    counters.wait_s = sums.wait_s;
    return counters;
}

std::unique_ptr<Backend> ClusterWorker::make_own_backend() const {
    const bool pin = options_.first_processor >= 0;
    if (pin)
        use_processors(options_.first_processor, options_.threads);
    return make_backend(own_config(config_, options_), std::nullopt, pin);
}

ExitCode ClusterWorker::run() {
    try {
        return train();
    } catch (const ServerLost&) {
        throw;  // the others have been told to begin again
    } catch (const std::exception& error) {
        link_.fail(error.what());
        if (group_)
            group_->abort(error.what());
        throw;
    }
}

std::vector<std::string> ClusterWorker::profile() {
    const int64_t images = part_of(config_.data.batch_size, 0, backend_->lanes().count()).count;
    return profile_lines(worker_.executor().times(), spent_.steps, images);
}

ExitCode ClusterWorker::train() {
    const job::Start begin = start();
    if (begin.late != job::not_late)
        return leave_at_once(begin.late == job::late_stopped);
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
        report_progress(worker_.steps());
        hear_of_stops();
        if (config_.distributed.backup_workers > 0)
            skip_what_others_did();
        due = rhythm_.has_boundary(worker_.steps()) || stops_at(worker_.steps());
    }
    leave(!leaves_, stopped);
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
    if (start.late != job::not_late)
        return start;
    if (start.leads != 0) {
        share_out(start.state.step);
        link_.call(0, start.state.step, name(job::ready), {}, patience);
    }
    take_part(start.state.step);
    adopt(start, body);
    if (start.state.step > 0)
        options_.log("resume       after step " + std::to_string(start.state.step));
    return start;
}

ExitCode ClusterWorker::leave_at_once(bool stopped) {
    options_.log(stopped ? "worker       comes too late: the run has been stopped"
                         : "worker       comes too late: the run is all but done without it");
    try {
        link_.close();
    } catch (const Error&) {
        // The servers, who do not wait for this worker, may have ended by now.
    }
    return stopped ? ExitCode::interrupted : ExitCode::done;
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

// Tells the other servers who takes part from that step on.
void ClusterWorker::take_part(int64_t step) {
    std::vector<std::byte> members(static_cast<size_t>(link_.workers()));
    for (int rank = 0; rank < link_.workers(); ++rank)
        members[static_cast<size_t>(rank)] =
            std::byte{rhythm_.members.has(rank) ? uint8_t{1} : uint8_t{0}};
    for (int32_t server = 1; server < link_.servers(); ++server)
        link_.call(server, step, name(call::members), {std::span(members), bytes_of(rhythm_)},
                   patience);
}

void ClusterWorker::go_on_from(int64_t step) {
    const job::Place at = rhythm_.place(step);
    worker_.start(step, rhythm_.members.below(link_.rank()), rhythm_.members.count(), at.epoch,
                  at.position);
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
    if (group_)
        take_model(step, own_weights);
    else if (!own_weights)
        link_.wait(link_.pull(step, {0, parameters_.size()}, parameters_.address(slab::weights)),
                   patience);
    window_ = start.state.window;
    epoch_ = start.state.epoch;
    exchange_->start(start.state.exchange());
    go_on_from(step);
    window_link_ = traffic();
}

// What server 0 has kept or read: the model, and the optimizer's slabs of S-SGD.
void ClusterWorker::take_model(int64_t step, bool own_weights) {
    const PooledBytes state = link_.call(0, step, name(call::slabs), {}, patience);
    std::span<const std::byte> bytes = state.bytes();
    if (own_weights)
        return job::take_slab(bytes, parameters_.slab<float>(slab::common));
    for (const std::string& slab_name : plan_.server_slabs())
        if (slab_name != slab::gradients)
            job::take_slab(bytes, parameters_.slab<float>(slab_name));
}

// The same to server 0, where it is looked at. Of Local SGD the momentum is each worker's own.
void ClusterWorker::hand_in_model() {
    const std::string_view model = among_workers_->model();
    Parts parts{std::as_bytes(parameters_.slab<float>(model))};
    for (const std::string& slab_name : plan_.optimizer->slabs())
        if (model == slab::weights)
            parts.push_back(std::as_bytes(parameters_.slab<float>(slab_name)));
    link_.call(0, worker_.steps(), name(call::load), std::move(parts), patience);
}

// --- training ------------------------------------------------------------------------------------

void ClusterWorker::hear_of_stops() {
    if (among_workers_ != nullptr && among_workers_->stop_is_agreed())
        stops_[worker_.steps()] = rhythm_.first_step;
    while (const std::optional<Note> note = link_.take_note()) {
        std::span<const std::byte> body = note->body.bytes();
        if (note->name == job::stop && among_workers_ != nullptr)
            among_workers_->wish_to_stop();
        else if (note->name == job::stop && note->server == 0)
            stops_[note->step] = job::take<int64_t>(body);
        else if (note->name == job::stop && !std::exchange(told_signal_, true))
            link_.note(0, worker_.steps(), name(job::stop), {});
    }
    if (!options_.signal || options_.signal() == 0 || std::exchange(told_signal_, true))
        return;
    const bool alone = config_.distributed.on_worker_loss == "continue";
    link_.note(0, worker_.steps(), name(alone ? job::leaving : job::stop), {});
}

/// A step asked for before the members changed counts no more.
bool ClusterWorker::stops_at(int64_t step) const {
    const auto found = stops_.find(step);
    return found != stops_.end() && found->second == rhythm_.first_step;
}

// Steps that the servers have closed without this worker's push; not past what all stand at.
void ClusterWorker::skip_what_others_did() {
    const int64_t newest = link_.newest_step();
    int64_t step = worker_.steps();
    while (step < newest && !rhythm_.has_boundary(step) && !stops_at(step))
        report_progress(++step);
    if (step == worker_.steps())
        return;
    skipped_ += step - worker_.steps();
    with_servers_->skip_to(step);
    go_on_from(step);
}

// Here, and in the log of the run.
void ClusterWorker::warn(const std::vector<std::string>& notes) {
    for (const std::string& note : notes) {
        options_.log("warning      " + note);
        link_.note(0, worker_.steps(), name(job::warning), job::bytes_of_text(note));
    }
}

// Likewise where this worker waits for data, once an epoch at most.
void ClusterWorker::hint_at_data(int64_t step) {
    const std::string hint =
        data_hint_.look(spent_.step_s, spent_.data_wait_s, loader_.source_times(),
                        loader_.options().threads, std::max(1, processors() / options_.beside));
    if (hint.empty())
        return;
    options_.log("hint         " + hint);
    link_.note(0, step, name(job::hint), job::bytes_of_text(hint));
}

void ClusterWorker::step() {
    const auto begin = Clock::now();
    const double data_wait = loader_.waited_seconds(), wait = traffic().wait_s;
    const StepResult result = worker_.step();
    warn(loader_.take_notes());
    spent_.step_s += seconds_since(begin);
    spent_.data_wait_s += loader_.waited_seconds() - data_wait;
    spent_.wait_s += traffic().wait_s - wait;
    spent_.images += result.sums.samples;
    ++spent_.steps;
    window_ += result.sums;
    epoch_ += result.sums;
    if (options_.exposition != nullptr)
        expose();
}

void ClusterWorker::expose() {
    const LinkCounters link = traffic();
    const job::Spent epoch = spent_ - epoch_start_;
    options_.exposition->update([&](RunNumbers& numbers) {
        const double samples = static_cast<double>(std::max<int64_t>(epoch_.samples, 1));
        numbers.step = worker_.steps();
        numbers.epoch = static_cast<double>(
            rhythm_.place(std::max(worker_.steps() - 1, rhythm_.first_step)).epoch + 1);
        numbers.loss = epoch_.loss / samples;
        numbers.top1 = static_cast<double>(epoch_.top1) / samples;
        numbers.learning_rate = learning_rate(plan_, rhythm_, worker_.steps() - 1);
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

void ClusterWorker::report_progress(int64_t step) {
    const bool window = rhythm_.logs_window(step), epoch = rhythm_.logs_epoch(step);
    if (!window && !epoch)
        return;
    job::Progress progress{.window = window_,
                           .epoch = epoch_,
                           .window_spent = spent_ - window_start_,
                           .epoch_spent = spent_ - epoch_start_,
                           .total = spent_,
                           .window_link = traffic() - window_link_};
    progress.window_link.wait_s = progress.window_spent.wait_s;
    link_.note(0, step, name(job::progress), bytes_of(progress));
    if (window) {
        window_ = {};
        window_start_ = spent_;
        window_link_ = traffic();
    }
    if (rhythm_.ends_epochs(step, 1)) {
        hint_at_data(step);
        epoch_ = {};
        epoch_start_ = spent_;
    }
}

job::WorkerState ClusterWorker::state() const {
    const ExchangeState exchange = exchange_->state();
    return {.step = exchange.step,
            .pulled_step = exchange.pulled_step,
            .pull_pending = exchange.pull_pending ? 1 : 0,
            .window = window_,
            .epoch = epoch_};
}

// --- boundaries ----------------------------------------------------------------------------------

bool ClusterWorker::boundary() {
    // At the start server 0 has it, and may still be sending it to the others.
    if (among_workers_ != nullptr && link_.rank() == 0 && spent_.steps > 0)
        hand_in_model();
    const int64_t step = worker_.steps();
    const bool evaluates = rhythm_.evaluates(step);
    const bool with_slabs = rhythm_.saves(step) || rhythm_.saves_best(step) || stops_at(step);
    const job::Boundary head{.state = state(), .total = spent_, .with_slabs = with_slabs ? 1 : 0};
    if (with_slabs)
        exchange_->fetch_slabs();
    Parts body{bytes_of(head), std::as_bytes(statistics_.slab<float>(slab::weights))};
    if (with_slabs)
        for (const std::string& slab_name : plan_.saved_worker_slabs())
            body.push_back(std::as_bytes(parameters_.slab<float>(slab_name)));
    PooledBytes verdict = link_.call(0, step, name(job::boundary), std::move(body), patience);
    std::span<const std::byte> bytes = verdict.bytes();
    job::Verdict what = job::take<job::Verdict>(bytes);
    if (what.leads != 0) {
        const PooledBytes statistics = std::exchange(verdict, {});
        score(bytes, evaluates, with_slabs, verdict);
        bytes = verdict.bytes();
        what = job::take<job::Verdict>(bytes);
    }
    leaves_ = what.leave != 0;
    if (what.changes != 0) {
        rhythm_ = job::take<job::Rhythm>(bytes);
        std::erase_if(stops_, [&](const auto& stop) { return stop.first <= step; });
        take_part(step);
        go_on_from(step);
    }
    return what.stop != 0 || leaves_;
}

// The model of this step, from all servers, with the average of the statistics.
void ClusterWorker::score(std::span<const std::byte> statistics, bool evaluates, bool with_slabs,
                          PooledBytes& verdict) {
    const int64_t step = worker_.steps();
    job::Scored scored{};
    if (evaluates) {
        if (!test_loader_)
            test_loader_ = make_test_loader();
        if (!scorer_)
            scorer_ = std::make_unique<Scorer>(*test_loader_, test_(), plan_.network, *backend_);
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
        warn(test_loader_->take_notes());
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

void ClusterWorker::leave(bool run_ends, bool stopped) {
    if (skipped_ > 0)
        options_.log("backup       " + std::to_string(skipped_) +
                     " steps were closed without this worker");
    if (const int64_t late = worker_.executor().late_steps(); late > 0)
        options_.log("emulated     " + std::to_string(late) + " of " +
                     std::to_string(spent_.steps) +
                     " steps took longer here than comm.emulate.step_time");
    const job::Verdict verdict{.stop = stopped ? 1 : 0};
    for (int server = 1; run_ends && server < link_.servers(); ++server)
        link_.note(server, worker_.steps(), name(job::ended), bytes_of(verdict));
    if (group_)
        group_->close();
    link_.close();
}

}  // namespace trainer
