#include "tools/trainer/export.h"

#include <iostream>
#include <nlohmann/json.hpp>

#include "tools/trainer/model_card.h"
#include "tools/trainer/onnx_export.h"

namespace trainer {

int run_export(const ExportOptions& options) {
    const LoadedModel model = load_model(options.checkpoint);
    OnnxOptions onnx;
    onnx.fold_batch_norm = options.fold_bn;
    if (options.uint8)
        onnx.normalization = model.card.normalization;
    onnx.metadata = {{"model", model.card.model}, {"dataset", model.card.dataset}};
    if (!model.card.class_names.empty())
        onnx.metadata.emplace_back("class_names", nlohmann::json(model.card.class_names).dump());
    export_onnx(model.network, model.parameters, model.statistics, onnx, options.onnx);
    const Shape& input = model.card.input;
    std::cout << options.onnx << ": " << model.card.model << ", images "
              << (options.uint8 ? "uint8" : "float, normalised") << " [batch, " << input[0] << ", "
              << input[1] << ", " << input[2] << "] -> logits [batch, " << model.card.classes << "]"
              << (options.fold_bn ? ", batch norm folded" : "") << "\n";
    return 0;
}

}  // namespace trainer
