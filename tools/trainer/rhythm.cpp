#include "tools/trainer/rhythm.h"

#include <algorithm>

#include "engine/dtype.h"
#include "engine/error.h"

namespace trainer::job {

int64_t Rhythm::steps_in(int64_t left, int64_t count) const {
    const int64_t global = count * batch;
    return (left + (drop_last != 0 ? 0 : global - 1)) / global;
}

void Rhythm::change(int64_t step, const Members& next) {
    check(!next.empty(), "a run has members");
    const Place at = place(step);
    first_step = step;
    first_epoch = at.epoch;
    first_position = at.position;
    members = next;
    if (first_steps() == 0) {  // what is left of the epoch fills no step of theirs
        ++first_epoch;
        first_position = 0;
    }
}

Place Rhythm::place(int64_t step) const {
    const int64_t global = members.count() * batch;
    const int64_t n = step - first_step;
    check(n >= 0, "a step of before the last change of members");
    if (n < first_steps())
        return {first_epoch, first_position + n * global, n};
    const int64_t later = n - first_steps(), whole = steps_per_epoch();
    return {first_epoch + 1 + later / whole, later % whole * global, later % whole};
}

int64_t Rhythm::samples_of(int64_t step) const {
    return std::min(members.count() * batch, samples - place(step).position);
}

int64_t Rhythm::samples_of(int64_t step, int rank) const {
    return part_of(samples_of(step), members.below(rank), members.count()).count;
}

int64_t Rhythm::total_steps() const {
    const int64_t later = std::max<int64_t>(epochs - first_epoch - 1, 0) * steps_per_epoch();
    const int64_t first = first_epoch < epochs ? first_steps() : 0;
    const int64_t steps = first_step + first + later;
    return max_steps > 0 ? std::min(steps, max_steps) : steps;
}

bool Rhythm::ends_epochs(int64_t step, int64_t every) const {
    if (every <= 0 || step <= 0)
        return false;
    const Place at = place(step);
    return at.position == 0 && at.epoch % every == 0 && at.epoch > 0;
}

int64_t Rhythm::schedule_step(int64_t step) const {
    const Place at = place(step);
    const int64_t whole = steps_in(samples, workers);
    return at.epoch * whole + std::min(at.position / (workers * batch), whole - 1);
}

}  // namespace trainer::job
