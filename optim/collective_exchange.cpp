#include "optim/collective_exchange.h"

#include <algorithm>

namespace trainer {

std::vector<std::string> CollectiveExchange::slabs(const ExchangeOptions& options,
                                                   const Optimizer& optimizer) {
    std::vector<std::string> result = optimizer.slabs();
    if (options.schedule.options().kind == StepScheduleOptions::Kind::local)
        result.emplace_back(slab::common);
    return result;
}

CollectiveExchange::CollectiveExchange(const ExchangeOptions& options, Collective& collective,
                                       const ParameterArena& arena, const Optimizer& optimizer,
                                       Backend& backend)
    : options_(options),
      collective_(collective),
      arena_(arena),
      optimizer_(optimizer),
      backend_(backend),
      wishes_(backend.allocate_slabs(sizeof(float), SlabHome::host)) {
    check(options_.schedule.options().kind != StepScheduleOptions::Kind::delayed,
          "a worker without servers waits for the others");
    update_work_ = [this](Lane& lane) {
        const Range all{0, arena_.size()};
        optimizer_.update(arena_, optimizer_.part(all, lane.index(), lane.count()),
                          options_.lr(state_.step), backend_.slab_math());
    };
    average_work_ = [this](Lane& lane) {
        const float factor = 1.0F / static_cast<float>(collective_.size());
        const Range mine = lane.part(arena_.size());
        float* const values = arena_.slab<float>(averaged_).data() + mine.first;
        if (SlabMath* const device = backend_.slab_math()) {
            device->scale(values, factor, mine.count);
            device->wait();
            return;
        }
        for (int64_t i = 0; i < mine.count; ++i)
            values[i] *= factor;
    };
}

bool CollectiveExchange::is_local(const StepActions& actions) const {
    return options_.schedule.options().kind == StepScheduleOptions::Kind::local && !actions.warm_up;
}

std::string_view CollectiveExchange::model() const {
    const bool local = state_.step > 0 && is_local(options_.schedule.at(state_.step - 1));
    return local ? slab::common : slab::weights;
}

void CollectiveExchange::sum(Range range, std::string_view slab_name) {
    if (!asked_) {
        *wishes() = wish_;
        collective_.sum(wishes(), {0, 1});
        asked_ = true;
    }
    collective_.sum(arena_.slab<float>(slab_name).data(), range);
}

void CollectiveExchange::range_done(Range range) {
    if (!is_local(options_.schedule.at(state_.step)))
        sum(range, slab::gradients);
}

void CollectiveExchange::average(std::string_view slab_name) {
    collective_.wait();
    asked_ = false;
    agreed_ = *wishes() > 0;
    averaged_ = slab_name;
    if (collective_.size() > 1)
        backend_.lanes().run(average_work_);
}

void CollectiveExchange::update() {
    backend_.lanes().run(update_work_);
    if (SlabMath* const device = backend_.slab_math())
        device->wait();
}

void CollectiveExchange::keep_model() const {
    std::ranges::copy(arena_.slab<float>(slab::weights), arena_.slab<float>(slab::common).begin());
}

// The momentum of S-SGD is not theirs.
void CollectiveExchange::begin_local_steps() const {
    keep_model();
    for (const std::string& name : optimizer_.slabs())
        std::ranges::fill(arena_.slab<float>(name), 0.0F);
}

void CollectiveExchange::finish() {
    const StepActions actions = options_.schedule.at(state_.step);
    agreed_ = false;
    if (!is_local(actions)) {
        average(slab::gradients);
        update();
    } else {
        if (state_.step == options_.schedule.options().warmup_steps)
            begin_local_steps();
        update();
        if (actions.wait_pull) {
            sum({0, arena_.size()}, slab::weights);
            average(slab::weights);
            keep_model();
        }
    }
    ++state_.step;
}

}  // namespace trainer
