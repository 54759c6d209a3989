#include "tools/log/series.h"

#include <cmath>

namespace trainer::logs {
namespace {

enum class Rule { mean, rate, sum, last };

constexpr Rule rule_of(Field field) {
    switch (field) {
        case Field::loss:
        case Field::top1:
        case Field::top5:
        case Field::staleness:
            return Rule::mean;
        case Field::images_per_s:
            return Rule::rate;
        case Field::lr:
            return Rule::last;
        default:
            return Rule::sum;
    }
}

double merged(Rule rule, double a, double weight_a, double b, double weight_b) {
    if (std::isnan(a) || std::isnan(b))
        return std::isnan(a) ? b : a;
    switch (rule) {
        case Rule::mean:
            return (a * weight_a + b * weight_b) / (weight_a + weight_b);
        case Rule::rate:  // images over seconds
            return (weight_a + weight_b) / (weight_a / a + weight_b / b);
        case Rule::sum:
            return a + b;
        case Rule::last:
            return b;
    }
    return b;
}

/// Merges neighbours, `group` into one.
std::vector<Point> grouped(const std::vector<Point>& points, size_t group) {
    std::vector<Point> result;
    result.reserve(points.size() / group + 1);
    for (size_t i = 0; i < points.size(); ++i)
        if (i % group == 0)
            result.push_back(points[i]);
        else
            merge(result.back(), points[i]);
    return result;
}

}  // namespace

void merge(Point& point, const Point& later) {
    const bool weighed = point.samples > 0 && later.samples > 0;
    const double before = weighed ? point.samples : static_cast<double>(point.records);
    const double after = weighed ? later.samples : static_cast<double>(later.records);
    for (size_t i = 0; i < field_count; ++i)
        point.values[i] =
            merged(rule_of(static_cast<Field>(i)), point.values[i], before, later.values[i], after);
    point.step = later.step;
    point.epoch = later.epoch;
    point.elapsed = later.elapsed;
    point.samples += later.samples;
    point.records += later.records;
    if (std::isnan(point.best_top1) || later.best_top1 > point.best_top1) {
        point.best_top1 = later.best_top1;
        point.best_step = later.best_step;
        point.best_epoch = later.best_epoch;
    }
}

void Series::append(const Point& point) {
    if (!points_.empty() && points_.back().records < stride_) {
        merge(points_.back(), point);
        return;
    }
    if (points_.size() == capacity_) {
        points_ = grouped(points_, 2);
        points_.reserve(capacity_);
        stride_ *= 2;
    }
    points_.push_back(point);
}

void Series::keep_until(int64_t step) {
    while (!points_.empty() && points_.back().step > step)
        points_.pop_back();
}

Point Series::total() const {
    return grouped(points_, points_.size()).front();
}

std::vector<Point> Series::resampled(size_t count) const {
    const size_t group = (points_.size() + count - 1) / count;
    return group <= 1 ? points_ : grouped(points_, group);
}

}  // namespace trainer::logs
