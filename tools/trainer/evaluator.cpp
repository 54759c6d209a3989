#include "tools/trainer/evaluator.h"

#include <cmath>

namespace trainer {

Evaluator::Evaluator(Loader& loader, const Network& network, Backend& backend,
                     const ParameterArena& parameters, const ParameterArena& statistics,
                     const DeviceImages* kept)
    : loader_(loader),
      executor_(network, backend, parameters, statistics,
                {.batch = loader.options().batch,
                 .training = false,
                 .label_smoothing = 0,
                 .range_elements = 0}),
      kept_(kept) {}

std::optional<LossSums> Evaluator::run(const std::function<bool()>& stop) {
    LossSums total;
    loader_.start(0);
    bool first = true;
    for (const Batch* batch = &loader_.next(); batch->global_size > 0; batch = &loader_.next()) {
        if (batch->size == 0)
            continue;  // all of it was damaged
        const LossSums sums = executor_.evaluate(loader_.input_of(*batch, kept_), first);
        first = false;
        if (!std::isfinite(sums.loss))
            throw Error("the loss on the test images is not finite, first in layer '" +
                        executor_.first_not_finite().value_or("loss") + "'");
        total += sums;
        if (stop && stop())
            return std::nullopt;
    }
    if (total.samples == 0)
        throw Error("none of the test images can be read");
    return total;
}

}  // namespace trainer
