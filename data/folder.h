// Class folders: a directory a class, images in it or further below, links followed.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/image_store.h"

namespace trainer {

/// What class folders hold. Every regular file counts as an image, whatever its name, but for those
/// whose names begin with a dot.
struct FolderListing {
    std::filesystem::path directory;
    std::vector<std::string> classes;  ///< names of the folders, sorted by their bytes
    TextTable files;                   ///< below `directory`; by class, then by their bytes
    std::vector<int32_t> labels;       ///< of each file
    std::vector<std::string> faults;   ///< "<path>: why" of what cannot be read, e.g. dead links

    /// A listing of the same classes and faults with the files for which `keep` (index) holds.
    template <typename Keep>
    FolderListing part(Keep keep) const {
        FolderListing result{directory, classes, {}, {}, faults};
        for (int64_t i = 0; i < files.count(); ++i)
            if (keep(i)) {
                result.files.add(files[i]);
                result.labels.push_back(labels[static_cast<size_t>(i)]);
            }
        return result;
    }
};

/// Lists the class folders of `directory`. A directory that a link makes part of itself is not
/// entered again. Throws Error where it is no directory or has no class folders.
FolderListing list_class_folders(const std::filesystem::path& directory);

/// The names of its class folders alone, sorted by their bytes. Throws as list_class_folders.
std::vector<std::string> list_class_names(const std::filesystem::path& directory);

/// Lists the files of `directory` itself, each of the class that `labels_file` says, one line a
/// file: its name, with or without its extension, then white space or a comma, then the name of its
/// class (more words may follow). `classes` are sorted. Throws Error where a file has no line, a
/// line no file, or a class is not one of `classes`.
FolderListing list_flat_folder(const std::filesystem::path& directory,
                               const std::filesystem::path& labels_file,
                               const std::vector<std::string>& classes);

/// Those files as a store.
std::shared_ptr<const ImageStore> make_folder_store(std::filesystem::path directory,
                                                    TextTable files);

/// Throws Error, which names the first class that differs, where the classes of the test images of
/// `where` are others than those of its training images: a label would mean something else.
void check_same_classes(const std::vector<std::string>& training,
                        const std::vector<std::string>& test, const std::string& where);

/// "2 of 10 classes have no <images>: 'a', 'b'", the first few by name; empty where all have some.
std::string empty_classes(const std::vector<std::string>& classes,
                          const std::vector<int32_t>& labels, const std::string& images);

/// What messages call the settings that a FolderLayout was made of.
struct FolderSettings {
    std::string directory = "data.dir", val_labels = "data.val_labels", held_out = "data.split";
};

/// The splits of an ILSVRC2012 folder, or of one's own class folders: train/ and val/ (or test/),
/// or, without them, class folders alone. `val_labels`: of a flat val/; empty: val_labels.txt or
/// LOC_val_solution.csv. `held_out`: where there is no val/, the share of the files that are the
/// test split, told by a hash of each file's path, so that adding files moves no other.
struct FolderLayout {
    std::filesystem::path directory;
    std::string val_labels;
    double held_out = 0;
    FolderSettings settings = {};

    /// What val_labels or held_out say that nothing here asks for; empty: both are used, or not
    /// given.
    std::string unused() const;
    /// Throws Error where the split is not there.
    FolderListing list(Split split) const;
    /// Whether there is a test split, or one is held out.
    bool has_test() const;
    /// Those of the training split.
    std::vector<std::string> class_names() const;

  private:
    /// val/ or test/ beside train/; empty: there is none.
    std::filesystem::path test_directory() const;
};

}  // namespace trainer
