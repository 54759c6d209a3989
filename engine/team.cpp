#include "engine/team.h"

namespace trainer {

struct Team::Follower {
    Follower(const Network& network, Backend& backend, const ExecutorOptions& options)
        : parameters(network.parameters(), DType::f32,
                     {std::string(slab::weights), std::string(slab::gradients)}, slabs_of(backend)),
          statistics(network.statistics(), DType::f32, {std::string(slab::weights)},
                     slabs_of(backend)),
          executor(network, backend, parameters, statistics, options) {}

    static std::function<Memory(size_t)> slabs_of(Backend& backend) {
        return [&backend](size_t bytes) { return backend.allocate_slabs(bytes, SlabHome::device); };
    }

    ParameterArena parameters, statistics;
    Executor executor;
};

Team::Team(const Network& network, Backend& first, const ExecutorOptions& options)
    : first_(first),
      batch_(options.batch),
      image_elements_(element_count(network.node(0).shape)),
      threads_(static_cast<int>(first.followers().size()) + 1, false),
      sums_(first.followers().size() + 1) {
    const auto members = static_cast<int64_t>(sums_.size());
    for (const auto& backend : first.followers()) {
        ExecutorOptions own = options;
        own.team_batch = batch_;
        own.batch = part_of(batch_, static_cast<int64_t>(followers_.size()) + 1, members).count;
        followers_.push_back(std::make_unique<Follower>(network, *backend, own));
    }
    train_work_ = [this](int member) {
        const StepInput input = input_of(member);
        sums_[static_cast<size_t>(member)] =
            member == 0
                ? (*own_)(input, mean_over_)
                : followers_[static_cast<size_t>(member - 1)]->executor.train(input, mean_over_);
    };
    lane_work_ = [this](Lane& lane) {
        failure_.watch(
            lane.index(), [&] { (*work_)(lane.index()); }, [this] { first_.abandon_team(); });
    };
}

Team::~Team() = default;

bool Team::shares(const ExecutorOptions& options, const Backend& first) {
    const auto members = static_cast<int64_t>(first.followers().size()) + 1;
    return options.training && members > 1 && options.batch >= members;
}

int64_t Team::first_part(int64_t batch, const Backend& first) {
    return part_of(batch, 0, static_cast<int64_t>(first.followers().size()) + 1).count;
}

StepInput Team::input_of(int member) const {
    const Range mine = part(member);
    StepInput input = input_;
    input.images += mine.first * image_elements_;
    // Of another size the next batch is another team's, who go by its number.
    if (input.next_images != nullptr)
        input.next_images += mine.first * image_elements_;
    input.labels += mine.first;
    input.first_sample += mine.first;
    input.batch = mine.count;
    return input;
}

void Team::run(const std::function<void(int member)>& work) {
    work_ = &work;
    try {
        threads_.run(lane_work_);
    } catch (...) {
        failure_.rethrow(static_cast<int>(sums_.size()));
    }
}

LossSums Team::train(const StepInput& input, int64_t mean_over, const Train& own) {
    check(input.kept == nullptr, "the devices of a team keep no images");
    input_ = input;
    mean_over_ = mean_over;
    own_ = &own;
    run(train_work_);
    LossSums all;
    for (const LossSums& sums : sums_)
        all += sums;
    return all;
}

std::optional<std::string> Team::first_not_finite(const Check& own) {
    std::vector<std::optional<std::string>> found(sums_.size());
    run([&](int member) {
        found[static_cast<size_t>(member)] =
            member == 0 ? own()
                        : followers_[static_cast<size_t>(member - 1)]->executor.first_not_finite();
    });
    for (const auto& name : found)
        if (name)
            return name;
    return std::nullopt;
}

}  // namespace trainer
