#include "tools/trainer/process_log.h"

#include <ctime>
#include <iostream>

namespace trainer {
namespace {

std::string stamped(const std::string& line) {
    const std::time_t now = std::time(nullptr);
    std::tm local{};
    localtime_r(&now, &local);
    char text[32];
    return std::string(text, std::strftime(text, sizeof text, "%F %T ", &local)) + line;
}

}  // namespace

void ProcessLog::say(const std::string& line) {
    const std::lock_guard lock(mutex_);
    std::cout << line + "\n" << std::flush;
    write(line);
}

void ProcessLog::note(const std::string& line) {
    const std::lock_guard lock(mutex_);
    write(line);
}

void ProcessLog::write(const std::string& line) {
    if (file_)
        file_->write(stamped(line));
    else
        early_.push_back(stamped(line));
}

void ProcessLog::open(const Config& config, const std::string& name) {
    const std::lock_guard lock(mutex_);
    if (file_)
        return;
    file_.emplace(made_log_directory(config) / ("trainer-" + name + ".log"));
    for (const std::string& line : early_)
        file_->write(line);
    early_.clear();
}

}  // namespace trainer
