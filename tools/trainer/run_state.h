// RunState: what a run knows besides its slabs, and its place in a checkpoint's metadata.
#pragma once

#include <cstdint>

#include "engine/backend.h"
#include "engine/checkpoint.h"
#include "tools/trainer/config.h"

namespace trainer {

struct RunState {
    int64_t step = 0;        ///< global steps completed
    LossSums epoch;          ///< over the epoch under way
    LossSums window;         ///< since the last step record
    int64_t evaluated = -1;  ///< step of the last evaluation; -1: none
    LossSums evaluation;     ///< its result
    int64_t best = -1;       ///< step of the best evaluation, by top1; the earliest of equals
    LossSums best_evaluation;
    int64_t best_saved = -1;  ///< step that the link `best` points at
};

/// Metadata of a checkpoint in that state: step, epoch (whole ones), cursor (global steps into the
/// epoch under way), seed, model, config (the entries that decide what the run computes, as JSON)
/// and the fields of RunState. The same run gives the same bytes.
Metadata metadata_of(const RunState& state, const Config& config, int64_t steps_per_epoch);

/// Throws Error where the metadata lacks something.
RunState state_of(const Checkpoint& checkpoint);

/// Throws UsageError that lists what differs ("optim.lr: 0.1 → 0.2") where `config` computes
/// something else than the run that wrote the checkpoint. The length of the run (train.epochs,
/// train.max_steps) may change, and model.init is of the start only.
void check_resumable(const Checkpoint& checkpoint, const Config& config);

/// For an evaluation: throws UsageError where model.name or model.num_classes differ; returns what
/// else differs of the keys that an evaluation depends on, empty where nothing does.
std::string check_evaluable(const Checkpoint& checkpoint, const Config& config);

}  // namespace trainer
