// RunState: what a run knows besides its slabs, and its place in a checkpoint's metadata.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

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

/// Sums in metadata, as <prefix>.loss_sum and so on.
void put_sums(Metadata& metadata, const std::string& prefix, const LossSums& sums);
LossSums sums_of(const Checkpoint& checkpoint, const std::string& prefix);

/// Appends what a model.safetensors holds: weights, running statistics, and for each batch norm
/// num_batches_tracked, which is `step`. All must outlive the save.
void append_model(CheckpointContents& contents, const ParameterArena& parameters,
                  const ParameterArena& statistics, const int64_t& step);

/// Throws Error where a value of the slab is not finite: such a model is not worth a checkpoint.
void check_finite(const ParameterArena& arena, std::string_view slab_name, int64_t step);

/// The checkpoint that config.checkpoint.resume says to go on from; nullopt: a run from the start.
/// Earlier checkpoints that the run would mix with are set aside, which `say` is told. Throws as
/// check_resumable does.
std::optional<Checkpoint> checkpoint_to_resume(const Config& config, CheckpointStore& store,
                                               const std::function<void(std::string)>& say);

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
