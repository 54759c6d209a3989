#include "comm/mesh.h"

#include <exception>
#include <map>
#include <optional>
#include <utility>

namespace trainer {

// On the endpoint's thread. The number of a sum stands in place of a step.
class Mesh::Adder final : public ServerHandler {
  public:
    explicit Adder(int members) : members_(static_cast<size_t>(members)) {}

    void attach(ServerEndpoint& endpoint) { endpoint_ = &endpoint; }

    void joined(int) override {}
    void push(int worker, int64_t step, Range range, uint8_t, PooledBytes payload) override {
        if (payload.bytes().size() != static_cast<size_t>(range.count) * sizeof(float))
            throw Error("worker " + std::to_string(worker) + " sent " +
                        std::to_string(payload.bytes().size()) + " bytes of " +
                        std::to_string(range.count) + " elements");
        Sum& sum = sum_of(worker, step, range);
        auto& part = sum.parts[static_cast<size_t>(worker)];
        if (part)
            throw Error("worker " + std::to_string(worker) + " sent its part of a sum twice");
        part = std::move(payload);
        if (++sum.arrived == members_)
            add_up(sum);
        answer(step, sum);
    }
    void pull(const Request& request) override {
        Sum& sum = sum_of(request.worker, request.step, request.range);
        sum.pulls.push_back(request);
        answer(request.step, sum);
    }
    void call(const Request& request, const std::string& name, PooledBytes) override {
        throw Error("worker " + std::to_string(request.worker) + " calls for '" + name +
                    "', which no worker answers: is every process of one build?");
    }
    void note(int, int64_t, const std::string&, PooledBytes) override {}
    void left(int) override {}
    void lost(int, const std::string& who, const std::string& reason) override {
        throw Error(who + " is lost: " + reason +
                    "; start the run again, it goes on from its last checkpoint");
    }

  private:
    struct Sum {
        Range range;
        size_t arrived = 0;
        std::vector<std::optional<PooledBytes>> parts;  // by rank
        std::shared_ptr<PooledBytes> total;             // nullptr: not yet there
        std::vector<Request> pulls;
        size_t answered = 0;
    };

    Sum& sum_of(int worker, int64_t step, Range range) {
        Sum& sum = open_[step];
        if (sum.range.count == 0) {
            sum.range = range;
            sum.parts.resize(members_);
        }
        if (sum.range != range)
            throw Error("worker " + std::to_string(worker) + " sums up elements " +
                        std::to_string(range.first) + " to " + std::to_string(range.end()) +
                        " where others sum up " + std::to_string(sum.range.first) + " to " +
                        std::to_string(sum.range.end()) + "; they are not of one job");
        return sum;
    }

    static void add_up(Sum& sum) {
        sum.total = std::make_shared<PooledBytes>(std::move(*sum.parts.front()));
        float* const total = sum.total->as<float>().data();
        for (size_t rank = 1; rank < sum.parts.size(); ++rank) {
            const float* const part = sum.parts[rank]->as<float>().data();
            for (int64_t i = 0; i < sum.range.count; ++i)
                total[i] += part[i];
        }
        sum.parts.clear();
    }

    void answer(int64_t step, Sum& sum) {
        if (sum.total == nullptr)
            return;
        for (const Request& pull : std::exchange(sum.pulls, {})) {
            endpoint_->answer(pull, sum.total->bytes(), sum.total);
            ++sum.answered;
        }
        if (sum.answered == members_)
            open_.erase(step);
    }

    const size_t members_;
    ServerEndpoint* endpoint_ = nullptr;
    std::map<int64_t, Sum> open_;  // by number
};

Mesh::Mesh(const MeshOptions& options)
    : options_(options),
      cuts_(equal_cuts(options.elements, options.size)),
      adder_(std::make_unique<Adder>(options.size)) {
    endpoint_ = std::make_unique<ServerEndpoint>(options_.transport(),
                                                 ServerOptions{.listen = options_.listen,
                                                               .index = options_.rank,
                                                               .workers = options_.size,
                                                               .cuts = cuts_,
                                                               .element_bytes = sizeof(float),
                                                               .terms = options_.terms,
                                                               .timeout = options_.timeout,
                                                               .secret = options_.secret,
                                                               .rejoin = false,
                                                               .log = {}},
                                                 *adder_);
    adder_->attach(*endpoint_);
}

Mesh::~Mesh() {
    link_.reset();
    endpoint_.reset();
}

const std::string& Mesh::address() const {
    return endpoint_->listening().advertised;
}

void Mesh::connect(const std::vector<std::string>& addresses) {
    check(static_cast<int>(addresses.size()) == options_.size, "a mesh knows all its members");
    LinkOptions options;
    options.servers = addresses;
    options.called = "worker";
    options.wished_rank = options_.rank;
    options.cuts = cuts_;
    options.terms = options_.terms;
    options.timeout = options_.timeout;
    options.secret = options_.secret;
    link_ = std::make_unique<Link>(options_.transport(), options);
    endpoint_->wait_for_workers(options_.timeout);
}

void Mesh::sum(float* slab, Range range) {
    auto* const bytes = reinterpret_cast<std::byte*>(slab);
    const int64_t number = sums_++;
    under_way_.push_back(link_->push(number, range, bytes));
    // An owner answers once it has used what was pushed, so its answer may lie over that.
    under_way_.push_back(link_->pull(number, range, bytes));
}

void Mesh::wait() {
    for (const Ticket& ticket : under_way_)
        link_->wait(ticket);
    under_way_.clear();
}

void Mesh::close() {
    link_->close();
    if (!endpoint_->wait_finished(options_.timeout))
        throw Error("not all workers have said good-bye within " + seconds_of(options_.timeout));
}

void Mesh::abort(const std::string& why) {
    // By both ends, of which either may be the first to be heard.
    endpoint_->fail(std::make_exception_ptr(Error(why)));
    if (link_ != nullptr)
        link_->fail(why);
}

CollectiveCounters Mesh::counters() const {
    const LinkCounters link = link_->counters();
    return {link.push_bytes, link.pull_bytes, link.travel_s, link.wait_s};
}

}  // namespace trainer
