// LearningRate: the learning rate as a pure function of the global step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trainer {

struct ScheduleOptions {
    std::string type = "step";                ///< constant | step | poly | cosine | onecycle
    double lr = 0.1;                          ///< base (onecycle: largest) learning rate
    std::vector<double> milestones{80, 120};  ///< step: epochs, ascending
    double gamma = 0.1;                       ///< step: factor at each milestone
    double power = 2;                         ///< poly
    double final_lr = 0;                      ///< poly, cosine, onecycle: at the end of the run
    double warmup_epochs = 0;

    int64_t steps_per_epoch = 1;
    int64_t total_steps = 1;  ///< T: train.max_steps if set, else epochs x steps of an epoch
};

/// With t the step, T the run's length, e the base rate and f the final one:
/// - constant: e
/// - step: e gamma^m, m the milestones that t has reached
/// - poly: f + (e - f) (1 - t/T)^power
/// - cosine: f + (e - f) (1 + cos(pi t/T)) / 2
/// - onecycle (arXiv 1708.07120): from low = max(e/10, f) linearly up to e and linearly back over
///   0.45 T each, then linearly down to f over the last 0.1 T. warmup_epochs, where set, is the
///   length of the way up instead; the way down takes what is left of 0.9 T.
///
/// All but onecycle may begin with a linear warm-up over the first W = warmup_epochs' steps: from
/// r/W at step 0 up to r, the schedule's own rate where it takes over, at step W - 1.
class LearningRate {
  public:
    /// Throws UsageError for an unknown type.
    explicit LearningRate(const ScheduleOptions& options);

    /// The rate of global step `step`, counted from 0; past the end that of the end.
    double at(int64_t step) const;

  private:
    enum class Type { constant, step, poly, cosine, onecycle };
    static Type type_named(const std::string& name);
    double scheduled(double step) const;
    double onecycle(double step) const;

    ScheduleOptions options_;
    Type type_;
    double warmup_steps_;
};

}  // namespace trainer
