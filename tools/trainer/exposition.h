// Exposition: what one process of a run says to Prometheus.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>

namespace trainer {

/// The newest numbers; those that are not there are left out. Totals are of this process, and only
/// grow.
struct RunNumbers {
    std::optional<int64_t> step;
    std::optional<double> epoch, loss, top1, test_loss, test_top1, learning_rate;
    std::optional<double> images_per_s;
    std::optional<double> images_total, data_wait_s_total;
    // As a server sees it: workers that take part, payload that they pushed here and pulled.
    std::optional<double> members, received_bytes_total, sent_bytes_total;
    std::optional<double> staleness;  ///< mean over all pushes of the run

    struct Traffic {
        double push_bytes_total = 0, pull_bytes_total = 0;
        double push_s_total = 0, pull_s_total = 0, wait_s_total = 0;
        std::optional<double> staleness;
    };
    std::map<int, Traffic> traffic;  ///< of each worker that this process knows of
};

class Exposition {
  public:
    /// `labels` stand at every number, e.g. {{"run", "resnet20"}, {"role", "server"}}.
    explicit Exposition(std::map<std::string, std::string> labels);

    /// Changes the numbers; from any thread.
    void update(const std::function<void(RunNumbers&)>& change);

    /// All of it in Prometheus' text format; from any thread.
    std::string text() const;

  private:
    std::string labels_;
    mutable std::mutex mutex_;
    RunNumbers numbers_;
};

}  // namespace trainer
