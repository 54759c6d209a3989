// Series: a curve of any length in bounded memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace trainer::logs {

/// The numbers that records carry.
enum class Field : size_t {
    loss,
    top1,
    top5,
    lr,
    images_per_s,
    data_wait,
    push_bytes,
    pull_bytes,
    push_s,
    pull_s,
    wait_s,
    staleness,
    compute_s,
    exposed_s,
    hidden_s,
};
inline constexpr size_t field_count = static_cast<size_t>(Field::hidden_s) + 1;

/// Not in the record.
inline constexpr double absent = std::numeric_limits<double>::quiet_NaN();

/// One record, or several that follow each other, summed up.
struct Point {
    Point() { values.fill(absent); }

    int64_t first_step = 0, step = 0;  ///< of the first and the last record
    int64_t epoch = 0;                 ///< of the last one, from 1
    double elapsed = 0;                ///< seconds of the run at the last one
    double samples = 0;                ///< images that loss and accuracy are over; 0: unknown
    int64_t records = 1;
    std::array<double, field_count> values;

    // The record of the best top1 among them.
    double best_top1 = absent;
    int64_t best_step = 0, best_epoch = 0;

    double operator[](Field field) const { return values[static_cast<size_t>(field)]; }
    double& operator[](Field field) { return values[static_cast<size_t>(field)]; }
};

/// `later` added to `point`: means weigh by samples, seconds and bytes add up, the rate of learning
/// is the last one.
void merge(Point& point, const Point& later);

/// At most `capacity` points: where there are more records, each point stands for 2, 4, 8, ...
class Series {
  public:
    Series() = default;
    explicit Series(size_t capacity) : capacity_(capacity) {}

    void append(const Point& point);
    /// Forgets what came after `step`, to the exactness of a point.
    void keep_until(int64_t step);

    const std::vector<Point>& points() const { return points_; }
    bool empty() const { return points_.empty(); }

    /// The whole series as one point; the series is not empty.
    Point total() const;

    /// The same curve in at most `count` points.
    std::vector<Point> resampled(size_t count) const;

  private:
    size_t capacity_ = 4096;
    int64_t stride_ = 1;  // records a point
    std::vector<Point> points_;
};

}  // namespace trainer::logs
