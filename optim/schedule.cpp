#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "engine/error.h"

namespace trainer {

LearningRate::LearningRate(const ScheduleOptions& options)
    : options_(options),
      type_(type_named(options.type)),
      warmup_steps_(
          std::round(options.warmup_epochs * static_cast<double>(options.steps_per_epoch))) {
    check(options.steps_per_epoch > 0 && options.total_steps > 0, "a run of no steps");
}

LearningRate::Type LearningRate::type_named(const std::string& name) {
    if (name == "constant")
        return Type::constant;
    if (name == "step")
        return Type::step;
    if (name == "poly")
        return Type::poly;
    if (name == "cosine")
        return Type::cosine;
    if (name == "onecycle")
        return Type::onecycle;
    throw UsageError("optim.schedule.type: '" + name +
                     "' is none of constant, step, poly, cosine, onecycle");
}

double LearningRate::at(int64_t step) const {
    const double t = static_cast<double>(std::clamp<int64_t>(step, 0, options_.total_steps));
    if (type_ != Type::onecycle && t < warmup_steps_)
        return scheduled(warmup_steps_) * (t + 1) / warmup_steps_;
    return scheduled(t);
}

double LearningRate::scheduled(double step) const {
    const double base = options_.lr;
    const double final_lr = options_.final_lr;
    const double progress = std::min(1.0, step / static_cast<double>(options_.total_steps));
    switch (type_) {
        case Type::constant:
            return base;
        case Type::step: {
            double lr = base;
            for (double milestone : options_.milestones)
                if (step >= milestone * static_cast<double>(options_.steps_per_epoch))
                    lr *= options_.gamma;
            return lr;
        }
        case Type::poly:
            return final_lr + (base - final_lr) * std::pow(1 - progress, options_.power);
        case Type::cosine:
            return final_lr + (base - final_lr) * 0.5 * (1 + std::cos(std::numbers::pi * progress));
        case Type::onecycle:
            return onecycle(step);
    }
    return base;
}

double LearningRate::onecycle(double step) const {
    const double total = static_cast<double>(options_.total_steps);
    const double low = std::max(options_.lr / 10, options_.final_lr);
    const double turn = 0.9 * total;
    const double peak = warmup_steps_ > 0 ? std::min(warmup_steps_, turn) : 0.45 * total;
    if (step < peak)
        return low + (options_.lr - low) * step / peak;
    if (step < turn)
        return options_.lr + (low - options_.lr) * (step - peak) / (turn - peak);
    return low + (options_.final_lr - low) * (step - turn) / (total - turn);
}

}  // namespace trainer
