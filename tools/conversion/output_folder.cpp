#include "tools/conversion/output_folder.h"

#include <iostream>
#include <system_error>

#include "engine/error.h"
#include "tools/conversion/convert.h"

namespace trainer::convert {

namespace fs = std::filesystem;

namespace {

File locked(const fs::path& path) {
    File directory = File::open_directory(path);
    if (!directory.lock())
        throw UsageError("another conversion is writing to '" + path.string() +
                         "'; wait until it ends, or choose another place");
    return directory;
}

}  // namespace

OutputFolder::OutputFolder(const fs::path& path)
    : path_(path),
      aside_(path / ".convert"),
      made_(fs::create_directories(path)),
      lock_(locked(path)) {
    fs::remove_all(aside_);
}

OutputFolder::~OutputFolder() {
    std::error_code ignored;
    fs::remove_all(aside_, ignored);
    if (made_ && fs::is_empty(path_, ignored))
        fs::remove(path_, ignored);
}

void OutputFolder::require_absent(const std::string& name) const {
    if (fs::exists(path_ / name))
        throw UsageError("'" + path_.string() + "' has " + name +
                         " already; remove it, or choose another place");
}

void OutputFolder::publish() {
    if (!fs::exists(aside_))
        return;
    for (const fs::directory_entry& entry : fs::directory_iterator(aside_))
        fs::rename(entry.path(), path_ / entry.path().filename());
    sync_directory(path_);
}

void go_on_unless(const std::function<bool()>& stop) {
    if (stop())
        throw Interrupted{};
}

int convert_into(const fs::path& to, const std::function<void(OutputFolder&)>& work) {
    OutputFolder folder(to);
    try {
        work(folder);
    } catch (const Interrupted&) {
        std::cout << "interrupted; nothing was written to " << to.string() << "\n";
        return exit_interrupted;
    }
    folder.publish();
    return exit_done;
}

}  // namespace trainer::convert
