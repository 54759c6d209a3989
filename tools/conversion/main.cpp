// convert: data sets from one form to another, and what it wrote checked.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <thread>

#include "engine/error.h"
#include "tools/conversion/convert.h"
#include "tools/standard_output.h"
#include "tools/trainer/signals.h"

namespace trainer::convert {
namespace {

constexpr const char* description =
    "Data sets from one form to another.\n"
    "  tools/convert imagenet /data/ILSVRC2012 data/imagenet --resize 480\n"
    "  tools/convert folder ~/photos data/photos --split 0.1\n"
    "  tools/convert verify data/imagenet\n"
    "  tools/convert cifar data/cifar10 /tmp/png\n"
    "Exits with 0; 1 where an image was rejected or it failed; 2 where the command line is wrong;\n"
    "75 where a signal stopped it: the same command goes on from there, cifar and idx anew.";

int default_threads() {
    return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 64);
}

struct CommandLine {
    PackOptions pack;
    std::string from, to, to_format;
    bool no_decode = false, classes = false;
    int threads = default_threads();
};

void add_pack_options(CLI::App* command, CommandLine& line) {
    PackOptions& pack = line.pack;
    command->add_option("FROM", line.from, "directory with train/ and val/, or class folders")
        ->required();
    command->add_option("TO", line.to, "directory for the shards")->required();
    command->add_option("--resize", pack.resize, "shorter side of images that are larger; 0: as is")
        ->check(CLI::Range(0, 16384));
    command->add_option("--quality", pack.quality, "of JPEGs that were made smaller")
        ->check(CLI::Range(1, 100))
        ->capture_default_str();
    command->add_option("--shard-mib", pack.shard_mib, "size of a shard, about")
        ->check(CLI::Range(1, 65536))
        ->capture_default_str();
    command->add_option("--threads", line.threads, "that decode")
        ->check(CLI::Range(1, 256))
        ->capture_default_str();
    command->add_flag("--overwrite", pack.overwrite, "drops the shards that are there");
    command->add_flag("--allow-rejects", pack.allow_rejects,
                      "exits with 0 where some are rejected");
    command->add_option("--val-labels", pack.val_labels,
                        "says the class of each file of a val/ without class folders");
}

/// "imagenet, folder and info".
std::string names_of(const std::vector<CLI::App*>& commands) {
    std::string names;
    for (size_t i = 0; i < commands.size(); ++i)
        names += (i == 0 ? "" : i + 1 < commands.size() ? ", " : " and ") + commands[i]->get_name();
    return names;
}

int run(int count, const char* const* arguments) {
    CommandLine line;
    CLI::App app(description, "convert");
    app.require_subcommand(1);
    CLI::App* imagenet = app.add_subcommand("imagenet", "ILSVRC2012's folders to shards");
    add_pack_options(imagenet, line);
    CLI::App* folder = app.add_subcommand("folder", "any class folders to shards");
    add_pack_options(folder, line);
    folder->add_option("--split", line.pack.held_out, "share for val, where there is no val/")
        ->check(CLI::Range(0.0, 0.99));
    CLI::App* cifar = app.add_subcommand("cifar", "CIFAR: binary, python and PNG folders");
    cifar->add_option("FROM", line.from, "its directory")->required();
    cifar->add_option("TO", line.to, "directory to write to")->required();
    cifar->add_option("--to", line.to_format, "binary | png | pickle")
        ->check(CLI::IsMember({"binary", "png", "pickle"}));
    CLI::App* idx = app.add_subcommand("idx", "MNIST's IDX files to PNG folders, and back");
    idx->add_option("FROM", line.from, "its directory")->required();
    idx->add_option("TO", line.to, "directory to write to")->required();
    CLI::App* check = app.add_subcommand("verify", "checks every image of shards");
    check->add_option("DIR", line.from, "directory of shards")->required();
    check->add_flag("--no-decode", line.no_decode, "checksums alone");
    check->add_option("--threads", line.threads, "that decode")->check(CLI::Range(1, 256));
    CLI::App* say = app.add_subcommand("info", "what shards hold");
    say->add_option("DIR", line.from, "directory of shards")->required();
    say->add_flag("--classes", line.classes, "each class, and how many images it has");
    const std::vector<CLI::App*> commands = app.get_subcommands({});
    const std::string command = count > 1 ? arguments[1] : "-";
    if (!command.starts_with('-') &&
        std::ranges::none_of(commands, [&](CLI::App* c) { return c->get_name() == command; }))
        throw UsageError("there is no conversion '" + command + "'; there are " +
                         names_of(commands));
    try {
        app.parse(count, arguments);
    } catch (const CLI::CallForHelp&) {
        const auto chosen = app.get_subcommands();
        std::cout << (chosen.empty() ? app.help() : chosen[0]->help());
        return exit_done;
    } catch (const CLI::ParseError& error) {
        std::string message = error.what();
        std::replace(message.begin(), message.end(), '\n', ' ');
        throw UsageError(message + " (see --help)");
    }
    const StopSignals signals;
    const std::function<bool()> stop = [&] { return signals.requested(); };
    line.pack.from = line.from;
    line.pack.to = line.to;
    line.pack.threads = line.threads;
    if (imagenet->parsed() || folder->parsed())
        return pack(line.pack, stop);
    if (cifar->parsed())
        return convert_cifar(line.from, line.to, line.to_format, stop);
    if (idx->parsed())
        return convert_idx(line.from, line.to, stop);
    if (check->parsed())
        return verify(line.from, !line.no_decode, line.threads, stop);
    return info(line.from, line.classes);
}

int fail(const std::string& message, int code) {
    std::cerr << "convert: error: " << message << "\n";
    return code;
}

}  // namespace
}  // namespace trainer::convert

int main(int count, char** arguments) {
    using namespace trainer;
    try {
        const int code = convert::run(count, arguments);
        flush_output();
        return code;
    } catch (const UsageError& error) {
        return convert::fail(error.what(), 2);
    } catch (const std::exception& error) {
        return convert::fail(error.what(), 1);
    }
}
