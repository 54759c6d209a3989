// What all operations of one CUDA backend share: the device, its streams and handles, workspaces,
// and how activations lie.
//
// Activations [c, h, w] lie as [h][w][c], the channels padded with zeros to whole vectors of 16
// bytes; features [f] as plain rows. All operations line their work up in one stream, so what one
// leaves in a workspace the next may overwrite. Workspaces are taken once, at their full size, and
// stay where they are while the context lives: recorded graphs hold their addresses.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "engine/cuda/check.h"
#include "engine/cuda/cuda_engine.h"
#include "engine/cuda/kernels.h"
#include "engine/cuda/nccl.h"

namespace trainer::cuda {

class Algorithms;

/// Of one executor: where the device finds what its step works on.
struct StepState {
    const StepConstants* constants = nullptr;
    const int32_t* labels = nullptr;  ///< [batch]
    LossSums* sums = nullptr;         ///< memory of the host, which the device writes
    int64_t samples = 0;              ///< in every buffer
    double* sample_losses = nullptr;  ///< of the loss, one a sample
    uint8_t* sample_hits = nullptr;
};

class Context {
  public:
    /// Throws UsageError where the device has not the precision.
    explicit Context(const CudaOptions& options);
    ~Context();
    Context(const Context&) = delete;
    Context& operator=(const Context&) = delete;

    const CudaOptions& options() const { return options_; }
    const std::string& device_name() const { return name_; }

    /// Makes the device this thread's; to be called where another may have been before.
    void use() const;

    /// Element type of activations: f32 or bf16.
    DType activation() const {
        return options_.precision == Precision::bf16 ? DType::bf16 : DType::f32;
    }
    int64_t padded(int64_t channels) const;
    /// How `node`'s output lies, as Backend::layout.
    Buffer layout(const Network& network, const Node& node) const;

    cudaStream_t stream() const { return stream_; }
    cudaStream_t copy_stream() const { return copy_stream_; }    ///< to the host
    cudaStream_t input_stream() const { return input_stream_; }  ///< from the host, ahead of steps
    /// Of the GPUs that compute one batch together; nullptr: this one alone.
    Communicator* team() const { return team_.get(); }
    void set_team(std::unique_ptr<Communicator> team) { team_ = std::move(team); }

    cudnnHandle_t cudnn();
    cublasLtHandle_t cublas();
    Algorithms& algorithms();

    /// Of cuDNN and cuBLAS. REQUIRES: used within one operation.
    std::byte* workspace();
    size_t workspace_bytes() const { return workspace_size; }

    /// For sums over so many stored channels; asked for when an operation is built. Throws Error
    /// where they are more than can be summed.
    SumSpace sum_space(int64_t stored_channels);

    /// Zeroed memory of the device, at multiples of 256 bytes. Throws Error where there is too
    /// little. Not while a graph is recorded.
    Memory allocate(size_t bytes);
    /// Zeroed memory that the device and the host both address.
    Memory allocate_slabs(size_t bytes, SlabHome home);
    /// Zeroed, page-locked memory of the host, which the device addresses too.
    static Memory allocate_pinned(size_t bytes);

    /// Whether slabs can be at home on the device and yet be addressed by the host.
    bool has_managed_memory() const { return managed_; }

    /// Where the device reads (and writes) a slab: the slab itself where it is at home there, else
    /// a copy of it in the device's memory, which steps bring up to date.
    /// REQUIRES: memory of allocate_slabs().
    float* on_device(const ParameterArena& arena);
    /// Whether on_device() is a copy.
    static bool is_copied(const ParameterArena& arena);

    /// Whether the copy of an arena's weights is newer than they are, and steps take it as it is.
    void keep_copy(const ParameterArena& arena, bool keep);
    bool keeps_copy(const ParameterArena& arena) const {
        return kept_copies_.contains(arena.address(slab::weights));
    }

    /// The state of the executor whose operations have that StepInput.
    void set_step(const StepInput* step, const StepState* state);
    const StepState& step_of(const StepInput* step) const;

  private:
    static constexpr size_t workspace_size = size_t{256} << 20;

    CudaOptions options_;
    std::string name_;
    bool managed_ = false;
    cudaStream_t stream_ = nullptr, copy_stream_ = nullptr, input_stream_ = nullptr;
    cudnnHandle_t cudnn_ = nullptr;
    cublasLtHandle_t cublas_ = nullptr;
    std::unique_ptr<Communicator> team_;
    std::unique_ptr<Algorithms> algorithms_;
    Memory workspace_;
    std::vector<Memory> sums_, counters_;  // the last is the largest; graphs may hold the others
    std::map<const std::byte*, Memory> copies_;  // by the slab's address
    std::set<const std::byte*> kept_copies_;     // likewise
    std::map<const StepInput*, const StepState*> steps_;
};

/// A buffer as a tensor of `samples`.
Tensor tensor_of(const Buffer& buffer, int64_t samples);

/// First element of a node's `index`-th parameter in a slab.
float* parameter_in(const Binding& binding, void* slab, size_t index);
const TensorInfo& parameter_info(const Binding& binding, size_t index);

}  // namespace trainer::cuda
