// `trainer export`: a checkpoint's model for other programs.
#pragma once

#include <string>

namespace trainer {

struct ExportOptions {
    std::string checkpoint;  ///< directory
    std::string onnx;        ///< file to write
    bool fold_bn = false;    ///< batch norm goes into the convolutions' weights
    bool uint8 = false;      ///< the input is images as they are stored, normalised inside
};

/// Writes the file, says what went into it and returns 0. Throws Error and UsageError.
int run_export(const ExportOptions& options);

}  // namespace trainer
