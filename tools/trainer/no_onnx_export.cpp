// Export of a build without protobuf: there is none.
#include "engine/error.h"
#include "tools/trainer/onnx_export.h"

namespace trainer {

void export_onnx(const Network&, const ParameterArena&, const ParameterArena&, const OnnxOptions&,
                 const std::filesystem::path&) {
    throw UsageError(
        "export: this build writes no ONNX (it was built without libprotobuf-dev and "
        "protobuf-compiler)");
}

}  // namespace trainer
