#include "optim/clip.h"

#include <algorithm>
#include <cmath>

#include "optim/update.h"

namespace trainer {

GradientClipper::GradientClipper(double max_norm, int64_t size)
    : max_norm_(max_norm),
      size_(size),
      sums_(static_cast<size_t>(active() ? (size + chunk_ - 1) / chunk_ : 0)) {}

double GradientClipper::run(Lane& lane, const ParameterArena& arena, SlabMath* device) {
    if (device != nullptr && arena.type() == DType::f32)
        return run_on(*device, arena);
    return arena.type() == DType::f64 ? run_as<double>(lane, arena) : run_as<float>(lane, arena);
}

double GradientClipper::run_on(SlabMath& device, const ParameterArena& arena) const {
    float* const gradients = arena.slab<float>(slab::gradients).data();
    const double norm = std::sqrt(device.sum_of_squares(gradients, size_));
    if (scale_of(norm) < 1)
        device.scale(gradients, static_cast<float>(scale_of(norm)), size_);
    device.wait();
    return norm;
}

template <typename T>
double GradientClipper::run_as(Lane& lane, const ParameterArena& arena) {
    T* gradients = arena.slab<T>(slab::gradients).data();
    const Range chunks = lane.part(static_cast<int64_t>(sums_.size()));
    for (int64_t chunk = chunks.first; chunk < chunks.end(); ++chunk)
        sums_[static_cast<size_t>(chunk)] =
            sum_of_squares(gradients + chunk * chunk_, std::min(chunk_, size_ - chunk * chunk_));
    lane.barrier();
    double total = 0;
    for (double sum : sums_)
        total += sum;
    const double norm = std::sqrt(total);
    const double scale = scale_of(norm);
    if (scale < 1) {
        const T factor = static_cast<T>(scale);
        const Range mine = lane.part(size_);
        for (int64_t i = mine.first; i < mine.end(); ++i)
            gradients[i] *= factor;
    }
    lane.barrier();
    return norm;
}

}  // namespace trainer
