// Export of a trained network to ONNX.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/normalization.h"
#include "engine/arena.h"
#include "engine/network.h"

namespace trainer {

struct OnnxOptions {
    /// Batch norm goes into the weights of the convolution before it, where nothing else takes
    /// that convolution's output.
    bool fold_batch_norm = false;
    /// With this the input is uint8 [batch, channels, height, width] as images are stored, and is
    /// normalised inside; else it is float and normalised already.
    std::optional<Normalization> normalization;
    /// Put into the file's metadata, e.g. {"class_names", "..."}.
    std::vector<std::pair<std::string, std::string>> metadata;
};

/// Writes the network with its weights and running statistics (slabs "weights", fp32) as an ONNX
/// model of operator set 13: input "images" [batch, channels, height, width], output "logits"
/// [batch, classes], any batch. Throws UsageError where this build has no protobuf, Error where
/// the file cannot be written, or would pass the format's 2 GB.
void export_onnx(const Network& network, const ParameterArena& parameters,
                 const ParameterArena& statistics, const OnnxOptions& options,
                 const std::filesystem::path& path);

}  // namespace trainer
