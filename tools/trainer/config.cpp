#include "tools/trainer/config.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "engine/error.h"
#include "engine/nearest.h"
#include "tools/trainer/config_checks.h"
#include "tools/trainer/config_keys.h"

namespace fs = std::filesystem;

namespace trainer {
namespace {

/// "optim" of "optim.lr"; empty for a key at the top.
std::string parent_of(const std::string& path) {
    const size_t dot = path.rfind('.');
    return dot == std::string::npos ? std::string() : path.substr(0, dot);
}

std::string last_part(const std::string& path) {
    return path.substr(path.rfind('.') + 1);
}

/// A value as a message quotes it.
std::string quoted(const YAML::Node& node) {
    if (node.IsMap())
        return "a map";
    if (node.IsSequence())
        return YAML::Dump(node).size() < 60 ? YAML::Dump(node) : "a list";
    if (!node.IsScalar())
        return "nothing";
    constexpr size_t longest = 80;
    const std::string& whole = node.Scalar();
    const std::string text = whole.size() > longest ? whole.substr(0, longest) + "…" : whole;
    return plain_scalar(node) ? text : '"' + text + '"';
}

/// Where values come from: a file, with lines, or a --set.
struct Source {
    std::string name;
    bool has_lines;

    std::string at(const YAML::Mark& mark) const {
        return has_lines && mark.line >= 0 ? name + ":" + std::to_string(mark.line + 1) : name;
    }
};

/// Notes where documents start.
class DocumentStarts : public YAML::EventHandler {
  public:
    void OnDocumentStart(const YAML::Mark& mark) override { last_ = mark; }
    void OnDocumentEnd() override {}
    void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
    void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
    void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t,
                  const std::string&) override {}
    void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                         YAML::EmitterStyle::value) override {}
    void OnSequenceEnd() override {}
    void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                    YAML::EmitterStyle::value) override {}
    void OnMapEnd() override {}

    const YAML::Mark& last() const { return last_; }

  private:
    YAML::Mark last_;
};

/// The one document of `text`. Throws YAML::ParserException, also for whatever follows it: yaml-cpp
/// takes a stray "," for the start of another document, which it never ends.
YAML::Node load_document(const std::string& text) {
    std::istringstream stream(text);
    YAML::Parser parser(stream);
    DocumentStarts starts;
    if (parser.HandleNextDocument(starts) && parser.HandleNextDocument(starts))
        throw YAML::ParserException(starts.last(),
                                    "one document is expected, which ends before this");
    return YAML::Load(text);
}

/// Throws it as a UsageError of one line, whatever the names and values in it are made of.
[[noreturn]] void refuse(std::string message) {
    std::ranges::replace_if(
        message, [](unsigned char c) { return c < ' ' || c == 0x7f; }, ' ');
    throw UsageError(message);
}

/// Fills a Config from YAML, key by key.
class Reader {
  public:
    explicit Reader(Config& config) : keys_(keys_of(config)) {
        for (const Key& key : keys_)
            for (std::string group = parent_of(key.path); !group.empty(); group = parent_of(group))
                if (std::find(groups_.begin(), groups_.end(), group) == groups_.end())
                    groups_.push_back(group);
    }

    /// A whole file.
    void read_text(const std::string& text, const Source& source) {
        YAML::Node document;
        try {
            document = load_document(text);
        } catch (const YAML::Exception& error) {
            refuse(source.at(error.mark) + ": not YAML: " + error.msg);
        }
        if (document.IsNull())
            return;
        if (!document.IsMap())
            refuse(source.at(document.Mark()) +
                   ": no config, which is a map of keys: model: {name: resnet20}, …");
        read_group(document, "", source);
    }

    /// "key=value", the value YAML; an empty map drops what was said below the key so far.
    void read_override(const std::string& assignment) {
        const size_t equals = assignment.find('=');
        if (equals == std::string::npos || equals == 0)
            refuse("--set " + assignment + ": expected: --set key=value");
        const std::string path = assignment.substr(0, equals);
        YAML::Node value;
        try {
            value = load_document(assignment.substr(equals + 1));
        } catch (const YAML::Exception& error) {
            refuse("--set " + assignment + ": the value is not YAML: " + error.msg);
        }
        read_value(value, path, YAML::Mark::null_mark(), {"--set", false});
    }

    /// Where the key was given; empty where it was not.
    std::string where(const std::string& path) const {
        const auto found = where_.find(path);
        return found == where_.end() ? std::string() : found->second;
    }

  private:
    void read_group(const YAML::Node& map, const std::string& path, const Source& source) {
        std::map<std::string, YAML::Mark> seen;
        for (const auto& entry : map) {
            const YAML::Node& name = entry.first;
            if (!name.IsScalar())
                refuse(source.at(name.Mark()) + ": a key has to be a word");
            const std::string child = (path.empty() ? "" : path + ".") + name.Scalar();
            const auto [first, is_new] = seen.emplace(child, name.Mark());
            if (!is_new)
                refuse(source.at(name.Mark()) + ": " + child + ": given twice" +
                       (source.has_lines
                            ? ", first in line " + std::to_string(first->second.line + 1)
                            : ""));
            read_value(entry.second, child, name.Mark(), source);
        }
    }

    void read_value(const YAML::Node& value, const std::string& path, const YAML::Mark& mark,
                    const Source& source) {
        const auto key = std::find_if(keys_.begin(), keys_.end(),
                                      [&](const Key& candidate) { return candidate.path == path; });
        if (key != keys_.end()) {
            read_key(value, *key, source.at(mark), source.at(value.Mark()));
        } else if (std::find(groups_.begin(), groups_.end(), path) == groups_.end()) {
            refuse(source.at(mark) + ": " + path + ": unknown key; did you mean " +
                   nearest_key(path) + "?");
        } else if (!value.IsMap()) {
            refuse(source.at(mark) + ": " + path + ": " + quoted(value) +
                   " is of the wrong type; expected: a map of keys, e.g. " + example_of(path) +
                   "; {} for none");
        } else if (value.size() == 0) {
            reset_group(path);
        } else {
            read_group(value, path, source);
        }
    }

    void read_key(const YAML::Node& value, const Key& key, const std::string& key_at,
                  const std::string& value_at) {
        const Fit fit = key.read(value);
        if (fit == Fit::good) {
            where_[key.path] = key_at;
            return;
        }
        const bool wrong_word = fit == Fit::out_of_range && !key.words.empty();
        std::string message = value_at + ": " + key.path + ": " + quoted(value);
        message += fit == Fit::wrong_type ? " is of the wrong type"
                   : wrong_word           ? " is not known"
                                          : " is out of range";
        message += "; expected: " + key.takes;
        if (wrong_word)
            message += "; did you mean " + nearest_name(value.Scalar(), key.words) + "?";
        refuse(message);
    }

    void reset_group(const std::string& path) {
        for (const Key& key : keys_) {
            if (!key.path.starts_with(path + "."))
                continue;
            key.reset();
            where_.erase(key.path);
        }
    }

    /// The key or group most like `path`; one of the same last part but in another place counts
    /// as a slip of one letter.
    std::string nearest_key(const std::string& path) const {
        std::string nearest;
        size_t least = std::string::npos;
        const auto consider = [&](const std::string& candidate) {
            const size_t elsewhere = edit_distance(last_part(path), last_part(candidate)) + 1;
            const size_t distance = std::min(edit_distance(path, candidate), elsewhere);
            if (distance < least) {
                least = distance;
                nearest = candidate;
            }
        };
        for (const Key& key : keys_) {
            if (path.starts_with(key.path + "."))
                return key.path;
            consider(key.path);
        }
        for (const std::string& group : groups_)
            consider(group);
        return nearest;
    }

    std::string example_of(const std::string& group) const {
        const auto key = std::find_if(keys_.begin(), keys_.end(), [&](const Key& candidate) {
            return parent_of(candidate.path) == group;
        });
        return "{" + last_part(key->path) + ": " + (key->print().empty() ? "…" : key->print()) +
               "}";
    }

    std::vector<Key> keys_;
    std::vector<std::string> groups_;
    std::map<std::string, std::string> where_;
};

std::string read_file(const std::string& file) {
    std::error_code error;
    if (fs::is_directory(file, error))
        throw UsageError(file + ": a folder, not a config file");
    if (!fs::exists(file, error))
        throw UsageError(file + ": no such config file");
    std::ifstream stream(file, std::ios::binary);
    std::ostringstream text;
    text << stream.rdbuf();
    if (!stream)
        throw UsageError(file + ": cannot be read");
    return text.str();
}

/// configs/ here, then in each folder above this program.
std::vector<fs::path> config_folders() {
    std::vector<fs::path> folders = {"configs"};
    std::error_code error;
    const fs::path program = fs::read_symlink("/proc/self/exe", error);
    for (fs::path above = program.parent_path(); !error && above.has_relative_path();
         above = above.parent_path())
        folders.push_back(above / "configs");
    return folders;
}

/// Appends the keys from `*index` on whose paths lie below `group`, a level of maps each.
void print_group(const std::vector<Key>& keys, const std::string& group, size_t& index,
                 std::string& out) {
    const std::string prefix = group.empty() ? "" : group + ".";
    const auto depth = static_cast<size_t>(std::count(prefix.begin(), prefix.end(), '.'));
    const std::string indent(2 * depth, ' ');
    while (index < keys.size() && keys[index].path.starts_with(prefix)) {
        const Key& key = keys[index];
        const std::string below = key.path.substr(prefix.size());
        const size_t dot = below.find('.');
        if (dot == std::string::npos) {
            if (const std::string value = key.print(); !value.empty())
                out += indent + below + ": " + value + "\n";
            ++index;
            continue;
        }
        std::string inner;
        print_group(keys, prefix + below.substr(0, dot), index, inner);
        out += indent + below.substr(0, dot) + (inner.empty() ? ": {}\n" : ":\n" + inner);
    }
}

std::vector<ConfigEntry> entries(Config config, bool results_only) {
    std::vector<ConfigEntry> result;
    for (const Key& key : keys_of(config))
        if (const std::string value = key.print();
            !value.empty() && (key.effect == Effect::result || !results_only))
            result.emplace_back(key.path, value);
    return result;
}

}  // namespace

std::string find_config(const std::string& name) {
    std::error_code error;
    if (fs::exists(name, error) && !fs::is_directory(name, error))
        return name;  // a pipe too
    std::vector<std::string> known;
    for (const fs::path& folder : config_folders()) {
        if (fs::is_regular_file(folder / name, error))
            return (folder / name).string();
        for (const auto& entry : fs::directory_iterator(folder, error))
            if (entry.path().extension() == ".yaml")
                known.push_back(entry.path().filename().string());
    }
    if (fs::is_directory(name, error))
        throw UsageError(name + ": a folder, not a config file");
    std::sort(known.begin(), known.end());
    throw UsageError(name + ": no such config file, neither here nor in configs/" +
                     (known.empty() ? "" : "; did you mean " + nearest_name(name, known) + "?"));
}

Config parse_config(const std::string& text, const std::string& file,
                    const std::vector<std::string>& overrides) {
    Config config;
    Reader reader(config);
    reader.read_text(text, {file, true});
    for (const std::string& assignment : overrides)
        reader.read_override(assignment);

    config.file = file;
    config.name = fs::path(file).stem().string();
    for (std::string* dir : {&config.checkpoint.dir, &config.log.dir})
        if (*dir == "runs/NAME")
            *dir = "runs/" + config.name;
    check_config(config, [&](const std::string& key) {
        const std::string where = reader.where(key);
        return (where.empty() ? file : where) + ": " + key + ": ";
    });
    return config;
}

Config load_config(const std::string& file, const std::vector<std::string>& overrides) {
    return parse_config(read_file(file), file, overrides);
}

std::string print_config(const Config& config) {
    Config copy = config;
    std::string text;
    size_t index = 0;
    print_group(keys_of(copy), "", index, text);
    return text;
}

std::vector<ConfigEntry> flat(const Config& config) {
    return entries(config, false);
}

std::vector<ConfigEntry> flat_result(const Config& config) {
    return entries(config, true);
}

std::string describe_keys() {
    Config defaults;
    std::string text;
    for (const Key& key : keys_of(defaults)) {
        const std::string value = key.print();
        const std::string start = "  " + key.path + (value.empty() ? "" : "=" + value);
        text += start + std::string(start.size() < 44 ? 44 - start.size() : 1, ' ') + key.takes +
                (key.about.empty() ? "" : "; " + key.about) + "\n";
    }
    return text;
}

}  // namespace trainer
