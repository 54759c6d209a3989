#include "data/folder.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>

#include "engine/crc32c.h"
#include "engine/error.h"
#include "engine/file.h"

namespace trainer {

namespace {

namespace fs = std::filesystem;

/// A directory, whichever path leads to it.
struct Identity {
    dev_t device;
    ino_t inode;
    bool operator==(const Identity&) const = default;
};

bool hidden(const fs::path& path) {
    return path.filename().native().starts_with('.');
}

std::vector<fs::directory_entry> entries_of(const fs::path& directory) {
    std::error_code error;
    fs::directory_iterator iterator(directory, error);
    if (error)
        throw Error("'" + directory.string() + "' cannot be listed (" + error.message() + ")");
    return {begin(iterator), end(iterator)};
}

/// Finds the files below one class folder.
struct Walk {
    const fs::path& root;
    std::vector<std::string>& files;  // relative to root
    std::vector<std::string>& faults;
    std::vector<Identity> above{};  // the directories that one is in

    void enter(const fs::path& directory) {
        struct stat status {};
        if (stat(directory.c_str(), &status) != 0)
            return;
        const Identity identity{status.st_dev, status.st_ino};
        if (std::find(above.begin(), above.end(), identity) != above.end())
            return;  // a link to where one comes from
        above.push_back(identity);
        for (const fs::directory_entry& entry : entries_of(directory)) {
            if (hidden(entry.path()))
                continue;
            std::error_code error;
            const fs::file_status target = entry.status(error);
            if (target.type() == fs::file_type::not_found)
                faults.push_back(entry.path().string() + ": a link to nothing");
            else if (error)
                faults.push_back(entry.path().string() + ": " + error.message());
            else if (fs::is_directory(target))
                enter(entry.path());
            else if (fs::is_regular_file(target))
                files.push_back(entry.path().native().substr(root.native().size() + 1));
            else
                faults.push_back(entry.path().string() + ": neither a file nor a directory");
        }
        above.pop_back();
    }
};

/// "n01440764" of "n01440764", of a line's second field.
std::map<std::string, std::string> read_labels(const fs::path& path) {
    std::ifstream file(path);
    if (!file)
        throw Error("'" + path.string() + "' cannot be read; it says the class of each file");
    std::map<std::string, std::string> result;
    int64_t number = 0;
    for (std::string line; std::getline(file, line);) {
        ++number;
        std::replace(line.begin(), line.end(), ',', ' ');
        std::istringstream words(line);
        std::string name, label;
        if (!(words >> name) || name == "ImageId")  // a blank line, or the heading of a table
            continue;
        const std::string at = "'" + path.string() + "', line " + std::to_string(number);
        if (!(words >> label))
            throw Error(at + ": '" + name + "' alone; each line is a file's name and its class's " +
                        "(numbers alone do not say in which order the classes are)");
        if (!result.emplace(name, label).second)
            throw Error(at + ": '" + name + "' a second time");
    }
    return result;
}

class FolderStore : public ImageStore {
  public:
    FolderStore(fs::path directory, TextTable files)
        : directory_(std::move(directory)), files_(std::move(files)) {}

    int64_t count() const override { return files_.count(); }
    std::string name(int64_t index) const override { return path(index).string(); }

    void read(int64_t index, std::vector<std::byte>& bytes) const override {
        const File file = File::open_to_read(path(index));
        bytes.resize(static_cast<size_t>(file.size()));
        file.read_at(0, bytes.data(), bytes.size());
    }

    void read_ahead(std::span<const int32_t> indices) const override {
        for (const int32_t index : indices) {
            const int descriptor = open(path(index).c_str(), O_RDONLY | O_CLOEXEC);
            if (descriptor < 0)
                continue;  // read() will say so
            posix_fadvise(descriptor, 0, 0, POSIX_FADV_WILLNEED);
            close(descriptor);
        }
    }

  private:
    fs::path path(int64_t index) const { return directory_ / files_[index]; }

    fs::path directory_;
    TextTable files_;
};

}  // namespace

std::vector<std::string> list_class_names(const fs::path& directory) {
    std::vector<std::string> names;
    std::error_code error;
    if (!fs::is_directory(directory, error))
        throw Error("'" + directory.string() + "' is no directory");
    for (const fs::directory_entry& entry : entries_of(directory))
        if (!hidden(entry.path()) && entry.is_directory(error))
            names.push_back(entry.path().filename().native());
    if (names.empty())
        throw Error("'" + directory.string() + "' has no class folders");
    std::sort(names.begin(), names.end());
    return names;
}

FolderListing list_class_folders(const fs::path& directory) {
    FolderListing listing;
    listing.directory = directory;
    listing.classes = list_class_names(directory);
    std::vector<std::string> files;
    for (size_t label = 0; label < listing.classes.size(); ++label) {
        files.clear();
        Walk{directory, files, listing.faults}.enter(directory / listing.classes[label]);
        std::sort(files.begin(), files.end());
        for (const std::string& file : files)
            listing.files.add(file);
        listing.labels.resize(static_cast<size_t>(listing.files.count()),
                              static_cast<int32_t>(label));
    }
    std::sort(listing.faults.begin(), listing.faults.end());
    return listing;
}

FolderListing list_flat_folder(const fs::path& directory, const fs::path& labels_file,
                               const std::vector<std::string>& classes) {
    std::map<std::string, std::string> labels = read_labels(labels_file);
    FolderListing listing;
    listing.directory = directory;
    listing.classes = classes;
    std::vector<std::string> files;
    std::error_code error;
    for (const fs::directory_entry& entry : entries_of(directory))
        if (!hidden(entry.path()) && entry.path() != labels_file && entry.is_regular_file(error))
            files.push_back(entry.path().filename().native());
    std::sort(files.begin(), files.end());
    for (const std::string& file : files) {
        auto found = labels.find(file);
        if (found == labels.end())
            found = labels.find(fs::path(file).stem().native());
        if (found == labels.end())
            throw Error("'" + (directory / file).string() + "' has no line in '" +
                        labels_file.string() + "'");
        const auto label = std::lower_bound(classes.begin(), classes.end(), found->second);
        if (label == classes.end() || *label != found->second)
            throw Error("'" + labels_file.string() + "': '" + file + "' is of class '" +
                        found->second + "', which the training images have not");
        listing.files.add(file);
        listing.labels.push_back(static_cast<int32_t>(label - classes.begin()));
        labels.erase(found);
    }
    if (!labels.empty())
        throw Error("'" + labels_file.string() + "' names '" + labels.begin()->first +
                    "', which is not in '" + directory.string() + "'");
    return listing;
}

std::shared_ptr<const ImageStore> make_folder_store(fs::path directory, TextTable files) {
    return std::make_shared<FolderStore>(std::move(directory), std::move(files));
}

void check_same_classes(const std::vector<std::string>& training,
                        const std::vector<std::string>& test, const std::string& where) {
    if (training == test)
        return;
    size_t i = 0;
    while (i < training.size() && i < test.size() && training[i] == test[i])
        ++i;
    const bool more = i == training.size() || (i < test.size() && test[i] < training[i]);
    throw Error("'" + where + "': the test images have the class " +
                (more ? "'" + test[i] + "', which the training images have not"
                      : "not '" + training[i] + "', which the training images have") +
                "; labels would mean something else");
}

std::string empty_classes(const std::vector<std::string>& classes,
                          const std::vector<int32_t>& labels, const std::string& images) {
    std::vector<bool> has_some(classes.size());
    for (const int32_t label : labels)
        has_some[static_cast<size_t>(label)] = true;
    constexpr int64_t most_names = 5;
    int64_t count = 0;
    std::string names;
    for (size_t i = 0; i < classes.size(); ++i)
        if (!has_some[i] && ++count <= most_names)
            names += (count > 1 ? ", '" : "'") + classes[i] + "'";
    if (count == 0)
        return "";
    return std::to_string(count) + " of " + std::to_string(classes.size()) + " classes " +
           (count == 1 ? "has" : "have") + " no " + images + ": " + names +
           (count > most_names ? ", ..." : "");
}

fs::path FolderLayout::test_directory() const {
    std::error_code error;
    if (fs::is_directory(directory / "train", error))
        for (const char* name : {"val", "test"})
            if (fs::is_directory(directory / name, error))
                return directory / name;
    return {};
}

namespace {

bool has_folders(const fs::path& directory) {
    const std::vector<fs::directory_entry> entries = entries_of(directory);
    return std::any_of(entries.begin(), entries.end(), [](const fs::directory_entry& entry) {
        std::error_code error;
        return !hidden(entry.path()) && entry.is_directory(error);
    });
}

}  // namespace

bool FolderLayout::has_test() const {
    return held_out > 0 || !test_directory().empty();
}

std::string FolderLayout::unused() const {
    const fs::path testing = test_directory();
    if (held_out > 0 && !testing.empty())
        return settings.held_out + " holds nothing out: the test images are those of '" +
               testing.string() + "'";
    if (!val_labels.empty() && testing.empty())
        return settings.val_labels + " is not read: '" + directory.string() + "' has no val/";
    if (!val_labels.empty() && has_folders(testing))
        return settings.val_labels + " is not read: the class folders of '" + testing.string() +
               "' say the classes";
    return "";
}

std::vector<std::string> FolderLayout::class_names() const {
    std::error_code error;
    const bool has_train = fs::is_directory(directory / "train", error);
    return list_class_names(has_train ? directory / "train" : directory);
}

FolderListing FolderLayout::list(Split split) const {
    std::error_code error;
    if (!fs::is_directory(directory, error))
        throw Error("'" + directory.string() + "' is no directory; set " + settings.directory +
                    " to where it is");
    const bool has_train = fs::is_directory(directory / "train", error);
    const fs::path training = has_train ? directory / "train" : directory;
    const fs::path testing = test_directory();
    if (split == Split::train && (!testing.empty() || held_out == 0))
        return list_class_folders(training);
    if (!testing.empty()) {
        if (has_folders(testing))
            return list_class_folders(testing);
        std::vector<fs::path> candidates{directory / "val_labels.txt",
                                         directory / "LOC_val_solution.csv"};
        if (!val_labels.empty())
            candidates = {val_labels};
        for (const fs::path& labels : candidates)
            if (fs::exists(labels, error))
                return list_flat_folder(testing, labels, list_class_names(training));
        throw Error("'" + testing.string() + "' has no class folders, and there is no '" +
                    candidates[0].string() + "' that says the class of each file; set " +
                    settings.val_labels);
    }
    if (held_out == 0)
        throw Error("'" + directory.string() +
                    "' has no val/ with the test images; make it, or "
                    "hold out a share of the training images with " +
                    settings.held_out + ", e.g. 0.1");
    const FolderListing all = list_class_folders(training);
    return all.part([&](int64_t i) {
        const std::string_view path = all.files[i];
        const bool test = crc32c(path.data(), path.size()) < held_out * 0x1p32;
        return test == (split == Split::test);
    });
}

}  // namespace trainer
