// A network in training on the CUDA engine, its slabs at home where one likes: what tests of whole
// steps have in common.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/cuda/cuda_engine.h"
#include "engine/executor.h"
#include "tests/golden/golden.h"

namespace trainer::device_training {

/// By plain SGD on the host, on batches of golden values.
struct Training {
    Training(Network a_network, const CudaOptions& options, SlabHome home, int64_t a_batch,
             int64_t range_elements = 0)
        : network(std::move(a_network)),
          batch(a_batch),
          backend(make_cuda_backend(options)),
          parameters(network.parameters(), DType::f32,
                     {std::string(slab::weights), std::string(slab::gradients)},
                     slabs(*backend, home)),
          statistics(network.statistics(), DType::f32, {std::string(slab::weights)},
                     slabs(*backend, home)),
          executor(network, *backend, parameters, statistics,
                   {.batch = batch, .range_elements = range_elements}) {
        golden::fill_weights<float>(parameters);
        initialize_weights(statistics, 0);
    }

    static std::function<Memory(size_t)> slabs(Backend& backend, SlabHome home) {
        return [&backend, home](size_t bytes) { return backend.allocate_slabs(bytes, home); };
    }

    /// Of square images.
    golden::Batch images(uint64_t index) const {
        return golden::make_batch(index, batch, network.node(0).shape[1], network.classes());
    }

    LossSums step(uint64_t index, const Executor::RangeDone& done = {}) {
        const golden::Batch now = images(index);
        const LossSums sums = executor.train({.images = now.images.data(),
                                              .labels = now.labels.data(),
                                              .batch = batch,
                                              .seed = 3,
                                              .step = static_cast<int64_t>(index)},
                                             0, done);
        const auto w = parameters.slab<float>(slab::weights);
        const auto g = parameters.slab<float>(slab::gradients);
        for (size_t i = 0; i < w.size(); ++i)
            w[i] -= 0.01F * g[i];
        return sums;
    }

    static std::vector<float> values(const ParameterArena& arena, std::string_view name) {
        const auto slab = arena.slab<float>(name);
        return {slab.begin(), slab.end()};
    }

    Network network;
    const int64_t batch;
    std::unique_ptr<Backend> backend;
    ParameterArena parameters, statistics;
    Executor executor;
};

}  // namespace trainer::device_training
