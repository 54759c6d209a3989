#include "tools/trainer/event_file.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <cstring>
#include <iostream>

#include "engine/crc32c.h"
#include "engine/file.h"
#include "tools/trainer/events.pb.h"

namespace trainer {
namespace {

namespace fs = std::filesystem;

uint32_t masked_crc(const void* data, size_t bytes) {
    const uint32_t crc = crc32c(data, bytes);
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

double now() {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch())
        .count();
}

std::string file_name() {
    utsname system{};
    uname(&system);
    const auto nanoseconds = std::chrono::system_clock::now().time_since_epoch();
    // The seconds first, in as many digits: TensorBoard reads files in the order of their names.
    return "events.out.tfevents." +
           std::to_string(
               std::chrono::duration_cast<std::chrono::microseconds>(nanoseconds).count()) +
           "." + system.nodename + "." + std::to_string(getpid());
}

void rename_earlier(const fs::path& directory) {
    constexpr std::string_view name = "events.out.tfevents.";
    std::error_code error;
    std::vector<fs::path> earlier;
    for (const auto& entry : fs::directory_iterator(directory, error))
        if (entry.path().filename().string().starts_with(name))
            earlier.push_back(entry.path());
    for (const fs::path& path : earlier)
        fs::rename(path, directory / ("old_events." + path.filename().string().substr(name.size())),
                   error);
}

File create(const fs::path& path) {
    try {
        return File::create(path);
    } catch (const FileError& error) {
        throw Error(std::string("log.tensorboard: ") + error.what());
    }
}

}  // namespace

struct EventFile::State {
    explicit State(const fs::path& path) : file(create(path)) {}

    void write(const events::Event& event) {
        const std::string data = event.SerializeAsString();
        const uint64_t length = data.size();
        const uint32_t length_crc = masked_crc(&length, sizeof length);
        const uint32_t data_crc = masked_crc(data.data(), data.size());
        std::string record(sizeof length + sizeof length_crc, '\0');
        std::memcpy(record.data(), &length, sizeof length);
        std::memcpy(record.data() + sizeof length, &length_crc, sizeof length_crc);
        record += data;
        record.append(reinterpret_cast<const char*>(&data_crc), sizeof data_crc);
        write_whole(record);
    }

    /// A record is there whole or not at all; where it cannot be written the run goes on without.
    void write_whole(const std::string& record) {
        try {
            file.write(record.data(), record.size());
            size += static_cast<int64_t>(record.size());
        } catch (const FileError& error) {
            file.truncate(size);
            if (!complained)
                std::cerr << "trainer: warning: " << error.what() << "; the run goes on without\n";
            complained = true;
        }
    }

    void write_hparams(const std::string& tag, const events::HParams& hparams) {
        events::Event event;
        event.set_wall_time(now());
        events::Summary::Value& value = *event.mutable_summary()->add_value();
        value.set_tag(tag);
        value.mutable_tensor()->set_dtype(1);  // float
        value.mutable_tensor()->add_float_val(0);
        auto& plugin = *value.mutable_metadata()->mutable_plugin_data();
        plugin.set_plugin_name("hparams");
        plugin.set_content(hparams.SerializeAsString());
        write(event);
    }

    File file;
    int64_t size = 0;
    bool complained = false;
};

EventFile::EventFile(const fs::path& directory, int64_t start_step, bool fresh,
                     const std::vector<std::pair<std::string, std::string>>& hparams) {
    if (fresh)
        rename_earlier(directory);
    state_ = std::make_unique<State>(directory / file_name());
    events::Event version;
    version.set_wall_time(now());
    version.set_file_version("brain.Event:2");
    state_->write(version);
    events::Event start;
    start.set_wall_time(now());
    start.set_step(fresh ? 0 : start_step + 1);
    start.mutable_session_log()->set_status(events::SessionLog::START);
    state_->write(start);
    events::HParams session;
    session.mutable_session_start()->set_start_time_secs(now());
    for (const auto& [key, text] : hparams) {
        google::protobuf::Value value;
        double number = 0;
        const char* end = text.data() + text.size();
        const auto [after, error] = std::from_chars(text.data(), end, number);
        if (error == std::errc{} && after == end)
            value.set_number_value(number);
        else if (text == "true" || text == "false")
            value.set_bool_value(text == "true");
        else
            value.set_string_value(text);
        (*session.mutable_session_start()->mutable_hparams())[key] = value;
    }
    state_->write_hparams("_hparams_/session_start_info", session);
}

EventFile::~EventFile() = default;

void EventFile::write(int64_t step, const std::vector<std::pair<std::string, double>>& scalars) {
    events::Event event;
    event.set_wall_time(now());
    event.set_step(step);
    for (const auto& [tag, number] : scalars) {
        events::Summary::Value& value = *event.mutable_summary()->add_value();
        value.set_tag(tag);
        value.set_simple_value(static_cast<float>(number));
    }
    state_->write(event);
}

void EventFile::end() {
    events::HParams session;
    session.mutable_session_end()->set_status(events::SessionEnd::SUCCESS);
    session.mutable_session_end()->set_end_time_secs(now());
    state_->write_hparams("_hparams_/session_end_info", session);
}

const fs::path& EventFile::path() const {
    return state_->file.path();
}

}  // namespace trainer
