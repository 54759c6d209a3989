// Whole clusters of a few weights: N workers and S servers as threads, over each transport, against
// straight-line code written from the equations alone.
#include <gtest/gtest.h>

#include <cmath>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "optim/exchange.h"
#include "optim/server.h"
#include "optim/variant.h"

namespace trainer {
namespace {

constexpr int64_t sizes[] = {3, 4};  // two tensors; the second does not decay
constexpr int64_t size = 7;
constexpr double momentum = 0.9, decay = 0.05;
double rate(int64_t t) {
    return 0.1 / (1 + 0.05 * static_cast<double>(t));
}

TensorTable table() {
    TensorTable result;
    result.add("a.weight", {sizes[0]}, true, {});
    result.add("a.bias", {sizes[1]}, false, {});
    return result;
}

using Vector = std::vector<double>;

double first_weight(int64_t j) {
    return 0.3 * static_cast<double>(j) - 0.8;
}

// The gradient of a quadratic that differs by worker and step.
double gradient(int worker, int64_t t, int64_t j, double w) {
    const double i = worker, s = static_cast<double>(t), k = static_cast<double>(j);
    return (0.4 + 0.05 * k + 0.1 * i) * w + 0.3 * std::sin(1.7 * s + i + 0.5 * k);
}

// ---------------------------------------------------------------------------------------------
// The equations, in double, one after the other.

struct Simulation {
    VariantOptions options;
    std::string optimizer = "sgd";
    std::vector<int> script;  // on-arrival: whose turn it is
    Vector G = Vector(size), v = Vector(size);
    std::vector<Vector> w, e;
    std::vector<std::vector<Vector>> trajectory;  // [step][worker]: w_i(step + 1)

    static double decay_of(int64_t /*j*/) { return decay; }

    void server_update(const Vector& g, double lr) {
        for (size_t j = 0; j < size; ++j) {
            v[j] = momentum * v[j] + g[j] + decay * G[j];
            G[j] -= lr * v[j];
        }
    }

    // What the servers make of worker i's gradient.
    Vector sent(int i, const Vector& g, bool exact) {
        const bool two_bit = options.codec == "2bit" ||
                             (options.codec == "auto" &&
                              (options.variant == "bitsgd" || options.variant == "cdsgd"));
        auto& residual = e[static_cast<size_t>(i)];
        if (!two_bit)
            return g;
        if (exact) {
            Vector q = g;
            if (options.flush_on_exact)
                for (size_t j = 0; j < size; ++j) {
                    q[j] += residual[j];
                    residual[j] = 0;
                }
            return q;
        }
        Vector q(size);
        for (size_t j = 0; j < size; ++j)
            residual[j] += g[j];
        size_t at = 0;
        for (const int64_t count : sizes) {
            double tau = options.threshold.value_or(0);
            if (!options.threshold) {
                for (size_t j = at; j < at + static_cast<size_t>(count); ++j)
                    tau += std::fabs(residual[j]);
                tau *= 2.0 / static_cast<double>(count);
            }
            for (size_t j = at; j < at + static_cast<size_t>(count); ++j) {
                q[j] = residual[j] >= tau ? tau : residual[j] <= -tau ? -tau : 0;
                residual[j] -= q[j];
            }
            at += static_cast<size_t>(count);
        }
        return q;
    }

    Vector gradients(int i, int64_t t) const {
        Vector g(size);
        for (size_t j = 0; j < size; ++j)
            g[j] = gradient(i, t, static_cast<int64_t>(j), w[static_cast<size_t>(i)][j]);
        return g;
    }

    Vector mean(const std::vector<Vector>& all) const {
        Vector result(size);
        for (size_t j = 0; j < size; ++j) {
            for (const Vector& one : all)
                result[j] += one[j];
            result[j] /= static_cast<double>(all.size());
        }
        return result;
    }

    void run(int64_t steps) {
        for (size_t j = 0; j < size; ++j)
            G[j] = first_weight(static_cast<int64_t>(j));
        w.assign(static_cast<size_t>(options.workers), G);
        e.assign(static_cast<size_t>(options.workers), Vector(size));
        if (options.variant == "asgd" || options.variant == "ssp" ||
            options.variant.starts_with("dcasgd"))
            on_arrival();
        else
            together(steps);
    }

    void together(int64_t steps) {
        const int64_t T_w = options.warmup_steps;
        const bool delayed =
            options.variant == "odsgd" || options.variant == "ssdsgd" || options.variant == "cdsgd";
        const bool local = options.variant == "localsgd" || options.variant == "postlocal";
        const int64_t k = options.variant == "ssdsgd" ? options.delay_steps : 1;
        const int64_t c = options.exact_every.value_or(options.variant == "cdsgd" ? 5 : 0);
        const std::string rule = options.local.rule != "auto"  ? options.local.rule
                                 : options.variant == "ssdsgd" ? "glu"
                                                               : "sgd";
        const auto N = static_cast<size_t>(options.workers);
        std::vector<Vector> u(N, Vector(size));
        std::vector<Vector> models{G};  // G(0), G(1), ...
        Vector ghat(size);
        int64_t pulled = T_w;  // the step of P_new
        for (int64_t t = 0; t < steps; ++t) {
            const int64_t n = t - T_w;
            std::vector<Vector> g(N), q(N);
            for (size_t i = 0; i < N; ++i)
                g[i] = gradients(static_cast<int>(i), t);
            if (n >= 0 && local) {
                for (size_t i = 0; i < N; ++i)
                    for (size_t j = 0; j < size; ++j) {
                        u[i][j] = momentum * u[i][j] + g[i][j] + decay * w[i][j];
                        w[i][j] -= rate(t) * u[i][j];
                    }
                if (n % options.local_steps == options.local_steps - 1) {
                    G = mean(w);
                    w.assign(N, G);
                }
                trajectory.push_back(w);
                continue;
            }
            for (size_t i = 0; i < N; ++i)
                q[i] = n < 0 ? g[i] : sent(static_cast<int>(i), g[i], c > 0 && n % c == 0);
            server_update(mean(q), rate(t));
            models.push_back(G);
            if (n < 0 || !delayed) {
                w.assign(N, G);
                trajectory.push_back(w);
                continue;
            }
            const bool take = n > 0 && n % k == 0;
            const Vector& base_pulled = models[static_cast<size_t>(t)];  // G(t)
            if (take) {
                double sum = 0;
                for (int64_t s = pulled; s < t; ++s)
                    sum += rate(s);
                for (size_t j = 0; j < size; ++j)
                    ghat[j] = sum > 0
                                  ? (models[static_cast<size_t>(pulled)][j] - base_pulled[j]) / sum
                                  : 0;
                pulled = t;
            }
            const double eta = options.local_lr.value_or(rate(t));
            for (size_t i = 0; i < N; ++i) {
                const Vector base = take ? base_pulled : w[i];
                for (size_t j = 0; j < size; ++j) {
                    const double b = base[j];
                    double d = g[i][j] + decay * b;
                    if (rule == "dc")
                        d += options.local.lambda_dc * g[i][j] * g[i][j] * (b - w[i][j]);
                    if (rule == "glu")
                        d = options.local.alpha * g[i][j] + options.local.beta * ghat[j] +
                            decay * b;
                    if (rule == "momentum") {
                        if (take && options.local.seeded)
                            u[i][j] = ghat[j];
                        u[i][j] = momentum * u[i][j] + g[i][j] + decay * b;
                        d = u[i][j];
                    }
                    w[i][j] = b - eta * d;
                }
            }
            trajectory.push_back(w);
        }
    }

    void on_arrival() {
        const auto N = static_cast<size_t>(options.workers);
        std::vector<int64_t> done(N, 0);
        std::vector<Vector> backup(N, G);
        Vector ms(size);
        for (size_t applied = 0; applied < script.size(); ++applied) {
            const auto i = static_cast<size_t>(script[applied]);
            Vector g = gradients(script[applied], done[i]);
            for (size_t j = 0; j < size; ++j) {
                double lambda = options.variant == "dcasgd" ? options.dc_lambda : 0;
                if (options.variant == "dcasgd_a") {
                    ms[j] = options.dc_m * ms[j] + (1 - options.dc_m) * g[j] * g[j];
                    lambda = options.dc_lambda0 / std::sqrt(ms[j] + 1e-7);
                }
                g[j] += lambda * g[j] * g[j] * (G[j] - backup[i][j]);
            }
            server_update(g, rate(static_cast<int64_t>(applied / N)));
            backup[i] = w[i] = G;
            ++done[i];
            trajectory.push_back(w);
        }
    }
};

// ---------------------------------------------------------------------------------------------
// The program's own cluster.

struct Turns {
    std::vector<int> script;
    size_t next = 0;
    std::mutex mutex;
    std::condition_variable changed;

    void wait_for(int worker) {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return next < script.size() && script[next] == worker; });
    }
    void pass_on() {
        const std::lock_guard lock(mutex);
        ++next;
        changed.notify_all();
    }
};

struct Outcome {
    std::vector<std::vector<std::vector<float>>> trajectory;  // [worker][step]: w_i(step + 1)
    std::vector<float> model;                                 // G at the end
    std::vector<std::vector<float>> residuals;
};

struct ClusterOptions {
    VariantOptions variant;
    int servers = 1;
    bool sockets = false;
    int64_t steps = 12;
    std::vector<int> script{};  // order of whole steps, for on-arrival variants
    bool whole_range = false;   // one range a step instead of one a tensor
};

class Cluster {
  public:
    explicit Cluster(const ClusterOptions& options)
        : options_(options),
          optimizer_(make_optimizer({.momentum = momentum, .weight_decay = decay}, table())) {
        turns_.script = options.script;
    }

    Outcome run() {
        variant_ = make_variant(options_.variant);
        variant_.shard.lr = variant_.exchange.lr = rate;
        if (variant_.exchange.local) {
            variant_.exchange.local->weight_decay = decay;
            variant_.exchange.local->momentum = momentum;
        }
        const auto network = make_inproc_network();
        const auto transport = [&]() -> std::unique_ptr<Transport> {
            return options_.sockets ? make_socket_transport() : make_inproc_transport(network);
        };
        const Cuts cuts = equal_cuts(size, options_.servers);
        std::vector<std::unique_ptr<ParameterArena>> arenas;
        std::vector<std::unique_ptr<Server>> servers;
        std::vector<std::unique_ptr<ServerEndpoint>> endpoints;
        std::vector<std::string> addresses;
        for (int s = 0; s < options_.servers; ++s) {
            std::vector<std::string> slabs{"weights", "gradients", "momentum"};
            for (const std::string& name : Shard::slabs(variant_.shard))
                slabs.push_back(name);
            arenas.push_back(std::make_unique<ParameterArena>(table(), DType::f32, slabs));
            set_first_weights(*arenas.back());
            servers.push_back(
                std::make_unique<Server>(variant_.shard, *optimizer_, *arenas.back(), nullptr));
            ServerOptions server_options;
            server_options.listen = options_.sockets ? "127.0.0.1:0" : "server:0";
            server_options.index = s;
            server_options.workers = options_.variant.workers;
            server_options.cuts = cuts;
            endpoints.push_back(
                std::make_unique<ServerEndpoint>(transport(), server_options, *servers.back()));
            servers.back()->attach(*endpoints.back());
            servers.back()->begin(0);
            addresses.push_back(endpoints.back()->listening().advertised);
        }
        Outcome outcome;
        outcome.trajectory.resize(static_cast<size_t>(options_.variant.workers));
        outcome.residuals.resize(outcome.trajectory.size());
        outcome.model.resize(size);
        std::vector<std::thread> threads;
        for (int i = 0; i < options_.variant.workers; ++i)
            threads.emplace_back([&, i] {
                LinkOptions link_options;
                link_options.servers = addresses;
                link_options.wished_rank = i;
                link_options.cuts = cuts;
                try {
                    Link link(transport(), link_options);
                    work(link, i, outcome);
                } catch (const std::exception& error) {
                    ADD_FAILURE() << "worker " << i << ": " << error.what();
                }
            });
        for (std::thread& thread : threads)
            thread.join();
        for (const auto& endpoint : endpoints) {
            EXPECT_TRUE(endpoint->wait_finished(std::chrono::seconds(10)));
        }
        return outcome;
    }

  private:
    static void set_first_weights(const ParameterArena& arena) {
        const auto weights = arena.slab<float>(slab::weights);
        for (size_t j = 0; j < size; ++j)
            weights[j] = static_cast<float>(first_weight(static_cast<int64_t>(j)));
    }

    void work(Link& link, int i, Outcome& outcome) {
        std::vector<std::string> slabs{"weights", "gradients"};
        for (const std::string& name : Exchange::slabs(variant_.exchange, table(), *optimizer_))
            slabs.push_back(name);
        const ParameterArena arena(table(), DType::f32, slabs);
        set_first_weights(arena);
        LaneTeam lanes(1);
        Exchange exchange(variant_.exchange, link, arena, *optimizer_, lanes);
        exchange.start({});
        const auto weights = arena.slab<float>(slab::weights);
        const auto gradients = arena.slab<float>(slab::gradients);
        const bool scripted = !turns_.script.empty();
        const int64_t steps = scripted ? std::ranges::count(turns_.script, i) : options_.steps;
        for (int64_t t = 0; t < steps; ++t) {
            if (scripted)
                turns_.wait_for(i);
            for (size_t j = 0; j < size; ++j)
                gradients[j] =
                    static_cast<float>(gradient(i, t, static_cast<int64_t>(j), weights[j]));
            if (options_.whole_range) {
                exchange.range_done({0, size});
            } else {
                exchange.range_done({sizes[0], sizes[1]});
                exchange.range_done({0, sizes[0]});
            }
            exchange.finish();
            outcome.trajectory[static_cast<size_t>(i)].emplace_back(weights.begin(), weights.end());
            if (scripted)
                turns_.pass_on();
        }
        if (arena.has_slab(slab::residual)) {
            const auto residual = arena.slab<float>(slab::residual);
            outcome.residuals[static_cast<size_t>(i)].assign(residual.begin(), residual.end());
        }
        if (i == 0 && !scripted)
            fetch_model(link, steps, outcome.model);
        link.close();
    }

    static void fetch_model(Link& link, int64_t step, std::vector<float>& model) {
        size_t at = 0;
        for (int s = 0; s < link.servers(); ++s) {
            const auto body = link.call(s, step, std::string(call::weights), {});
            const auto values = body.as<float>();
            std::copy(values.begin(), values.end(), model.begin() + static_cast<long>(at));
            at += values.size();
        }
        EXPECT_EQ(at, static_cast<size_t>(size));
    }

    ClusterOptions options_;
    Variant variant_;
    std::unique_ptr<Optimizer> optimizer_;
    Turns turns_;
};

void expect_follows(const ClusterOptions& options) {
    Simulation simulation{
        .options = options.variant, .script = options.script, .w = {}, .e = {}, .trajectory = {}};
    simulation.run(options.steps);
    const Outcome outcome = Cluster(options).run();
    std::vector<size_t> done(static_cast<size_t>(options.variant.workers), 0);
    for (size_t position = 0; position < simulation.trajectory.size(); ++position)
        for (int i = 0; i < options.variant.workers; ++i) {
            if (!options.script.empty() && options.script[position] != i)
                continue;
            const auto worker = static_cast<size_t>(i);
            const auto& actual = outcome.trajectory[worker].at(done[worker]++);
            for (size_t j = 0; j < size; ++j)
                ASSERT_NEAR(static_cast<double>(actual[j]),
                            simulation.trajectory[position][worker][j], 2e-6)
                    << "worker " << i << ", step " << position << ", weight " << j;
        }
    if (!options.script.empty())
        return;
    for (size_t j = 0; j < size; ++j) {
        EXPECT_NEAR(static_cast<double>(outcome.model[j]), simulation.G[j], 2e-6) << "weight " << j;
    }
}

// Every synchronous variant, N = 2, a dozen steps or more.
std::vector<VariantOptions> synchronous_variants() {
    std::vector<VariantOptions> all;
    const auto add = [&](const std::string& name, auto change) {
        VariantOptions options{.variant = name, .workers = 2};
        change(options);
        all.push_back(options);
    };
    const auto nothing = [](VariantOptions&) {};
    add("ssgd", nothing);
    add("odsgd", nothing);
    add("odsgd", [](auto& o) { o.warmup_steps = 3; });
    add("odsgd", [](auto& o) {
        o.local.rule = "dc";
        o.local.lambda_dc = 0.3;
    });
    add("odsgd", [](auto& o) { o.local_lr = 0.03; });
    for (const std::string rule : {"glu", "sgd", "dc", "momentum"})
        for (const int64_t k : {1, 2, 5})
            add("ssdsgd", [&](auto& o) {
                o.local.rule = rule;
                o.delay_steps = k;
                o.warmup_steps = 2;
            });
    add("ssdsgd", [](auto& o) {
        o.delay_steps = 3;
        o.local.rule = "momentum";
        o.local.seeded = true;
    });
    add("ssdsgd", [](auto& o) {
        o.delay_steps = 3;
        o.codec = "2bit";
        o.threshold = 0.2;
        o.exact_every = 4;
    });
    add("bitsgd", [](auto& o) {
        o.threshold = 0.15;
        o.warmup_steps = 1;
    });
    add("bitsgd", [](auto& o) { o.warmup_steps = 1; });  // auto threshold
    add("cdsgd", [](auto& o) { o.threshold = 0.15; });
    add("cdsgd", [](auto& o) {
        o.threshold = 0.15;
        o.exact_every = 3;
        o.warmup_steps = 2;
    });
    add("cdsgd", [](auto& o) {
        o.threshold = 0.15;
        o.exact_every = 3;
        o.flush_on_exact = true;
    });
    add("bitsgd", [](auto& o) {
        o.threshold = 0.15;
        o.exact_every = 3;
        o.flush_on_exact = true;
    });
    add("localsgd", [](auto& o) { o.local_steps = 4; });
    add("postlocal", [](auto& o) {
        o.local_steps = 3;
        o.warmup_steps = 3;
    });
    return all;
}

std::string describe(const VariantOptions& o) {
    return o.variant + " rule " + o.local.rule + " k " + std::to_string(o.delay_steps) + " T_w " +
           std::to_string(o.warmup_steps) + " codec " + o.codec + " H " +
           std::to_string(o.local_steps);
}

TEST(Cluster, SynchronousVariantsFollowTheirEquations) {
    for (const VariantOptions& variant : synchronous_variants()) {
        SCOPED_TRACE(describe(variant));
        expect_follows({.variant = variant, .steps = 16});
    }
}

TEST(Cluster, ThreeWorkersAndTwoServersOverSockets) {
    for (VariantOptions variant : synchronous_variants()) {
        variant.workers = 3;
        SCOPED_TRACE(describe(variant));
        expect_follows({.variant = variant, .servers = 2, .sockets = true});
    }
}

const std::vector<int> script{0, 1, 1, 0, 1, 1, 1, 0, 0, 0, 1, 0};

TEST(Cluster, OnArrivalVariantsFollowTheirEquations) {
    for (const std::string name : {"asgd", "ssp", "dcasgd", "dcasgd_a"}) {
        SCOPED_TRACE(name);
        VariantOptions variant{.variant = name, .workers = 2};
        variant.dc_lambda = 0.4;
        variant.dc_lambda0 = 0.5;
        expect_follows({.variant = variant, .script = script});
        expect_follows({.variant = variant, .servers = 3, .sockets = true, .script = script});
    }
}

// The number of servers and the transport change nothing, bit for bit.
TEST(Cluster, ServersAndTransportsGiveTheSameBits) {
    for (VariantOptions variant : synchronous_variants()) {
        variant.workers = 3;
        SCOPED_TRACE(describe(variant));
        const Outcome one = Cluster({.variant = variant, .servers = 1}).run();
        for (const int servers : {1, 2, 3}) {
            const bool sockets = servers == 2;
            const Outcome other =
                Cluster({.variant = variant, .servers = servers, .sockets = sockets}).run();
            EXPECT_EQ(one.trajectory, other.trajectory) << servers;
            EXPECT_EQ(one.model, other.model) << servers;
            EXPECT_EQ(one.residuals, other.residuals) << servers;
        }
    }
}

// Plain SGD by the optimizer itself, in float: what every N = 1 identity is held against.
std::vector<std::vector<float>> plain_sgd(int64_t steps) {
    const auto optimizer = make_optimizer({.momentum = momentum, .weight_decay = decay}, table());
    const ParameterArena arena(table(), DType::f32, {"weights", "gradients", "momentum"});
    const auto weights = arena.slab<float>(slab::weights),
               gradients = arena.slab<float>(slab::gradients);
    for (size_t j = 0; j < size; ++j)
        weights[j] = static_cast<float>(first_weight(static_cast<int64_t>(j)));
    std::vector<std::vector<float>> trajectory;
    for (int64_t t = 0; t < steps; ++t) {
        for (size_t j = 0; j < size; ++j)
            gradients[j] = static_cast<float>(gradient(0, t, static_cast<int64_t>(j), weights[j]));
        optimizer->update(arena, {0, size}, rate(t));
        trajectory.emplace_back(weights.begin(), weights.end());
    }
    return trajectory;
}

TEST(Identities, OneWorkerIsPlainSgdBitwise) {
    const auto expected = plain_sgd(12);
    for (const std::string name : {"ssgd", "asgd", "ssp", "dcasgd", "dcasgd_a"})
        EXPECT_EQ(Cluster({.variant = {.variant = name}}).run().trajectory[0], expected) << name;
    EXPECT_EQ(Cluster({.variant = {.variant = "localsgd", .local_steps = 1}}).run().trajectory[0],
              expected);
    EXPECT_EQ(Cluster({.variant = {.variant = "ssdsgd", .warmup_steps = 12}}).run().trajectory[0],
              expected);
    EXPECT_EQ(Cluster({.variant = {.variant = "bitsgd", .codec = "raw"}}).run().trajectory[0],
              expected);
}

TEST(Identities, SsdsgdOfOneStepIsOdsgd) {
    VariantOptions ssd{.variant = "ssdsgd", .workers = 2, .warmup_steps = 2, .delay_steps = 1};
    ssd.local.rule = "sgd";
    const VariantOptions od{.variant = "odsgd", .workers = 2, .warmup_steps = 2};
    EXPECT_EQ(Cluster({.variant = ssd}).run().trajectory,
              Cluster({.variant = od}).run().trajectory);
}

TEST(Identities, CdsgdWithTheRawCodecIsOdsgd) {
    const VariantOptions cd{.variant = "cdsgd", .workers = 2, .codec = "raw"};
    const VariantOptions od{.variant = "odsgd", .workers = 2};
    EXPECT_EQ(Cluster({.variant = cd}).run().trajectory, Cluster({.variant = od}).run().trajectory);
}

TEST(Identities, ExactAtEveryStepIsRaw) {
    VariantOptions coded{.variant = "ssdsgd", .workers = 2, .delay_steps = 3};
    coded.codec = "2bit";
    coded.exact_every = 1;
    const VariantOptions raw{.variant = "ssdsgd", .workers = 2, .delay_steps = 3};
    EXPECT_EQ(Cluster({.variant = coded}).run().trajectory,
              Cluster({.variant = raw}).run().trajectory);
}

TEST(Identities, DcasgdWithoutLambdaIsAsgd) {
    VariantOptions dc{.variant = "dcasgd", .workers = 2};
    dc.dc_lambda = 0;
    const VariantOptions asgd{.variant = "asgd", .workers = 2};
    EXPECT_EQ(Cluster({.variant = dc, .script = script}).run().trajectory,
              Cluster({.variant = asgd, .script = script}).run().trajectory);
}

TEST(Identities, RangesDoNotMatter) {
    for (const VariantOptions& variant : synchronous_variants()) {
        SCOPED_TRACE(describe(variant));
        EXPECT_EQ(Cluster({.variant = variant}).run().trajectory,
                  Cluster({.variant = variant, .whole_range = true}).run().trajectory);
    }
}

TEST(Variant, WrongCombinationsAreRefusedWithTheReason) {
    const auto why = [](VariantOptions options) -> std::string {
        try {
            make_variant(options);
        } catch (const UsageError& error) {
            return error.what();
        }
        return "";
    };
    EXPECT_NE(why({.variant = "ssdsg"}).find("did you mean ssdsgd?"), std::string::npos);
    EXPECT_NE(why({.variant = "ssdsgd", .delay_steps = 0}).find("k is 0"), std::string::npos);
    EXPECT_NE(why({.variant = "bitsgd", .codec = "2bit", .threshold = 0}).find("above 0"),
              std::string::npos);
    EXPECT_NE(why({.variant = "asgd", .local = {.rule = "glu"}}).find("never be used"),
              std::string::npos);
    EXPECT_NE(why({.variant = "odsgd", .local = {.rule = "adopt"}}).find("cannot adopt"),
              std::string::npos);
    EXPECT_NE(why({.variant = "localsgd", .codec = "2bit"}).find("take raw"), std::string::npos);
    EXPECT_NE(why({.variant = "postlocal"}).find("at least 1 step"), std::string::npos);
    EXPECT_EQ(why({.variant = "cdsgd"}), "");
}

}  // namespace
}  // namespace trainer
