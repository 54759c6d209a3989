// OutputFolder: the directory that a conversion writes to, which is its alone meanwhile.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "engine/file.h"

namespace trainer::convert {

class OutputFolder {
  public:
    /// Makes the directory where needed, and locks it. Throws UsageError where another conversion
    /// has it.
    explicit OutputFolder(const std::filesystem::path& path);
    /// Removes what was not published, and the directory where it was made for that alone.
    ~OutputFolder();
    OutputFolder(const OutputFolder&) = delete;
    OutputFolder& operator=(const OutputFolder&) = delete;

    /// Throws UsageError where `name` is there already.
    void require_absent(const std::string& name) const;

    /// A directory in it for what is not whole yet, empty at first whatever an earlier conversion
    /// that was killed left there. Its name begins with a dot, so that no data set reads it.
    const std::filesystem::path& aside() const { return aside_; }

    /// Moves all that lies aside to the directory itself; files take the place of those there.
    void publish();

  private:
    std::filesystem::path path_, aside_;
    bool made_ = false;
    File lock_;
};

/// What a conversion throws where it is asked to stop.
struct Interrupted {};

/// Throws it where `stop` holds.
void go_on_unless(const std::function<bool()>& stop);

/// Runs `work`, which writes aside in the folder `to`, and publishes what it wrote. Where `work`
/// throws nothing has been written; Interrupted becomes exit_interrupted, said to the user.
int convert_into(const std::filesystem::path& to, const std::function<void(OutputFolder&)>& work);

}  // namespace trainer::convert
