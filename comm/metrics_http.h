// MetricsHttp: answers Prometheus. One thread, HTTP/1.1 as far as `GET /metrics` goes.
#pragma once

#include <functional>
#include <memory>
#include <string>

namespace trainer {

class MetricsHttp {
  public:
    /// Listens at `port` (0: any free one) on every interface. `text` makes the answer, in
    /// Prometheus' text format 0.0.4, and runs on this object's own thread until it is destroyed.
    /// Throws Error where the port cannot be had.
    MetricsHttp(int port, std::function<std::string()> text);
    ~MetricsHttp();
    MetricsHttp(const MetricsHttp&) = delete;
    MetricsHttp& operator=(const MetricsHttp&) = delete;

    int port() const;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace trainer
