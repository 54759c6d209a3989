// StopSignals: SIGTERM, SIGINT, SIGHUP and SIGUSR1 as a wish to stop after the step.
#pragma once

#include <csignal>

namespace trainer {

/// While one exists, the first of these signals is noted; the second ends the program at once, as
/// it would have without this. SIGHUP is let be where it is ignored, as nohup does. At most one
/// exists at a time.
class StopSignals {
  public:
    StopSignals();
    ~StopSignals();
    StopSignals(const StopSignals&) = delete;
    StopSignals& operator=(const StopSignals&) = delete;

    bool requested() const { return number() != 0; }
    int number() const;  ///< of the signal that came; 0: none

  private:
    struct sigaction before_[4];
    struct sigaction file_size_before_;
};

}  // namespace trainer
