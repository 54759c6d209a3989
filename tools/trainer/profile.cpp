#include "tools/trainer/profile.h"

#include <algorithm>
#include <map>

#include "engine/error.h"
#include "tools/trainer/format.h"

namespace trainer {

namespace {

struct Sum {
    double forward_s = 0, backward_s = 0, multiply_adds = 0;

    void add(const OperationTime& time) {
        forward_s += time.forward_s;
        backward_s += time.backward_s;
        multiply_adds += static_cast<double>(time.multiply_adds);
    }
    double seconds() const { return forward_s + backward_s; }
};

}  // namespace

std::vector<std::string> profile_lines(const std::vector<OperationTime>& times, int64_t steps,
                                       int64_t images) {
    const double count = static_cast<double>(std::max<int64_t>(steps, 1));
    std::map<std::string, Sum> sums;
    Sum all;
    for (const OperationTime& time : times) {
        sums[time.kind].add(time);
        all.add(time);
    }
    std::vector<std::pair<std::string, Sum>> kinds(sums.begin(), sums.end());
    std::ranges::stable_sort(kinds, [](const auto& left, const auto& right) {
        return left.second.seconds() > right.second.seconds();
    });
    std::vector<std::string> lines{
        "profile      ms a step forward, backward; share; GFLOP/s of the first thread; kind"};
    for (const auto& [kind, sum] : kinds) {
        const double flop = 6 * sum.multiply_adds * static_cast<double>(images) * count;
        const std::string rate = flop > 0 && sum.seconds() > 0
                                     ? format("%8.1f", 1e-9 * flop / sum.seconds())
                                     : std::string(8, ' ');
        lines.push_back(format("%9.3f %9.3f  %4.1f %%  %s  %s", 1e3 * sum.forward_s / count,
                               1e3 * sum.backward_s / count,
                               100 * sum.seconds() / std::max(all.seconds(), 1e-12), rate.c_str(),
                               kind.c_str()));
    }
    lines.emplace_back("profile      ms a step forward, backward; kind; implementation; name");
    for (const OperationTime& time : times)
        lines.push_back(format("%9.3f %9.3f  %-13s %-24s %s", 1e3 * time.forward_s / count,
                               1e3 * time.backward_s / count, time.kind.c_str(),
                               time.implementation.c_str(), time.name.c_str()));
    return lines;
}

}  // namespace trainer
