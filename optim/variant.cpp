#include "optim/variant.h"

#include <algorithm>
#include <array>

#include "engine/nearest.h"

namespace trainer {

namespace {

using Kind = StepScheduleOptions::Kind;
using Rule = ShardOptions::Rule;

struct Row {
    const char* name;
    Kind schedule;
    const char* codec;
    int64_t exact_every;     // c of its own; 0: never
    const char* local_rule;  // adopt: the pulled model is the next weights
    Rule rule;
};

// ssp and ssdsgd take s and k from the config; odsgd and cdsgd are k = 1.
constexpr std::array rows{
    Row{"ssgd", Kind::synchronous, "raw", 0, "adopt", Rule::average},
    Row{"asgd", Kind::synchronous, "raw", 0, "adopt", Rule::on_arrival},
    Row{"ssp", Kind::synchronous, "raw", 0, "adopt", Rule::on_arrival},
    Row{"dcasgd", Kind::synchronous, "raw", 0, "adopt", Rule::delay_compensated},
    Row{"dcasgd_a", Kind::synchronous, "raw", 0, "adopt", Rule::delay_compensated_adaptive},
    Row{"odsgd", Kind::delayed, "raw", 0, "sgd", Rule::average},
    Row{"ssdsgd", Kind::delayed, "raw", 0, "glu", Rule::average},
    Row{"bitsgd", Kind::synchronous, "2bit", 0, "adopt", Rule::average},
    Row{"cdsgd", Kind::delayed, "2bit", 5, "sgd", Rule::average},
    Row{"localsgd", Kind::local, "raw", 0, "adopt", Rule::average_weights},
    Row{"postlocal", Kind::local, "raw", 0, "adopt", Rule::average_weights},
};

const Row& row_named(const std::string& name) {
    const auto found = std::ranges::find_if(rows, [&](const Row& row) { return row.name == name; });
    if (found == rows.end())
        throw UsageError("distributed.variant: there is no variant " + name + "; did you mean " +
                         nearest_name(name, variant_names()) + "?");
    return *found;
}

std::shared_ptr<const Codec> make_codec(const std::string& name, std::optional<double> threshold) {
    if (name == "fp16")
        return make_fp16_codec();
    if (name == "bf16")
        return make_bf16_codec();
    if (name != "2bit")
        return make_raw_codec();
    if (threshold && !(*threshold > 0))
        throw UsageError("distributed.codec.threshold: " + std::to_string(*threshold) +
                         " is no threshold; it must be above 0, or auto");
    return make_two_bit_codec(threshold ? std::optional(static_cast<float>(*threshold))
                                        : std::nullopt);
}

// Why a combination makes no sense, or an empty string.
std::string objection(const Row& row, const VariantOptions& options, const std::string& local_rule,
                      const std::string& codec) {
    const std::string name = row.name;
    const bool delayed = row.schedule == Kind::delayed;
    if (!delayed && local_rule != "adopt")
        return "distributed.local.rule: " + name +
               " waits for every pull and adopts it, so a local rule (" + local_rule +
               ") would never be used; take auto, or a delayed variant (odsgd, ssdsgd, cdsgd)";
    if (delayed && local_rule == "adopt")
        return "distributed.local.rule: " + name +
               " goes on before its pull is there, so it cannot adopt it; take sgd, dc, glu or "
               "momentum";
    if (options.delay_steps < 1)
        return "distributed.delay_steps: k is " + std::to_string(options.delay_steps) +
               ", and must be at least 1";
    if (options.local_steps < 1)
        return "distributed.local_steps: H is " + std::to_string(options.local_steps) +
               ", and must be at least 1";
    if (options.staleness < 0)
        return "distributed.staleness: s is " + std::to_string(options.staleness) +
               ", and must be at least 0";
    if (options.max_inflight < 1 || options.max_inflight > 32)
        return "distributed.max_inflight: " + std::to_string(options.max_inflight) +
               " steps cannot be under way; take 1 to 32";
    if (row.schedule == Kind::local && codec != "raw")
        return "distributed.codec.name: " + name + " sends weights, which " + codec +
               " would damage; take raw";
    if (name == "postlocal" && options.warmup_steps < 1)
        return "distributed.warmup_steps: postlocal begins with S-SGD, so it needs at least 1 step "
               "of it";
    return "";
}

}  // namespace

std::vector<std::string> variant_names() {
    std::vector<std::string> names;
    for (const Row& row : rows)
        names.emplace_back(row.name);
    return names;
}

Variant make_variant(const VariantOptions& options) {
    const Row& row = row_named(options.variant);
    const std::string name = row.name;
    const std::string codec = options.codec == "auto" ? row.codec : options.codec;
    const std::string local_rule =
        options.local.rule == "auto" ? row.local_rule : options.local.rule;
    if (const std::string why = objection(row, options, local_rule, codec); !why.empty())
        throw UsageError(why);

    const StepSchedule schedule({.kind = row.schedule,
                                 .warmup_steps = options.warmup_steps,
                                 .delay_steps = name == "ssdsgd" ? options.delay_steps : 1,
                                 .local_steps = options.local_steps,
                                 .exact_every = options.exact_every.value_or(row.exact_every)});
    Variant result;
    result.synchronous = row.rule == Rule::average || row.rule == Rule::average_weights;
    result.shard.rule = row.rule;
    result.shard.workers = options.workers;
    result.shard.codec = make_codec(codec, options.threshold);
    result.shard.schedule = schedule;
    if (name == "ssp")
        result.shard.staleness = options.staleness;
    result.shard.lambda = options.dc_lambda;
    result.shard.lambda0 = options.dc_lambda0;
    result.shard.m = options.dc_m;
    result.exchange.schedule = schedule;
    result.exchange.codec = result.shard.codec;
    result.exchange.flush_on_exact = options.flush_on_exact;
    result.exchange.max_inflight = options.max_inflight;
    result.exchange.local_lr = options.local_lr;
    if (row.schedule == Kind::delayed) {
        result.exchange.local = options.local;
        result.exchange.local->rule = local_rule;
    }
    return result;
}

}  // namespace trainer
