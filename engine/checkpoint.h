// Checkpoints: directories that hold all of a run at one step, whole or not there at all.
//
//   <dir>/step-<N>/model.safetensors   weights and batch-norm buffers, named as torchvision names
//                                      them: load_state_dict(strict=True) takes the file
//   <dir>/step-<N>/state.safetensors   everything else; metadata: see Metadata in safetensors.h,
//                                      with "crc32c" of this file and "model_crc32c" of the other
//   <dir>/latest, <dir>/best           links to one of them each
//
// A checkpoint is written under a temporary name, synced and renamed; a link is made under a
// temporary name and renamed. So a run killed at any moment leaves at most temporary names, which
// the next one removes.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/arena.h"
#include "engine/file.h"
#include "engine/safetensors.h"

namespace trainer {

/// What is to be saved; the data that items point to outlives the save.
struct CheckpointContents {
    std::vector<SafetensorsItem> model;
    std::vector<SafetensorsItem> state;
    Metadata metadata;  ///< of the state; checksums are added
};

/// A whole checkpoint, opened for reading.
struct Checkpoint {
    int64_t step = 0;  ///< global steps completed
    SafetensorsFile model;
    SafetensorsFile state;

    /// Opens the directory `path` (or a link to one) and checks both checksums. Throws Error that
    /// names what is missing or damaged.
    static Checkpoint open(const std::filesystem::path& path);

    std::filesystem::path path() const { return state.path().parent_path(); }

    /// A value of the metadata; throws Error where it is not there.
    const std::string& value(const std::string& key) const;
    /// The same as a whole number.
    int64_t number(const std::string& key) const;
};

/// The directory of one run's checkpoints, for the one process that writes them.
class CheckpointStore {
  public:
    using Warn = std::function<void(const std::string&)>;

    /// Makes the directory where needed, removes what a killed run left half done, and takes the
    /// directory's lock. Keeps the newest `keep` checkpoints, and those that `latest` and `best`
    /// point at. Throws Error where it cannot be written, or another run is using it.
    CheckpointStore(std::filesystem::path directory, int keep, Warn warn);

    /// Writes step-<step>, in place of one of that name, points `latest` (and, if asked, `best`)
    /// at it, and removes those that are no longer kept. Throws Error where that cannot be done,
    /// a full disk among the reasons: then every earlier checkpoint is as it was.
    void save(int64_t step, const CheckpointContents& contents, bool best);

    /// The checkpoint to go on from: `latest`, or where that is damaged the newest older one that
    /// is whole; each damaged one is named in a warning. nullopt where there is none at all;
    /// throws Error where there are some but all are damaged.
    std::optional<Checkpoint> newest() const;

    /// Steps of the checkpoints that are there, ascending.
    std::vector<int64_t> steps() const;

    /// Moves every checkpoint into a new directory `previous-<n>` beside them and returns its
    /// path, so that a run from the start mixes with none; nullopt where there is none.
    std::optional<std::filesystem::path> set_aside();

    const std::filesystem::path& directory() const { return directory_; }

  private:
    std::filesystem::path path_of(int64_t step) const;
    std::optional<int64_t> target_of(const std::string& link) const;
    void write(const std::filesystem::path& path, const CheckpointContents& contents) const;
    void put_in_place(const std::filesystem::path& written, int64_t step);
    void point(const std::string& link, int64_t step) const;
    void rotate(int64_t newest) const;
    void remove(const std::filesystem::path& path) const;
    void remove_leftovers() const;

    std::filesystem::path directory_;
    int keep_;
    Warn warn_;
    File lock_;
};

/// Appends one item a tensor of a slab, under the tensor's own name.
void append_tensors(std::vector<SafetensorsItem>& items, const ParameterArena& arena,
                    std::string_view slab_name);

/// Appends a whole slab as one item of shape [size] named `name`.
void append_slab(std::vector<SafetensorsItem>& items, const ParameterArena& arena,
                 std::string_view slab_name, const std::string& name);

/// Reads every tensor of a slab by name. Throws Error as SafetensorsFile::read does.
void read_tensors(const SafetensorsFile& file, const ParameterArena& arena,
                  std::string_view slab_name);

/// Reads a whole slab that append_slab wrote.
void read_slab(const SafetensorsFile& file, const ParameterArena& arena, std::string_view slab_name,
               const std::string& name);

}  // namespace trainer
