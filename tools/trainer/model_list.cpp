#include "tools/trainer/model_list.h"

#include <iomanip>
#include <sstream>

#include "models/models.h"

namespace trainer {

std::string list_models() {
    std::ostringstream text;
    text << std::left << std::setw(16) << "model" << std::right << std::setw(14) << "parameters"
         << std::setw(16) << "multiply-adds"
         << "   images, classes\n";
    for (const std::string& name : model_names()) {
        const ModelOptions options = usual_options(name);
        const Network network = build_model(name, options);
        text << std::left << std::setw(16) << name << std::right << std::setw(14)
             << network.parameters().size() << std::setw(16) << network.multiply_adds() << "   "
             << options.channels << "x" << options.height << "x" << options.width << ", "
             << options.num_classes << "\n";
    }
    return text.str();
}

}  // namespace trainer
