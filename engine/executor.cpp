// Runs a network: buffers and operations are made once, then steps allocate nothing.
#include "engine/executor.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "engine/buffer_plan.h"
#include "engine/error.h"
#include "engine/team.h"

namespace trainer {

namespace {

size_t lane_gradient_bytes(const Network& network, const Backend& backend, int lanes,
                           bool training) {
    return training
               ? static_cast<size_t>(lanes - 1) * static_cast<size_t>(network.parameters().size()) *
                     size_of(backend.parameter_type())
               : 0;
}

bool all_finite(const float* values, int64_t count) {
    return std::all_of(values, values + count, [](float v) { return std::isfinite(v); });
}

bool all_finite(const Buffer& buffer, int64_t batch) {
    const int64_t count = batch * buffer.sample_bytes / static_cast<int64_t>(size_of(buffer.type));
    if (buffer.type == DType::f32)
        return all_finite(reinterpret_cast<const float*>(buffer.data), count);
    if (buffer.type == DType::f64) {
        const auto* values = reinterpret_cast<const double*>(buffer.data);
        return std::all_of(values, values + count, [](double v) { return std::isfinite(v); });
    }
    const auto* values = reinterpret_cast<const uint16_t*>(buffer.data);
    return std::all_of(values, values + count, [](uint16_t v) { return (v & 0x7f80) != 0x7f80; });
}

const char* name_of(Kind kind) {
    switch (kind) {
        case Kind::input:
            return "input";
        case Kind::convolution:
            return "convolution";
        case Kind::batch_norm:
            return "batch_norm";
        case Kind::relu:
            return "relu";
        case Kind::max_pool:
            return "max_pool";
        case Kind::global_average_pool:
            return "average_pool";
        case Kind::linear:
            return "linear";
        case Kind::pad_shortcut:
            return "shortcut";
        case Kind::dropout:
            return "dropout";
    }
    return "";
}

double seconds_now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

}  // namespace

struct Executor::Plan {
    Plan(const Network& net, Backend& engine, const ParameterArena& params,
         const ParameterArena& stats, const ExecutorOptions& opts)
        : network(net),
          backend(engine),
          parameters(params),
          statistics(stats),
          options(opts),
          lanes(engine.lanes().count()) {}

    void build();
    void bind_buffers();
    void build_operation(NodeId id);
    void plan_ranges();
    void plan_pace();

    void load_weights(Lane& lane);
    void meet_before(Lane& lane, size_t tick) {
        if (buffers.meetings[tick])
            lane.barrier();
    }
    void forward(Lane& lane);
    LossSums run_loss(Lane& lane);
    void backward(Lane& lane);
    void backward_of(Lane& lane, size_t id);
    void finish_range(Lane& lane, Range range);

    void plan_pieces();
    void add_piece(std::function<void(Lane&)> work, Range range);
    void run_on_device();
    LossSums run_step(const std::function<void(Lane&)>& work);

    // The first `batch` samples of a buffer, from wherever it is.
    std::vector<std::byte> here(const Buffer& buffer, int64_t batch) const {
        std::vector<std::byte> copy(static_cast<size_t>(batch * buffer.sample_bytes));
        backend.read(copy.data(), buffer.data, copy.size());
        return copy;
    }

    // On lane 0, whose pace the others meet: sleeps until what ends at `tick` is due.
    void keep_pace(const Lane& lane, size_t tick) const {
        if (!due.empty() && lane.index() == 0)
            std::this_thread::sleep_until(started + due[tick]);
    }

    // Runs one operation's pass, timed on lane 0 where a profile is taken.
    template <typename Pass>
    void timed(Lane& lane, double OperationTime::*seconds, size_t id, Pass pass) {
        if (!profiling || lane.index() != 0) {
            pass();
            return;
        }
        const double start = seconds_now();
        pass();
        if (device)
            device->wait();
        times[id].*seconds += seconds_now() - start;
    }

    const Network& network;
    Backend& backend;
    const ParameterArena& parameters;
    const ParameterArena& statistics;
    const ExecutorOptions options;
    const int lanes;

    BufferPlan buffers;
    Memory memory;
    Memory lane_gradients_memory;
    std::vector<std::byte*> lane_gradients;  // one slab a lane, the first is the arena's
    std::vector<Binding> bindings;           // by node
    std::vector<std::unique_ptr<Operation>> operations;
    std::vector<std::vector<const Buffer*>> to_add;  // by node: gradients added into its first one
    std::vector<std::vector<size_t>> loads_of_lane;  // operations whose weights a lane loads
    std::vector<Range> range_after;  // by node: what is final once its backward is done, or empty
    std::unique_ptr<Loss> loss;

    StepInput step;
    int64_t mean_over = 1;
    bool reload = true;
    const RangeDone* done = nullptr;
    const RangeLeaves* leaves = nullptr;
    std::vector<LossSums> sums;  // by lane
    std::function<void(Lane&)> train_work, evaluate_work, forward_work;

    using Clock = std::chrono::steady_clock;
    std::vector<Clock::duration> due;  // by tick, since the start of a step; empty: no stretching
    Clock::time_point started;
    int64_t late = 0;

    bool profiling = false;
    std::vector<OperationTime> times;

    // Where the backend computes on a device apart, a step is some pieces, each lined up there at
    // once. Training has one for each range, which is final after it; evaluation one that loads the
    // weights, and one for all else.
    struct Piece {
        std::function<void()> line_up;
        Range range;
        bool taken = false;  // from the device, by `leaves`
    };
    std::unique_ptr<DeviceSteps> device;  // nullptr: operations compute when they are called
    std::vector<Piece> pieces;
    std::function<void(Lane&)> device_work;
};

void Executor::Plan::bind_buffers() {
    buffers = plan_buffers(network, backend, options.batch, options.training);
    memory = backend.allocate(buffers.bytes);
    for (size_t i = 0; i < buffers.outputs.size(); ++i)
        buffers.outputs[i].data = memory.data.get() + buffers.output_offsets[i];
    for (size_t i = 0; i < buffers.edges.size(); ++i)
        buffers.edges[i].buffer.data = memory.data.get() + buffers.edge_offsets[i];
    device = backend.make_steps({.network = &network,
                                 .batch = options.batch,
                                 .in_team = options.team_batch > 0,
                                 .training = options.training,
                                 .parameters = &parameters,
                                 .statistics = &statistics,
                                 .step = &step});
    check(!device || lanes == 1, "a device is worked with by one lane");
    if (!options.training)
        return;
    const size_t slab_bytes = static_cast<size_t>(parameters.size()) * size_of(parameters.type());
    lane_gradients_memory = backend.allocate(static_cast<size_t>(lanes - 1) * slab_bytes);
    lane_gradients.push_back(device ? device->gradients() : parameters.address(slab::gradients));
    for (int lane = 1; lane < lanes; ++lane)
        lane_gradients.push_back(lane_gradients_memory.data.get() +
                                 static_cast<size_t>(lane - 1) * slab_bytes);
}

void Executor::Plan::build_operation(NodeId id) {
    const Node& node = network.node(id);
    Binding binding{.network = &network,
                    .node = &node,
                    .batch = options.batch,
                    .team_batch = options.team_batch,
                    .training = options.training,
                    .inputs = {},
                    .output = &buffers.outputs[static_cast<size_t>(id)],
                    .output_gradients = {},
                    .input_gradients = std::vector<const Buffer*>(node.inputs.size(), nullptr),
                    .parameters = &parameters,
                    .gradients = lane_gradients,
                    .statistics = &statistics,
                    .step = &step};
    for (const NodeId input : node.inputs)
        binding.inputs.push_back(&buffers.outputs[static_cast<size_t>(input)]);
    for (const Edge& edge : buffers.edges) {
        if (edge.producer == id)
            binding.output_gradients.push_back(&edge.buffer);
        if (edge.consumer == id)
            binding.input_gradients[edge.slot] = &edge.buffer;
    }
    to_add.emplace_back();
    if (binding.output_gradients.size() > 1 && !backend.sums_gradients(node.kind)) {
        to_add.back().assign(binding.output_gradients.begin() + 1, binding.output_gradients.end());
        binding.output_gradients.erase(binding.output_gradients.begin() + 1,
                                       binding.output_gradients.end());
    }
    bindings.push_back(std::move(binding));
    operations.push_back(backend.build(bindings.back()));
    times.push_back({node.name, name_of(node.kind), operations.back()->implementation(), 0, 0, 0});
}

void Executor::Plan::plan_ranges() {
    range_after.resize(network.nodes().size());
    int64_t announced = parameters.size();
    int64_t first = announced;
    for (NodeId id = network.output(); id >= 0; --id) {
        const auto& tensors = network.node(id).parameters;
        if (!tensors.empty()) {
            const int64_t offset = network.parameters()[tensors.front()].offset;
            check(offset < first, "parameters stand in the order of their nodes");
            first = offset;
        }
        const bool enough =
            options.range_elements > 0 && announced - first >= options.range_elements;
        if (first < announced && (enough || first == 0)) {
            range_after[static_cast<size_t>(id)] = {first, announced - first};
            announced = first;
        }
    }
    check(announced == 0, "every parameter belongs to a node");
}

// A forward pass costs its multiply-adds and a little for each element of its output, backward
// twice that.
void Executor::Plan::plan_pace() {
    if (options.step_seconds <= 0)
        return;
    const size_t count = network.nodes().size();
    std::vector<double> work(2 * count + 1, 0);
    for (size_t id = 1; id < count; ++id) {
        const Node& node = network.nodes()[id];
        const auto cost = static_cast<double>(network.multiply_adds(node)) +
                          static_cast<double>(element_count(node.shape));
        work[id] = cost;
        work[2 * count - id] = 2 * cost;
    }
    double total = 0, so_far = 0;
    for (const double cost : work)
        total += cost;
    for (const double cost : work) {
        so_far += cost;
        due.push_back(std::chrono::duration_cast<Clock::duration>(
            std::chrono::duration<double>(options.step_seconds * so_far / total)));
    }
}

void Executor::Plan::build() {
    bind_buffers();
    bindings.reserve(network.nodes().size());
    loads_of_lane.resize(static_cast<size_t>(lanes));
    size_t loaded = 0;
    for (NodeId id = 0; id <= network.output(); ++id) {
        build_operation(id);
        if (!network.node(id).parameters.empty())
            loads_of_lane[loaded++ % loads_of_lane.size()].push_back(static_cast<size_t>(id));
    }
    if (options.training)
        plan_ranges();
    if (options.training)
        plan_pace();
    loss = backend.build_loss(buffers.outputs.back(),
                              options.training ? &buffers.edges.back().buffer : nullptr, step,
                              options.training ? options.label_smoothing : 0);
    sums.resize(static_cast<size_t>(lanes));
    // Made once: a std::function built at each step would allocate.
    forward_work = [this](Lane& lane) {
        load_weights(lane);
        forward(lane);
    };
    train_work = [this](Lane& lane) {
        load_weights(lane);
        forward(lane);
        sums[static_cast<size_t>(lane.index())] = run_loss(lane);
        backward(lane);
    };
    evaluate_work = [this](Lane& lane) {
        if (reload)
            load_weights(lane);
        forward(lane);
        sums[static_cast<size_t>(lane.index())] = run_loss(lane);
    };
    if (device)
        plan_pieces();
}

void Executor::Plan::add_piece(std::function<void(Lane&)> work, Range range) {
    pieces.push_back({[this, work = std::move(work)] {
                          Lane lane(backend.lanes(), 0, 1);
                          work(lane);
                      },
                      range, false});
}

void Executor::Plan::plan_pieces() {
    device_work = [this](Lane&) { run_on_device(); };
    const auto load = [this](Lane& lane) { load_weights(lane); };
    const auto through_loss = [this](Lane& lane) {
        forward(lane);
        run_loss(lane);
    };
    if (!options.training) {
        add_piece(load, {});
        add_piece(through_loss, {});
        return;
    }
    size_t first = operations.size();  // the node that the last piece ended with
    for (size_t id = operations.size(); id-- > 1;) {
        if (range_after[id].count == 0 && id > 1)
            continue;
        const bool begins = first == operations.size();
        add_piece(
            [this, load, through_loss, begins, first, id](Lane& lane) {
                if (begins) {
                    load(lane);
                    through_loss(lane);
                }
                for (size_t node = first; node-- > id;)
                    backward_of(lane, node);
            },
            range_after[id]);
        first = id;
    }
    if (pieces.empty())
        add_piece(
            [load, through_loss](Lane& lane) {
                load(lane);
                through_loss(lane);
            },
            {});
}

// A recording is not timed, and does not sleep between its operations.
void Executor::Plan::run_on_device() {
    const bool replay = !profiling && due.empty();
    const bool announces = done != nullptr && *done;
    const auto announce = [&](size_t index) {
        if (!announces || pieces[index].range.count == 0)
            return;
        if (!pieces[index].taken)
            device->await(index);
        (*done)(pieces[index].range);
    };
    device->begin(mean_over, reload);
    for (size_t index = 0; index < pieces.size(); ++index) {
        if (index == 0 && !options.training && !reload)
            continue;
        device->run(index, pieces[index].line_up, replay);
        Piece& piece = pieces[index];
        piece.taken = announces && piece.range.count > 0 && leaves != nullptr && *leaves &&
                      (*leaves)(piece.range, reinterpret_cast<float*>(device->gradients()));
        if (piece.range.count > 0 && !piece.taken)
            device->send(index, piece.range);
        if (!replay)
            announce(index);
    }
    for (size_t index = 0; replay && index < pieces.size(); ++index)
        announce(index);
    sums[0] = device->finish();
}

LossSums Executor::Plan::run_step(const std::function<void(Lane&)>& work) {
    backend.lanes().run(device ? device_work : work);
    LossSums result;
    for (const LossSums& lane : sums)
        result += lane;
    return result;
}

void Executor::Plan::load_weights(Lane& lane) {
    for (const size_t id : loads_of_lane[static_cast<size_t>(lane.index())])
        operations[id]->load_weights();
    lane.barrier();
}

void Executor::Plan::forward(Lane& lane) {
    for (size_t id = 0; id < operations.size(); ++id) {
        meet_before(lane, id);
        timed(lane, &OperationTime::forward_s, id, [&] { operations[id]->forward(lane); });
        keep_pace(lane, id);
    }
}

LossSums Executor::Plan::run_loss(Lane& lane) {
    meet_before(lane, operations.size());
    return loss->run(lane, mean_over);
}

void Executor::Plan::backward(Lane& lane) {
    for (size_t id = operations.size(); id-- > 1;) {
        backward_of(lane, id);
        if (range_after[id].count > 0)
            finish_range(lane, range_after[id]);
    }
}

void Executor::Plan::backward_of(Lane& lane, size_t id) {
    meet_before(lane, 2 * operations.size() - id);
    timed(lane, &OperationTime::backward_s, id, [&] {
        for (const Buffer* more : to_add[id])
            backend.add(lane, *more, *bindings[id].output_gradients[0], options.batch);
        operations[id]->backward(lane);
    });
    keep_pace(lane, 2 * operations.size() - id);
}

void Executor::Plan::finish_range(Lane& lane, Range range) {
    lane.barrier();
    if (lanes > 1) {
        Range part = lane.part(range.count);
        part.first += range.first;
        backend.sum_slabs(lane_gradients[0], lane_gradients, part);
        lane.barrier();
    }
    if (lane.index() == 0 && done != nullptr && *done)
        (*done)(range);
}

Executor::Executor(const Network& network, Backend& backend, const ParameterArena& parameters,
                   const ParameterArena& statistics, const ExecutorOptions& options)
    : batch_(options.batch) {
    check(options.batch >= 1, "an executor's batch has at least one sample");
    check(parameters.type() == backend.parameter_type(), "the arena has the backend's type");
    ExecutorOptions own = options;
    if (Team::shares(options, backend)) {
        team_ = std::make_unique<Team>(network, backend, options);
        own.batch = Team::first_part(options.batch, backend);
        own.team_batch = options.batch;
    }
    plan_ = std::make_unique<Plan>(network, backend, parameters, statistics, own);
    plan_->build();
}

Executor::~Executor() = default;

LossSums Executor::train(const StepInput& input, int64_t mean_over, const RangeDone& done,
                         const RangeLeaves& leaves) {
    check(plan_->options.training && input.batch == batch_,
          "a training step takes a whole batch of a training executor");
    const int64_t over = mean_over > 0 ? mean_over : input.batch;
    if (!team_)
        return train_own(input, over, done, leaves);
    // Gradients are final once the team has summed them, on their way to the slab.
    return team_->train(input, over, [&](const StepInput& part, int64_t total) {
        return train_own(part, total, done, {});
    });
}

LossSums Executor::train_own(const StepInput& input, int64_t mean_over, const RangeDone& done,
                             const RangeLeaves& leaves) {
    plan_->step = input;
    plan_->mean_over = mean_over;
    plan_->done = &done;
    plan_->leaves = &leaves;
    plan_->reload = true;
    plan_->started = Plan::Clock::now();
    const LossSums sums = plan_->run_step(plan_->train_work);
    const std::chrono::duration<double> taken = Plan::Clock::now() - plan_->started;
    if (!plan_->due.empty() && taken.count() > 1.02 * plan_->options.step_seconds)
        ++plan_->late;
    return sums;
}

LossSums Executor::evaluate(const StepInput& input, bool reload) {
    check(!plan_->options.training && input.batch <= plan_->options.batch,
          "an evaluation takes up to a batch of an inference executor");
    plan_->step = input;
    plan_->mean_over = std::max<int64_t>(input.batch, 1);
    plan_->reload = reload;
    return plan_->run_step(plan_->evaluate_work);
}

std::vector<Range> Executor::ranges() const {
    std::vector<Range> result;
    for (size_t id = plan_->range_after.size(); id-- > 0;)
        if (plan_->range_after[id].count > 0)
            result.push_back(plan_->range_after[id]);
    return result;
}

int64_t Executor::late_steps() const {
    return plan_->late;
}

std::vector<float> Executor::logits() const {
    Buffer buffer = plan_->buffers.outputs.back();
    const std::vector<std::byte> rows = plan_->here(buffer, plan_->step.batch);
    buffer.data = const_cast<std::byte*>(rows.data());
    const int64_t classes = plan_->network.classes();
    std::vector<float> result;
    result.reserve(static_cast<size_t>(plan_->step.batch * classes));
    for (int64_t i = 0; i < plan_->step.batch; ++i)
        for (int64_t c = 0; c < classes; ++c)
            result.push_back(buffer.type == DType::f64
                                 ? static_cast<float>(buffer.sample<double>(i)[c])
                                 : buffer.sample<float>(i)[c]);
    return result;
}

std::optional<std::string> Executor::first_not_finite() const {
    return team_ ? team_->first_not_finite([&] { return own_first_not_finite(); })
                 : own_first_not_finite();
}

std::optional<std::string> Executor::own_first_not_finite() const {
    // Backward has written gradients over most outputs: compute them again.
    plan_->backend.lanes().run(plan_->forward_work);
    if (plan_->device)
        plan_->device->wait();
    const auto& outputs = plan_->buffers.outputs;
    for (size_t id = 0; id < outputs.size(); ++id) {
        const std::vector<std::byte> values = plan_->here(outputs[id], plan_->step.batch);
        Buffer copy = outputs[id];
        copy.data = const_cast<std::byte*>(values.data());
        if (!all_finite(copy, plan_->step.batch))
            return plan_->network.nodes()[id].name;
    }
    if (!plan_->options.training)
        return std::nullopt;
    for (const Node& node : plan_->network.nodes()) {
        for (const int index : node.parameters) {
            const TensorInfo& tensor = plan_->network.parameters()[index];
            const Buffer gradient{
                plan_->parameters.address(slab::gradients) +
                    static_cast<size_t>(tensor.offset) * size_of(plan_->parameters.type()),
                tensor.shape, plan_->parameters.type(), 0,
                tensor.size() * static_cast<int64_t>(size_of(plan_->parameters.type()))};
            if (!all_finite(gradient, 1))
                return node.name;
        }
    }
    return std::nullopt;
}

size_t Executor::bytes_needed(const Network& network, const Backend& backend, int lanes,
                              const ExecutorOptions& options) {
    ExecutorOptions own = options;
    if (Team::shares(options, backend))
        own.batch = Team::first_part(options.batch, backend);
    return plan_buffers(network, backend, own.batch, own.training).bytes +
           lane_gradient_bytes(network, backend, lanes, options.training);
}

size_t Executor::bytes() const {
    return plan_->memory.bytes + plan_->lane_gradients_memory.bytes;
}

void Executor::profile(bool on) {
    plan_->profiling = on;
    for (size_t id = 0; id < plan_->times.size(); ++id) {
        OperationTime& time = plan_->times[id];
        time.forward_s = time.backward_s = 0;
        time.multiply_adds = plan_->network.multiply_adds(plan_->network.nodes()[id]);
    }
}

std::vector<OperationTime> Executor::times() const {
    return plan_->times;
}

}  // namespace trainer
