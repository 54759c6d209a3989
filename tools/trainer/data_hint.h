// What to do where training waits for its data.
#pragma once

#include <string>

#include "data/sample_source.h"

namespace trainer {

/// A sentence that names the bottleneck, of a run that spends the share `wait` of its time waiting
/// for data, which `threads` threads load on a machine of so many processors; `times` is theirs
/// over the same while. Empty where `wait` is under a tenth.
std::string data_hint(double wait, const SourceTimes& times, int threads, int processors);

/// The same of a run that goes on, each time of what has happened since the last.
class DataHint {
  public:
    /// `step_s` and `data_wait_s`: seconds in training steps, and waiting for data in them, since
    /// the start; so are `times`. Empty also where a few seconds are all there is to judge by.
    std::string look(double step_s, double data_wait_s, const SourceTimes& times, int threads,
                     int processors);

  private:
    double step_s_ = 0, data_wait_s_ = 0;
    SourceTimes times_;
};

}  // namespace trainer
