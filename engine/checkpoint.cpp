#include "engine/checkpoint.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>

namespace trainer {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view step_prefix = "step-";
constexpr std::string_view model_file = "model.safetensors";
constexpr std::string_view state_file = "state.safetensors";
constexpr const char* model_checksum_key = "model_crc32c";

// Names of what is not yet or no longer there; the next run removes them.
constexpr std::string_view writing_prefix = ".writing-";
constexpr std::string_view removing_prefix = ".removing-";
constexpr std::string_view linking_prefix = ".linking-";

std::string step_name(int64_t step) {
    return std::string(step_prefix) + std::to_string(step);
}

/// N of a name "step-<N>".
std::optional<int64_t> step_of(const std::string& name) {
    if (!name.starts_with(step_prefix))
        return std::nullopt;
    int64_t step = 0;
    const char* end = name.data() + name.size();
    const auto [at, error] = std::from_chars(name.data() + step_prefix.size(), end, step);
    if (error != std::errc{} || at != end || step < 0 || name != step_name(step))
        return std::nullopt;
    return step;
}

std::string hex(uint32_t value) {
    char text[9];
    std::snprintf(text, sizeof text, "%08x", value);
    return text;
}

void rename_or_throw(const fs::path& from, const fs::path& to) {
    if (std::rename(from.c_str(), to.c_str()) != 0)
        throw FileError("cannot rename to", to, errno);
}

}  // namespace

Checkpoint Checkpoint::open(const fs::path& path) {
    const fs::path directory = fs::exists(path) ? fs::canonical(path) : path;
    if (!fs::is_directory(directory))
        throw Error("no checkpoint at '" + path.string() + "'");
    if (!fs::exists(directory / model_file) && fs::exists(directory / "latest"))
        throw Error("'" + path.string() + "' is no checkpoint but holds some; name one, as '" +
                    (path / "latest").string() + "'");
    // Shown as the user wrote it, read where a link to it led now.
    const fs::path shown = fs::is_symlink(path) ? directory : path;
    Checkpoint checkpoint{0, SafetensorsFile(shown / model_file),
                          SafetensorsFile(shown / state_file)};
    if (!checkpoint.state.metadata().contains(std::string(checksum_key)))
        throw Error("'" + checkpoint.state.path().string() + "': no state that trainer wrote");
    checkpoint.state.verify();
    checkpoint.step = checkpoint.number("step");
    const std::string found = hex(checkpoint.model.checksum());
    const std::string& expected = checkpoint.value(model_checksum_key);
    if (found != expected)
        throw Error("'" + checkpoint.model.path().string() + "': damaged: its checksum is " +
                    found + ", not " + expected);
    return checkpoint;
}

const std::string& Checkpoint::value(const std::string& key) const {
    const auto found = state.metadata().find(key);
    if (found == state.metadata().end())
        throw Error("'" + state.path().string() + "': its metadata has no '" + key + "'");
    return found->second;
}

int64_t Checkpoint::number(const std::string& key) const {
    const std::string& text = value(key);
    int64_t number = 0;
    const char* end = text.data() + text.size();
    const auto [at, error] = std::from_chars(text.data(), end, number);
    if (error != std::errc{} || at != end)
        throw Error("'" + state.path().string() + "': its metadata has the " + key + " '" + text +
                    "'");
    return number;
}

namespace {

/// Makes the directory and a file in it, so that what is wrong is known before hours of training.
File open_for_writing(const fs::path& directory) {
    const auto refuse = [&](const std::string& why) -> void {
        throw Error("checkpoint.dir: '" + directory.string() + "' cannot be written (" + why +
                    "); set checkpoint.dir to a directory that can");
    };
    std::error_code error;
    fs::create_directories(directory, error);
    if (error)
        refuse(error.message());
    try {
        const fs::path probe = directory / (std::string(writing_prefix) + "probe");
        { File::create(probe); }
        fs::remove(probe);
    } catch (const FileError& failure) {
        refuse(std::generic_category().message(failure.code()));
    }
    File file = File::open_directory(directory);
    if (!file.lock())
        throw Error("checkpoint.dir: another run is writing to '" + directory.string() +
                    "'; set checkpoint.dir to a directory of this run's own");
    return file;
}

}  // namespace

CheckpointStore::CheckpointStore(fs::path directory, int keep, Warn warn)
    : directory_(std::move(directory)),
      keep_(keep),
      warn_(std::move(warn)),
      lock_(open_for_writing(directory_)) {
    remove_leftovers();
}

void CheckpointStore::remove_leftovers() const {
    std::vector<fs::path> leftovers;
    for (const fs::directory_entry& entry : fs::directory_iterator(directory_)) {
        const std::string name = entry.path().filename().string();
        for (std::string_view prefix : {writing_prefix, removing_prefix, linking_prefix})
            if (name.starts_with(prefix))
                leftovers.push_back(entry.path());
    }
    for (const fs::path& path : leftovers) {
        std::error_code error;
        fs::remove_all(path, error);
        if (error)
            warn_("cannot remove the leftover '" + path.string() + "': " + error.message());
    }
}

fs::path CheckpointStore::path_of(int64_t step) const {
    return directory_ / step_name(step);
}

std::vector<int64_t> CheckpointStore::steps() const {
    std::vector<int64_t> steps;
    for (const fs::directory_entry& entry : fs::directory_iterator(directory_))
        if (const auto step = step_of(entry.path().filename().string()))
            steps.push_back(*step);
    std::sort(steps.begin(), steps.end());
    return steps;
}

std::optional<int64_t> CheckpointStore::target_of(const std::string& link) const {
    std::error_code error;
    const fs::path target = fs::read_symlink(directory_ / link, error);
    if (error)
        return std::nullopt;
    return step_of(target.filename().string());
}

void CheckpointStore::save(int64_t step, const CheckpointContents& contents, bool best) {
    const fs::path temporary = directory_ / (std::string(writing_prefix) + step_name(step));
    try {
        write(temporary, contents);
        put_in_place(temporary, step);
        point("latest", step);
        if (best)
            point("best", step);
        lock_.sync();
    } catch (const FileError& failure) {
        const std::string free = [&] {
            std::error_code error;
            fs::remove_all(temporary, error);
            const auto space = fs::space(directory_, error);
            return error ? std::string() : ", " + std::to_string(space.available) + " are free";
        }();
        if (!failure.no_space())
            throw;
        const int64_t needed = safetensors_bytes(contents.model, {}) +
                               safetensors_bytes(contents.state, contents.metadata);
        throw Error("no space for checkpoint '" + path_of(step).string() + "' (" +
                    std::generic_category().message(failure.code()) +
                    "): " + std::to_string(needed) + " bytes are needed" + free +
                    "; earlier checkpoints are untouched: make room and start again to go on");
    }
    rotate(step);
}

void CheckpointStore::write(const fs::path& path, const CheckpointContents& contents) const {
    std::error_code error;
    fs::remove_all(path, error);
    fs::create_directory(path, error);
    if (error)
        throw FileError("cannot create", path, error.value());
    Metadata metadata = contents.metadata;
    const uint32_t model = write_safetensors(path / model_file, contents.model, {{"format", "pt"}});
    metadata[model_checksum_key] = hex(model);
    metadata[std::string(checksum_key)] = "";
    write_safetensors(path / state_file, contents.state, metadata);
    sync_directory(path);
}

void CheckpointStore::put_in_place(const fs::path& written, int64_t step) {
    const fs::path path = path_of(step);
    if (fs::exists(fs::symlink_status(path))) {
        // The same step again, after a resume from an earlier one: the two change places at once.
        if (renameat2(AT_FDCWD, written.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) == 0) {
            lock_.sync();
            remove(written);
            return;
        }
        remove(path);
    }
    rename_or_throw(written, path);
}

void CheckpointStore::point(const std::string& link, int64_t step) const {
    const fs::path temporary = directory_ / (std::string(linking_prefix) + link);
    std::error_code error;
    fs::remove(temporary, error);
    fs::create_directory_symlink(step_name(step), temporary, error);
    if (error)
        throw FileError("cannot create", temporary, error.value());
    rename_or_throw(temporary, directory_ / link);
}

void CheckpointStore::rotate(int64_t newest) const {
    std::vector<int64_t> old = steps();
    // Those of a later step, left by a run that went on from an earlier one, are not older.
    std::erase_if(old, [&](int64_t step) { return step > newest; });
    old.resize(old.size() - std::min(old.size(), static_cast<size_t>(std::max(keep_, 0))));
    for (int64_t step : old)
        if (target_of("latest") != step && target_of("best") != step)
            remove(path_of(step));
}

void CheckpointStore::remove(const fs::path& path) const {
    // Renamed first: a directory half removed must not look like a checkpoint.
    std::string name = path.filename().string();
    if (name.starts_with(writing_prefix))
        name.erase(0, writing_prefix.size());
    const fs::path doomed = directory_ / (std::string(removing_prefix) + name);
    std::error_code error;
    fs::remove_all(doomed, error);
    fs::rename(path, doomed, error);
    if (!error)
        fs::remove_all(doomed, error);
    if (error)
        warn_("cannot remove '" + path.string() + "': " + error.message());
}

std::optional<Checkpoint> CheckpointStore::newest() const {
    std::vector<int64_t> candidates = steps();
    if (candidates.empty())
        return std::nullopt;
    std::reverse(candidates.begin(), candidates.end());
    // Where `latest` points at an older one, newer ones come last.
    if (const auto latest = target_of("latest"))
        std::stable_partition(candidates.begin(), candidates.end(),
                              [&](int64_t step) { return step <= *latest; });
    for (int64_t step : candidates) {
        try {
            Checkpoint checkpoint = Checkpoint::open(path_of(step));
            if (checkpoint.step != step)
                throw Error("'" + path_of(step).string() + "': holds step " +
                            std::to_string(checkpoint.step));
            return checkpoint;
        } catch (const Error& failure) {
            warn_(std::string("checkpoint not usable, trying the one before it: ") +
                  failure.what());
        }
    }
    throw Error("no checkpoint in '" + directory_.string() +
                "' is usable; remove it, or set checkpoint.resume=never to start again");
}

std::optional<fs::path> CheckpointStore::set_aside() {
    const std::vector<int64_t> there = steps();
    if (there.empty())
        return std::nullopt;
    int number = 1;
    fs::path aside;
    do
        aside = directory_ / ("previous-" + std::to_string(number++));
    while (fs::exists(fs::symlink_status(aside)));
    fs::create_directory(aside);
    for (int64_t step : there)
        rename_or_throw(path_of(step), aside / step_name(step));
    for (const char* link : {"latest", "best"})
        if (target_of(link))
            rename_or_throw(directory_ / link, aside / link);
    sync_directory(aside);
    lock_.sync();
    return aside;
}

void append_tensors(std::vector<SafetensorsItem>& items, const ParameterArena& arena,
                    std::string_view slab_name) {
    const std::byte* slab_bytes = arena.address(slab_name);
    const size_t element = size_of(arena.type());
    for (const TensorInfo& tensor : arena.table().tensors())
        items.push_back({tensor.name,
                         safetensors_dtype(arena.type()),
                         tensor.shape,
                         {slab_bytes + static_cast<size_t>(tensor.offset) * element,
                          static_cast<size_t>(tensor.size()) * element}});
}

void append_slab(std::vector<SafetensorsItem>& items, const ParameterArena& arena,
                 std::string_view slab_name, const std::string& name) {
    items.push_back(
        {name,
         safetensors_dtype(arena.type()),
         {arena.size()},
         {arena.address(slab_name), static_cast<size_t>(arena.size()) * size_of(arena.type())}});
}

namespace {

void read_elements(const SafetensorsFile& file, const ParameterArena& arena,
                   std::string_view slab_name, const std::string& name, const Shape& shape,
                   Range range) {
    const auto first = static_cast<size_t>(range.first);
    const auto count = static_cast<size_t>(range.count);
    if (arena.type() == DType::f64)
        file.read(name, shape, arena.slab<double>(slab_name).subspan(first, count));
    else
        file.read(name, shape, arena.slab<float>(slab_name).subspan(first, count));
}

}  // namespace

void read_tensors(const SafetensorsFile& file, const ParameterArena& arena,
                  std::string_view slab_name) {
    for (const TensorInfo& tensor : arena.table().tensors())
        read_elements(file, arena, slab_name, tensor.name, tensor.shape, tensor.range());
}

void read_slab(const SafetensorsFile& file, const ParameterArena& arena, std::string_view slab_name,
               const std::string& name) {
    read_elements(file, arena, slab_name, name, {arena.size()}, {0, arena.size()});
}

}  // namespace trainer
