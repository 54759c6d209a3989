#include "tools/trainer/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <utility>

#include "engine/error.h"
#include "engine/nearest.h"
#include "tools/trainer/config.h"
#include "tools/trainer/version.h"

namespace trainer {
namespace {

using Action = CommandLine::Action;

constexpr const char* description =
    "Trains ResNet and VGG on images.\n"
    "  trainer --config resnet20.yaml\n"
    "  trainer --config resnet20.yaml --set optim.lr=0.2 --set train.epochs=30\n"
    "  trainer --config resnet20.yaml --role=server --listen=0.0.0.0:9000 \\\n"
    "          --set comm.secret_file=secret    # which all share; see comm/SECURITY.md\n"
    "  trainer --config resnet20.yaml --role=worker --servers=node1:9000\n"
    "  trainer eval --config resnet20.yaml --checkpoint runs/resnet20/best\n"
    "  trainer predict --checkpoint runs/resnet20/best cat.jpg dog.png\n"
    "  trainer export --checkpoint runs/resnet20/best --onnx resnet20.onnx";

constexpr const char* exit_codes =
    "Exit codes: 0 done, 1 the run failed, 2 the command line or the config is wrong, 75 stopped "
    "by a signal with a checkpoint written.";

void add_cluster_options(CLI::App& app, CommandLine& line) {
    const std::string group = "A cluster of processes (without a role: all of it in this one)";
    app.add_option("--role", line.role, "server | worker: what this process is")
        ->check(CLI::IsMember({"server", "worker"}))
        ->group(group);
    app.add_option("--listen", line.listen,
                   "HOST:PORT of this server, or of this worker of topology allreduce; port 0: any "
                   "free one")
        ->group(group);
    app.add_option("--servers", line.servers,
                   "HOST:PORT,… of every server, for a worker; of worker 0 for topology allreduce")
        ->group(group);
    app.add_option("--rank", line.rank,
                   "which server or worker this is; without: whichever is free")
        ->check(CLI::NonNegativeNumber)
        ->group(group);
    app.add_option("--interface", line.interface, "network interface to use")->group(group);
    app.add_flag("--insecure", line.insecure,
                 "listens to other machines without TLS or a secret: anyone there may take part")
        ->group(group);
}

/// What is said of a role must be there, and fit it.
void check_cluster_options(const CommandLine& line) {
    const auto needs = [&](bool given, const std::string& option, const std::string& role) {
        const bool fits = role.empty() ? !line.role.empty() : line.role == role;
        if (given && !fits)
            throw UsageError(option + ": goes with --role" + (role.empty() ? "" : "=" + role));
    };
    needs(!line.listen.empty(), "--listen", "");
    needs(!line.servers.empty(), "--servers", "worker");
    needs(line.insecure, "--insecure", "");
    needs(line.rank.has_value(), "--rank", "");
    needs(!line.interface.empty(), "--interface", "");
}

/// Options and subcommands that `app` and its subcommand `command` take, for a misspelt one.
std::vector<std::string> names_of(const CLI::App& app, const CLI::App& command) {
    std::vector<std::string> names;
    for (const CLI::App* part : {&command, &app}) {
        for (const CLI::Option* option : part->get_options())
            names.push_back(option->get_name());
        for (const CLI::App* subcommand : part->get_subcommands({}))
            names.push_back(subcommand->get_name());
    }
    return names;
}

/// What is left over is an option or a word that nothing takes.
void refuse_extras(const CLI::App& app) {
    const CLI::App& command = app.get_subcommands().empty() ? app : *app.get_subcommands().front();
    for (const std::string& extra : app.remaining(true)) {
        const std::string name = extra.substr(0, extra.find('='));
        const std::string nearest = nearest_name(name, names_of(app, command));
        if (nearest == name)
            throw UsageError(name + ": not an option of " + command.get_name());
        throw UsageError(name + ": unknown " + (name.starts_with("-") ? "option" : "argument") +
                         "; did you mean " + nearest + "?");
    }
}

}  // namespace

CommandLine parse_command_line(int count, const char* const* arguments) {
    CommandLine line;
    bool print_config = false, help = false, show_version = false;

    CLI::App app(description, "trainer");
    app.set_help_flag();
    app.allow_extras();
    app.add_flag("--help,-h", help, "says this");
    app.add_flag("--version", show_version, "says what was built");
    app.add_flag("--print-config", print_config, "prints the config in force, and stops");
    app.add_flag("--profile", line.profile, "times every operation");
    app.add_option("--config", line.config, "YAML file, as given or in configs/")
        ->type_name("FILE");
    app.add_option("--set", line.overrides,
                   "changes a key; the value is YAML, a map merges, {} drops what the file says")
        ->type_name("KEY=VALUE")
        ->allow_extra_args(false);
    app.add_option("--metrics-port", line.metrics_port,
                   "serves the run's numbers to Prometheus at this port; 0: any free one")
        ->check(CLI::Range(0, 65535))
        ->type_name("PORT");
    add_cluster_options(app, line);

    CLI::App* evaluate = app.add_subcommand("eval", "evaluates a checkpoint on the test images");
    evaluate->add_option("--checkpoint", line.checkpoint, "directory: step-<N>, latest or best")
        ->type_name("DIR");
    evaluate->fallthrough();  // --config and --set after `eval` are the program's
    CLI::App* models = app.add_subcommand("models", "lists the models");
    CLI::App* exporting = app.add_subcommand("export", "writes a checkpoint's model as ONNX");
    exporting->add_option("--checkpoint", line.checkpoint, "directory: step-<N>, latest or best")
        ->type_name("DIR");
    exporting->add_option("--onnx", line.onnx, "the file to write")->type_name("FILE");
    exporting->add_flag("--fold-bn", line.fold_bn, "folds batch norm into the convolutions");
    exporting->add_flag("--uint8", line.uint8,
                        "takes images as bytes from 0 to 255, normalised inside");
    CLI::App* predict = app.add_subcommand("predict", "names what is in images");
    predict->add_option("--checkpoint", line.checkpoint, "directory: step-<N>, latest or best")
        ->type_name("DIR");
    predict->add_option("IMAGE", line.images, "files that hold images");
    for (CLI::App* command : {evaluate, models, exporting, predict}) {
        command->set_help_flag();
        command->allow_extras();
        command->add_flag("--help,-h", help, "says this");
    }

    try {
        app.parse(count, arguments);
    } catch (const CLI::ParseError& error) {
        std::string message = error.what();
        std::replace(message.begin(), message.end(), '\n', ' ');
        throw UsageError(message + " (see --help)");
    }

    if (help) {
        line.action = Action::print_text;
        app.clear();  // or it would say what the subcommand takes alone
        line.text = app.help("", CLI::AppFormatMode::All) + "\n" + exit_codes +
                    "\n\nKeys of the config, their defaults, and what they take:\n" +
                    describe_keys();
        return line;
    }
    if (show_version) {
        line.action = Action::print_text;
        line.text = "trainer " + version() + " (" + build_description() + ")\n";
        return line;
    }
    refuse_extras(app);
    check_cluster_options(line);
    if (*models) {
        line.action = Action::list_models;
        return line;
    }
    if ((*exporting || *predict) && line.checkpoint.empty())
        throw UsageError(std::string(*predict ? "predict" : "export") +
                         ": which checkpoint? e.g. --checkpoint runs/resnet20/best");
    if (*exporting) {
        line.action = Action::export_model;
        if (line.onnx.empty())
            throw UsageError("export: to which file? e.g. --onnx resnet20.onnx");
        return line;
    }
    if (*predict) {
        line.action = Action::predict;
        if (line.images.empty())
            throw UsageError("predict: which images? e.g. cat.jpg");
        return line;
    }
    if (line.config.empty())
        throw UsageError("which config? e.g. --config resnet20.yaml (see --help)");
    if (*evaluate && line.checkpoint.empty())
        throw UsageError("eval: which checkpoint? e.g. --checkpoint runs/resnet20/best");
    line.action = print_config ? Action::print_config
                  : *evaluate  ? Action::evaluate
                               : Action::train;
    return line;
}

}  // namespace trainer
