// JobCoordinator: workers that come and go, and what a checkpoint says of who takes part.
#include <algorithm>
#include <sstream>

#include "tools/trainer/coordinator.h"

namespace trainer {
namespace {

using job::append;
using job::bytes_of;

}  // namespace

void JobCoordinator::adopt_rhythm(std::span<const std::byte> bytes) {
    rhythm_ = job::take<job::Rhythm>(bytes);
}

std::vector<bool> JobCoordinator::server_members() const {
    std::vector<bool> members(static_cast<size_t>(workers_));
    for (int worker = 0; worker < workers_; ++worker)
        members[static_cast<size_t>(worker)] = rhythm_.members.has(worker);
    return members;
}

/// Whether others take part than shall.
bool JobCoordinator::members_change() const {
    if (!leaving_.empty() || !(there_ == rhythm_.members))
        return true;
    return std::ranges::any_of(starting_, [](const Starting& s) { return s.request.has_value(); });
}

void JobCoordinator::ask_for_change() {
    if (!started_ || stopping_ || change_at_ >= 0)
        return;
    const int64_t step = step_ahead();
    if (rhythm_.is_last(step))
        return;
    change_at_ = step;
    for (const int worker : there_.ranks())
        endpoint_->note(worker, step, std::string(job::stop), bytes_of(rhythm_.first_step));
}

/// All stand at state_.step; from there on those who are there and do not want to leave, and those
/// who want to come, take part.
void JobCoordinator::change_members() {
    const int64_t step = state_.step;
    count_lost_samples(step);
    const job::Members before = there_;
    job::Members next = there_;
    for (int worker = 0; worker < workers_; ++worker) {
        if (starting_[static_cast<size_t>(worker)].request)
            next.add(worker);
        if (leaving_.has(worker))
            next.remove(worker);
    }
    if (next.empty()) {  // all leave: that is the run's stop
        stopping_ = true;
        leaving_ = {};
        return saved(is_saved_);
    }
    rhythm_.change(step, next);
    there_ = next;
    change_at_ = -1;
    std::string names;
    for (const int worker : next.ranks())
        names += (names.empty() ? "" : ", ") + std::to_string(worker);
    log_->say("members      from step " + grouped(step) + " on " + std::to_string(next.count()) +
              " of " + std::to_string(workers_) + " workers: " + names + "; " +
              grouped(rhythm_.total_steps()) + " steps in all");
    server_->set_members(step, server_members());
    for (const int worker : next.ranks())
        if (!before.has(worker))
            take_in(worker, scored_->worker);
    for (auto& at : boundary_) {
        if (!at)
            continue;
        const int worker = at->request.worker;
        const bool goes = leaving_.has(worker);
        std::vector<std::byte> body;
        append(body, bytes_of(job::Verdict{.leave = goes ? 1 : 0, .changes = goes ? 0 : 1}));
        append(body, bytes_of(rhythm_));
        endpoint_->reply(worker == scored_->worker ? *scored_ : at->request, body);
    }
    leaving_ = {};
    end_boundary();
}

/// A worker that comes at a boundary takes after one that stands there, but for what that has still
/// to send.
void JobCoordinator::take_in(int worker, int from) {
    const AtBoundary& like = *boundary_[static_cast<size_t>(from)];
    job::Start start{.rhythm = rhythm_, .state = like.head.state, .fresh = 0};
    start.state.window = start.state.epoch = {};
    std::vector<std::byte> body;
    append(body, bytes_of(start));
    append(body, std::as_bytes(statistics_.slab<float>(slab::weights)));
    const size_t slab_bytes = static_cast<size_t>(arena_.size()) * sizeof(float);
    std::span<const std::byte> slabs =
        like.rest.subspan(statistics_.slab<float>(slab::weights).size_bytes());
    for (const std::string& name : plan_.saved_worker_slabs()) {
        if (name == slab::residual)
            body.resize(body.size() + slab_bytes);
        else
            append(body, slabs.subspan(0, slab_bytes));
        slabs = slabs.subspan(slab_bytes);
    }
    endpoint_->reply(*starting_[static_cast<size_t>(worker)].request, body);
    starting_[static_cast<size_t>(worker)] = {};
}

/// Of the steps before `until`, what lost workers had taken on and have not pushed.
void JobCoordinator::count_lost_samples(int64_t until) {
    for (const auto& [worker, first] : lost_) {
        if (!rhythm_.members.has(worker))
            continue;
        int64_t samples = 0;
        const int64_t from = std::max(first, rhythm_.first_step);
        for (int64_t step = from; step < until; ++step)
            samples += rhythm_.samples_of(step, worker);
        lost_samples_ += samples;
        log_->warn((samples == 0 ? std::string("no samples")
                                 : std::to_string(samples) + " samples of steps " +
                                       grouped(from + 1) + " to " + grouped(until)) +
                   " were lost with worker " + std::to_string(worker));
    }
    lost_.clear();
}

void JobCoordinator::lost(int worker, const std::string& who, const std::string& reason,
                          int64_t pushed) {
    starting_[static_cast<size_t>(worker)] = {};
    leaving_.remove(worker);
    const bool took_part = there_.has(worker);
    there_.remove(worker);
    if (log_)
        log_->warn(who + " is lost" +
                   (started_ && took_part ? " after step " + grouped(pushed) : std::string()) +
                   ": " + reason);
    if (!took_part || ended_)
        return;
    if (started_)
        lost_.emplace(worker, pushed);
    if (!started_ || there_.empty()) {
        leader_.reset();
        endpoint_->loop().post([this, generation = generation_, who] {
            if (generation == generation_)
                server_->begin_again(who + " was lost when it was needed");
        });
        return;
    }
    ask_for_change();
    log_progress();
    const bool saving = saver_.joinable();
    if (saving || scored_)
        return;  // what it sent for the checkpoint is still needed
    boundary_[static_cast<size_t>(worker)].reset();
    if (scorer_ == worker) {
        scorer_.reset();
        if (std::ranges::none_of(boundary_, [](const auto& at) { return at.has_value(); }))
            return;
    }
    look_at_boundary();
}

void JobCoordinator::restarted(const std::string& why) {
    join_saver();
    ++generation_;
    opened_ = awaiting_ = started_ = false;
    leader_.reset();
    scorer_.reset();
    end_boundary();
    std::ranges::fill(starting_, Starting{});
    there_ = leaving_ = {};
    change_at_ = stop_at_ = -1;
    lost_.clear();
    progress_.clear();
    resumed_.reset();
    if (log_)
        log_->warn(why + "; the run goes back to its last checkpoint");
}

// Members in a checkpoint's metadata: nothing while they are all of the run's.

bool JobCoordinator::has_worker(const Checkpoint& checkpoint, int worker) {
    return checkpoint.state.metadata().contains(worker_entry(worker, "pulled_step"));
}

int JobCoordinator::first_worker(const Checkpoint& checkpoint, int workers) {
    for (int worker = 0; worker < workers; ++worker)
        if (has_worker(checkpoint, worker))
            return worker;
    throw Error("'" + checkpoint.path().string() + "' holds the state of no worker");
}

void JobCoordinator::restore_members(const Checkpoint& checkpoint, job::Rhythm& rhythm) {
    if (!checkpoint.state.metadata().contains("members"))
        return;
    rhythm.first_step = checkpoint.number("members.first_step");
    rhythm.first_epoch = checkpoint.number("members.first_epoch");
    rhythm.first_position = checkpoint.number("members.first_position");
    rhythm.members = {};
    std::istringstream ranks(checkpoint.value("members"));
    for (int rank = 0; ranks >> rank;)
        if (rank >= 0 && rank < rhythm.workers)
            rhythm.members.add(rank);
    if (rhythm.members.empty() || rhythm.first_step < 0 || rhythm.first_step > checkpoint.step ||
        rhythm.first_epoch < 0 || rhythm.first_position < 0 ||
        rhythm.first_position >= rhythm.samples)
        throw Error("'" + checkpoint.path().string() + "': its metadata's members make no sense");
}

void JobCoordinator::add_members(Metadata& metadata) const {
    if (rhythm_.first_step == 0 && rhythm_.members.count() == workers_)
        return;
    std::string ranks;
    for (const int rank : rhythm_.members.ranks())
        ranks += (ranks.empty() ? "" : " ") + std::to_string(rank);
    metadata["members"] = ranks;
    metadata["members.first_step"] = std::to_string(rhythm_.first_step);
    metadata["members.first_epoch"] = std::to_string(rhythm_.first_epoch);
    metadata["members.first_position"] = std::to_string(rhythm_.first_position);
}

}  // namespace trainer
