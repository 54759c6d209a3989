#include "tools/trainer/data_hint.h"

#include <algorithm>
#include <cstdio>

namespace trainer {

std::string data_hint(double wait, const SourceTimes& times, int threads, int processors) {
    if (!(wait >= 0.1))
        return "";
    char start[160];
    std::snprintf(start, sizeof start, "training waits for data %.0f %% of its time; ", 100 * wait);
    if (times.samples == 0)
        return start + std::string("more data.workers (") + std::to_string(threads) +
               " now) would make it ready sooner";
    const double images = static_cast<double>(times.samples);
    char facts[160];
    std::snprintf(facts, sizeof facts, " (an image takes %.2f ms to read, %.2f ms to decode): ",
                  1e3 * times.read_s / images, 1e3 * times.decode_s / images);
    if (times.read_s > times.decode_s)
        return start + std::string("the disk is the bottleneck") + facts +
               "pack the images with tools/convert, or put them on a faster one";
    const std::string bottleneck = std::string("decoding is the bottleneck") + facts;
    if (threads < processors)
        return start + bottleneck + "set data.workers to " + std::to_string(processors) + " (now " +
               std::to_string(threads) + ")";
    return start + bottleneck + "all " + std::to_string(processors) +
           " processors decode already; smaller images take less of them, which tools/convert "
           "makes "
           "with --resize";
}

std::string DataHint::look(double step_s, double data_wait_s, const SourceTimes& times, int threads,
                           int processors) {
    constexpr double too_short = 5;  // seconds: the first batches are always waited for
    const double seconds = step_s - step_s_;
    if (seconds < too_short)
        return "";
    const SourceTimes since{times.read_s - times_.read_s, times.decode_s - times_.decode_s,
                            times.samples - times_.samples};
    const double wait = (data_wait_s - data_wait_s_) / seconds;
    step_s_ = step_s;
    data_wait_s_ = data_wait_s;
    times_ = times;
    return data_hint(wait, since, threads, processors);
}

}  // namespace trainer
