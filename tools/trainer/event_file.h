// EventFile: a run's numbers as TensorBoard reads them.
//
// A file of records, each
//   length   8 bytes, little endian
//   checksum 4 bytes: masked CRC32C of the length
//   data     a message Event (events.proto)
//   checksum 4 bytes: masked CRC32C of the data
// where masked is ((crc >> 15) | (crc << 17)) + 0xa282ead8.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace trainer {

class EventFile {
  public:
    /// Starts a file events.out.tfevents.* in `directory`. What files that are there already say
    /// of steps after `start_step` is void from now on; where `fresh`, of all steps: they are
    /// renamed to old_events.*, which TensorBoard leaves alone. `hparams` are shown as the run's
    /// hyperparameters, numbers as such.
    /// Throws UsageError where this build has no protobuf, Error where no file can be written.
    EventFile(const std::filesystem::path& directory, int64_t start_step, bool fresh,
              const std::vector<std::pair<std::string, std::string>>& hparams);
    ~EventFile();
    EventFile(const EventFile&) = delete;
    EventFile& operator=(const EventFile&) = delete;

    /// Scalars of one step, by tag; flushed.
    void write(int64_t step, const std::vector<std::pair<std::string, double>>& scalars);

    /// Says that the run is done.
    void end();

    const std::filesystem::path& path() const;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace trainer
