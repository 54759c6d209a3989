// trainer: trains, evaluates, exports and lists models, as its command line says.

#include <exception>
#include <iostream>
#include <sstream>

#include "engine/error.h"
#include "tools/standard_output.h"
#include "tools/trainer/allreduce.h"
#include "tools/trainer/cluster.h"
#include "tools/trainer/cluster_plan.h"
#include "tools/trainer/command_line.h"
#include "tools/trainer/config.h"
#include "tools/trainer/export.h"
#include "tools/trainer/model_list.h"
#include "tools/trainer/predict.h"
#include "tools/trainer/setup.h"
#include "tools/trainer/training.h"

namespace trainer {
namespace {

std::vector<std::string> split_list(const std::string& text) {
    std::vector<std::string> parts;
    std::istringstream stream(text);
    for (std::string part; std::getline(stream, part, ',');)
        parts.push_back(part);
    return parts;
}

Config config_of(const CommandLine& line) {
    Config config = load_config(find_config(line.config), line.overrides);
    config.profile = line.profile;
    config.metrics_port = line.metrics_port;
    config.insecure = line.insecure;
    if (!line.listen.empty())
        config.comm.listen = line.listen;
    if (!line.servers.empty())
        config.comm.servers = split_list(line.servers);
    if (!line.interface.empty())
        config.comm.interface = line.interface;
    return config;
}

int train(const Config& config, const CommandLine& line) {
    for (const auto& [given, option] :
         {std::pair(!line.listen.empty(), "--listen"), std::pair(line.insecure, "--insecure")})
        if (given && line.role == "worker" && !is_allreduce(config))
            throw UsageError(std::string(option) +
                             ": goes with --role=server, or with the workers "
                             "of distributed.topology allreduce");
    if (line.role == "server")
        return static_cast<int>(run_server(config, line.rank));
    if (line.role == "worker")
        return static_cast<int>(run_worker(config, line.rank));
    if (needs_cluster(config))
        return static_cast<int>(run_cluster_in_process(config));
    return run_training(config);
}

int run(const CommandLine& line) {
    switch (line.action) {
        case CommandLine::Action::print_text:
            std::cout << line.text;
            break;
        case CommandLine::Action::print_config:
            std::cout << print_config(config_of(line));
            break;
        case CommandLine::Action::list_models:
            std::cout << list_models();
            break;
        case CommandLine::Action::train: {
            Config config = config_of(line);
            check_topology(config);
            if (is_allreduce(config))
                config.distributed.servers = 1;  // rank 0's process leads as one
            if (line.role != "server") {
                check_device(config);
                check_gpus(config);
            }
            return train(config, line);
        }
        case CommandLine::Action::evaluate: {
            Config config = config_of(line);
            config.worker.gpus = 1;  // one evaluates
            check_device(config);
            return run_evaluation(config, line.checkpoint);
        }
        case CommandLine::Action::export_model:
            return run_export({line.checkpoint, line.onnx, line.fold_bn, line.uint8});
        case CommandLine::Action::predict:
            return run_prediction(line.checkpoint, line.images);
    }
    return static_cast<int>(ExitCode::done);
}

int fail(const std::string& message, ExitCode code) {
    std::cerr << "trainer: error: " << message << "\n";
    return static_cast<int>(code);
}

}  // namespace
}  // namespace trainer

int main(int count, char** arguments) {
    using namespace trainer;
    try {
        const CommandLine line = parse_command_line(count, arguments);
        const int code = run(line);
        // What a training says is in its log as well, and it goes on where even that is lost.
        if (line.action != CommandLine::Action::train)
            flush_output();
        return code;
    } catch (const UsageError& error) {
        return fail(error.what(), ExitCode::usage);
    } catch (const std::exception& error) {
        return fail(error.what(), ExitCode::failed);
    }
}
