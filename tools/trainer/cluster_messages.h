// What workers and server 0 say to each other about the run as a whole: calls, notes, their bodies.
//
// A body is a fixed record, little endian, and behind it, where it says so, floats. The weights
// themselves go as optim/server.h has it.
//
//   gather     call, body: a worker's word to all others, of topology allreduce. Answered, once all
//              have called, by all words in the order of ranks, each an int64 length and its bytes.
//   start      call, body: text, the worker's device. Answered by Start once all workers are there;
//              of a run under way, at a step from which on the worker takes part, or that it
//              comes too late.
//   part       call of the leader, body: int32 server. Answered by the state that server begins
//   with. ready      call of the leader: the other servers have their parts. Answered empty.
//   progress   note, Progress: at every log.every_steps-th step, at the end of an epoch, of the run
//   boundary   call, Boundary: the worker stands at a step at which the run is looked at. Answered
//              by Verdict when that is done; the leader's, by Verdict and the averaged statistics,
//              before.
//   scored     call of the leader, Scored: what it has found out of the model there
//   warning    note to server 0: text for people of what a worker has met
//   hint       note to server 0, at the end of an epoch: text of what would make it faster
//   stop       note to server 0: somebody wants the run to stop. To workers: at the note's step, or
//              to go on from there with other members.
//   leaving    note to server 0: this worker wants to leave the run soon
//   ended      note to the other servers, Verdict: how the run has ended
#pragma once

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "engine/backend.h"
#include "engine/error.h"
#include "optim/exchange.h"
#include "tools/trainer/rhythm.h"

namespace trainer::job {

inline constexpr std::string_view gather = "gather";
inline constexpr std::string_view start = "start";
inline constexpr std::string_view part = "part";
inline constexpr std::string_view ready = "ready";
inline constexpr std::string_view progress = "progress";
inline constexpr std::string_view boundary = "boundary";
inline constexpr std::string_view scored = "scored";
inline constexpr std::string_view warning = "warning";
inline constexpr std::string_view hint = "hint";
inline constexpr std::string_view stop = "stop";
inline constexpr std::string_view leaving = "leaving";
inline constexpr std::string_view ended = "ended";

/// One worker's time and images, over some steps.
struct Spent {
    double step_s = 0;  ///< in training steps, all of it
    double data_wait_s = 0;
    double wait_s = 0;  ///< blocked by pushes and pulls
    int64_t images = 0;
    int64_t steps = 0;

    friend Spent operator-(Spent a, const Spent& b) {
        return {a.step_s - b.step_s, a.data_wait_s - b.data_wait_s, a.wait_s - b.wait_s,
                a.images - b.images, a.steps - b.steps};
    }
};

/// What a worker has to say at a step; window and epoch where the Rhythm logs them.
struct Progress {
    LossSums window, epoch;
    Spent window_spent, epoch_spent, total;
    LinkCounters window_link;  ///< since the last window
};

/// What a worker keeps of its own, besides slabs and running statistics.
struct WorkerState {
    int64_t step = 0, pulled_step = 0, pull_pending = 0;  ///< ExchangeState
    LossSums window, epoch;                               ///< since the last records of them

    ExchangeState exchange() const { return {step, pulled_step, pull_pending != 0}; }
};

/// Followed by the running statistics, and unless fresh by the worker's slabs (worker_slabs()).
struct Start {
    Rhythm rhythm;
    WorkerState state;
    int64_t fresh = 1;
    int64_t boundary_first = 0;  ///< the run is looked at before the first step
    int64_t nothing_left = 0;
    int64_t leads = 0;  ///< this worker brings the other servers their parts
    int64_t late = 0;   ///< there is nothing for this worker to do any more: Late; no more follows
};
enum Late : int64_t { not_late, late_done, late_stopped };

/// Followed by the running statistics, and where `with_slabs` by the worker's slabs.
struct Boundary {
    WorkerState state;
    Spent total;
    int64_t with_slabs = 0;
};

/// Followed, where slabs were sent, by what each server but 0 answers to call::slabs, in order.
struct Scored {
    int64_t evaluated = 0;
    LossSums sums;
    double seconds = 0;
};

/// How a boundary, or the run, has ended.
struct Verdict {
    int64_t stop = 0;     ///< by a signal, with a checkpoint written
    int64_t leads = 0;    ///< not yet ended: this worker is to score the model, with what follows
    int64_t leave = 0;    ///< this worker leaves, as it asked
    int64_t changes = 0;  ///< the members change, to those of the Rhythm that follows
};

template <typename T>
std::span<const std::byte> bytes_of(const T& record) {
    static_assert(std::is_trivially_copyable_v<T>);
    return std::as_bytes(std::span(&record, 1));
}

inline std::span<const std::byte> bytes_of_text(std::string_view text) {
    return std::as_bytes(std::span(text));
}

inline void append(std::vector<std::byte>& body, std::span<const std::byte> bytes) {
    body.insert(body.end(), bytes.begin(), bytes.end());
}

/// The record that a body begins with, and the bytes behind it. Throws Error where it is too short.
template <typename T>
T take(std::span<const std::byte>& body) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (body.size() < sizeof(T))
        throw Error("a message of " + std::to_string(body.size()) + " bytes where " +
                    std::to_string(sizeof(T)) + " were expected: is every process of one build?");
    T record;
    std::memcpy(&record, body.data(), sizeof(T));
    body = body.subspan(sizeof(T));
    return record;
}

/// A text in a body: its length, and its bytes.
inline void append_text(std::vector<std::byte>& body, const std::string& text) {
    append(body, bytes_of(static_cast<int64_t>(text.size())));
    append(body, std::as_bytes(std::span(text)));
}
inline std::string take_text(std::span<const std::byte>& body) {
    const auto size = static_cast<uint64_t>(take<int64_t>(body));
    if (size > body.size())
        throw Error("a message ends within a text: is every process of one build?");
    std::string text(reinterpret_cast<const char*>(body.data()), size);
    body = body.subspan(size);
    return text;
}

/// Takes a slab's bytes off the front of `body` and copies them into `slab`.
inline void take_slab(std::span<const std::byte>& body, std::span<float> slab) {
    if (body.size() < slab.size_bytes())
        throw Error("a message ends within a slab: is every process of one build?");
    // A network without statistics has none: where nothing is copied there may be no memory.
    std::ranges::copy(body.first(slab.size_bytes()), std::as_writable_bytes(slab).begin());
    body = body.subspan(slab.size_bytes());
}

}  // namespace trainer::job
