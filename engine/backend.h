// Backend: the memory and the prebuilt operations of one device.
//
// An executor plans the buffers of a network and asks the backend for one Operation a node, bound
// to its buffers for good; a step then only calls forward and backward. Activations lie as the
// backend likes them: only the backend's operations look inside.
#pragma once

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/arena.h"
#include "engine/augmentation.h"
#include "engine/collective.h"
#include "engine/lanes.h"
#include "engine/network.h"

namespace trainer {

/// Memory of one activation or its gradient, for the whole batch: sample after sample, each of
/// `sample_bytes`. Operations keep a pointer to the Buffer and read `data` at each call, since a
/// network's input may lie elsewhere at each step.
struct Buffer {
    std::byte* data = nullptr;
    Shape shape;  ///< of one sample, as in Node::shape
    DType type = DType::f32;
    int64_t channels = 0;  ///< as stored: the shape's channels plus the backend's padding (zero)
    int64_t sample_bytes = 0;

    /// First byte of sample `index`.
    template <typename T>
    T* sample(int64_t index) const {
        return reinterpret_cast<T*>(data + index * sample_bytes);
    }
};

/// Images of bytes, and what is done to them before a step sees them.
struct ImageSet {
    const uint8_t* pixels = nullptr;  ///< [count, channels, height, width]
    int64_t count = 0, channels = 0, height = 0, width = 0;
    std::vector<float> values;  ///< [channels, 256]: the normalised value of each byte
    CropOptions crops;
    uint64_t seed = 0;  ///< of the augmentation
};

/// An ImageSet that a device keeps, and makes the batches of steps of.
class DeviceImages {
  public:
    virtual ~DeviceImages() = default;
};

/// What the next forward pass works on, changed by the executor before each step.
struct StepInput {
    const float* images = nullptr;    ///< [batch, channels, height, width], normalised
    const int32_t* labels = nullptr;  ///< [batch]
    int64_t batch = 0;  ///< samples that count; those behind are padding (inference only)
    uint64_t seed = 0;  ///< with `step` and the sample's index the key of dropout
    int64_t step = 0;
    int64_t first_sample = 0;  ///< index of sample 0 within the global batch

    /// In place of `images`: images that the backend keeps; which of them, [batch], and the epoch
    /// whose augmentation they get.
    const DeviceImages* kept = nullptr;
    const int32_t* indices = nullptr;
    int64_t epoch = 0;

    /// A number that no other `images` had, 0: none; and where they are ready, the images of the
    /// step after, which a device apart copies while it computes. Those stay as they are until that
    /// step has ended, or is not to come.
    uint64_t images_id = 0;
    const float* next_images = nullptr;
    uint64_t next_images_id = 0;
};

/// Everything that an operation of one node is bound to.
struct Binding {
    const Network* network = nullptr;
    const Node* node = nullptr;
    int64_t batch = 0;                  ///< samples in every buffer
    int64_t team_batch = 0;             ///< samples of a whole team (Backend::followers); 0: alone
    bool training = true;               ///< false: forward only, running statistics
    std::vector<const Buffer*> inputs;  ///< one per Node::inputs
    Buffer* output = nullptr;

    /// Gradients that the consumers of the output leave, one buffer each, to be added up by this
    /// node. More than one only where Backend::sums_gradients says so for the kind.
    std::vector<const Buffer*> output_gradients;
    /// Where this node leaves the gradient of each of its inputs; nullptr where nobody needs it.
    std::vector<const Buffer*> input_gradients;

    const ParameterArena* parameters = nullptr;  ///< slab "weights"
    std::vector<std::byte*> gradients;           ///< a gradient slab for each lane
    const ParameterArena* statistics = nullptr;  ///< slab "weights": the running statistics
    const StepInput* step = nullptr;
};

/// One node of a plan on one device. Buffers share memory where their lives do not meet, so an
/// operation writes all of each sample of its output, the backend's padding (zeros) included.
/// Forward and backward are called by every lane and work on that lane's part of the batch,
/// `lane.part(batch)`; they may call lane.barrier(), each lane as often as the others. Neither
/// allocates.
class Operation {
  public:
    virtual ~Operation() = default;

    /// Takes the weights (and running statistics, for inference) over into the operation's own
    /// form. Called by one lane, before forward, whenever they may have changed.
    virtual void load_weights() {}

    virtual void forward(Lane& lane) = 0;

    /// Writes (does not add to) this lane's share of the parameter gradients into its slab and
    /// the gradients of its inputs. Called after the backward pass of all consumers.
    virtual void backward(Lane& lane) = 0;

    /// How it is computed, for the profile and for tests, e.g. "jit:avx512_core".
    virtual std::string implementation() const { return "plain"; }
};

/// Sums over samples of one pass; of a lane's part, or of the whole batch.
struct LossSums {
    double loss = 0;   ///< sum over samples of the cross entropy
    int64_t top1 = 0;  ///< samples whose label has the largest logit (ties: the lowest class)
    int64_t top5 = 0;  ///< samples whose label is among the five largest
    int64_t samples = 0;
    bool operator==(const LossSums&) const = default;

    LossSums& operator+=(const LossSums& other) {
        loss += other.loss;
        top1 += other.top1;
        top5 += other.top5;
        samples += other.samples;
        return *this;
    }
};

/// Softmax cross entropy, arXiv 1512.00567 for the smoothing: the target is 1 - s for the label
/// plus s / classes for each class.
class Loss {
  public:
    virtual ~Loss() = default;
    /// This lane's sums; where training, also writes d(mean loss over `mean_over` samples)/d
    /// logits. Padding samples count nothing and get a zero gradient.
    virtual LossSums run(Lane& lane, int64_t mean_over) = 0;
};

/// The steps of one executor on a device that computes apart from the calling thread. There
/// operations and losses only line up work, which runs in that order; Loss::run returns nothing of
/// use. What is lined up reads the step's input, as begin() took it over, from the device's memory,
/// so that it may be recorded once and replayed. One lane; used by one thread at a time.
class DeviceSteps {
  public:
    virtual ~DeviceSteps() = default;

    /// Where operations leave parameter gradients: the arena's slab, or memory of the device.
    virtual std::byte* gradients() = 0;

    /// Starts a step: takes its StepInput, and the weights and statistics as they are now where
    /// `reload`, over to the device. What the input points to stays as it is until finish().
    virtual void begin(int64_t mean_over, bool reload) = 0;

    /// Lines up piece `index` of the step, which is what `line_up` lines up: the same at each
    /// step. With `replay` false it is never a recording that runs.
    virtual void run(size_t index, const std::function<void()>& line_up, bool replay) = 0;

    /// Lines up the way of the gradients of `range` to the arena's slab, after what has been lined
    /// up so far; work lined up later need not wait for it. await(index) waits until they are
    /// there.
    virtual void send(size_t index, Range range) = 0;
    virtual void await(size_t index) = 0;

    /// Waits for all that has been lined up. The slabs may be read and written then.
    virtual void wait() = 0;

    /// Ends the step: as wait(), and returns its sums.
    virtual LossSums finish() = 0;
};

/// What the steps of an executor are made of; all outlives them. Made before the operations, which
/// have the same `step`.
struct DeviceStepsOptions {
    const Network* network = nullptr;
    int64_t batch = 0;
    bool in_team = false;  ///< weights and statistics are the first member's, gradients are summed
    bool training = true;
    const ParameterArena* parameters = nullptr;
    const ParameterArena* statistics = nullptr;
    const StepInput* step = nullptr;
};

/// How a backend joins those of other workers in a Collective.
struct GroupOptions {
    std::string id;  ///< Backend::make_group_id() of rank 0
    int rank = 0, size = 1;
    int64_t elements = 0;  ///< of the largest slab
    std::chrono::milliseconds timeout{30000};
    /// Called while it waits; throws where the others are known to be lost.
    std::function<void()> look{};
};

class SlabMath;
class DeviceExchange;

/// Who works on an arena's slabs between steps, which decides where they lie best.
enum class SlabHome { device, host };

class Backend {
  public:
    virtual ~Backend() = default;

    /// For people, e.g. "oneDNN 2.6.3, avx512_core_bf16, 2 threads".
    virtual std::string description() const = 0;

    /// Element type of parameters and gradients: f32, or f64 of the double reference.
    virtual DType parameter_type() const = 0;

    /// Zeroed memory of this device. Throws Error where there is too little.
    virtual Memory allocate(size_t bytes) = 0;

    /// Zeroed memory for the slabs of arenas, which operations use during a step and all code of
    /// this process between steps.
    virtual Memory allocate_slabs(size_t bytes, SlabHome /*home*/) { return allocate(bytes); }

    /// Copies from and to memory of allocate(), which may be out of this process's reach.
    virtual void read(std::byte* to, const std::byte* from, size_t bytes) {
        std::memcpy(to, from, bytes);
    }
    virtual void write(std::byte* to, const std::byte* from, size_t bytes) {
        std::memcpy(to, from, bytes);
    }

    /// Bytes that allocate() could still give, of a device with memory of its own; nullopt where
    /// it is the machine's.
    virtual std::optional<size_t> free_memory() const { return std::nullopt; }

    /// Copies images to the device, for steps to be given StepInput::kept. nullptr where there is
    /// no device apart. Throws Error where it has too little memory.
    virtual std::unique_ptr<DeviceImages> keep_images(const ImageSet&) { return nullptr; }

    /// nullptr where operations have done their work when they return.
    virtual std::unique_ptr<DeviceSteps> make_steps(const DeviceStepsOptions&) { return nullptr; }

    /// Elementwise arithmetic where slabs are at home on a device (SlabHome::device); nullptr where
    /// they are the processor's, and plain loops are best.
    virtual SlabMath* slab_math() { return nullptr; }

    /// The backends of other devices that compute one batch together with this one, each a part of
    /// it; executors of training see to it. Empty but for the first of a team.
    virtual std::span<const std::unique_ptr<Backend>> followers() const { return {}; }

    /// Lets the others of its team fail where they wait for this one, which has failed.
    virtual void abandon_team() noexcept {}

    /// For collectives between the devices of several workers; empty where slabs are summed by the
    /// processor (comm/mesh.h).
    virtual std::string make_group_id() { return {}; }

    /// Joins the others. Throws Error where one does not come. REQUIRES: make_group_id() has one.
    virtual std::unique_ptr<Collective> join(const GroupOptions& /*options*/) { return nullptr; }

    /// What a worker of a cluster does between steps, done on the device; nullptr where there is
    /// none apart. `arena` has its slabs at home on the host and outlives it.
    virtual std::shared_ptr<DeviceExchange> make_exchange(const ParameterArena& /*arena*/) {
        return nullptr;
    }

    virtual LaneTeam& lanes() = 0;

    /// How the output of `node` is to lie: shape, type, stored channels and sample bytes are set,
    /// data is not. Gradients of an activation lie as it does.
    virtual Buffer layout(const Network& network, const Node& node) const = 0;

    /// Whether operations of that kind add up several output gradients themselves.
    virtual bool sums_gradients(Kind kind) const = 0;

    /// Builds the operation of one node. `binding` and what it points to outlive it.
    virtual std::unique_ptr<Operation> build(const Binding& binding) = 0;

    /// Adds `source` to `target` (same layout), the lane's samples of `batch`.
    virtual void add(Lane& lane, const Buffer& source, const Buffer& target, int64_t batch) = 0;

    /// Loss over `logits`; `gradient` is nullptr for evaluation.
    virtual std::unique_ptr<Loss> build_loss(const Buffer& logits, const Buffer* gradient,
                                             const StepInput& step, double label_smoothing) = 0;

    /// target[i] = sources[0][i] + sources[1][i] + ... over a range of parameter-sized slabs, in
    /// that order; target may be sources[0].
    virtual void sum_slabs(std::byte* target, std::span<std::byte* const> sources, Range range) = 0;
};

/// Plain loops in float or double: the yardstick for the others, and the engine of machines
/// without oneDNN. `type` is f32 or f64; one lane.
std::unique_ptr<Backend> make_reference_backend(DType type);

/// Arithmetic of activations; weights, their gradients and all statistics are fp32 either way.
enum class Precision { fp32, bf16 };

struct CpuOptions {
    int threads = 1;  ///< lanes, >= 1
    Precision precision = Precision::fp32;
    bool pin = true;  ///< binds lanes to processors
    /// fp32 convolutions of 3x3 by Winograd's F(4x4, 3x3) where that is faster: up to three times
    /// the speed, rounding errors of up to 3e-6 of the output's norm.
    bool winograd = true;
};

/// oneDNN on this machine's processor. Throws UsageError where this build has no oneDNN, or the
/// processor no bf16.
std::unique_ptr<Backend> make_cpu_backend(const CpuOptions& options);

}  // namespace trainer
