// trainer: trains, evaluates, exports and lists models, as its command line says.

#include <exception>
#include <iostream>

#include "engine/error.h"
#include "tools/trainer/command_line.h"
#include "tools/trainer/config.h"
#include "tools/trainer/export.h"
#include "tools/trainer/model_list.h"
#include "tools/trainer/predict.h"
#include "tools/trainer/training.h"

namespace trainer {
namespace {

Config config_of(const CommandLine& line) {
    Config config = load_config(find_config(line.config), line.overrides);
    config.profile = line.profile;
    config.metrics_port = line.metrics_port;
    return config;
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
            const Config config = config_of(line);
            refuse_what_is_not_built(config);
            return run_training(config);
        }
        case CommandLine::Action::evaluate: {
            const Config config = config_of(line);
            refuse_what_is_not_built(config);
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
        return run(parse_command_line(count, arguments));
    } catch (const UsageError& error) {
        return fail(error.what(), ExitCode::usage);
    } catch (const std::exception& error) {
        return fail(error.what(), ExitCode::failed);
    }
}
