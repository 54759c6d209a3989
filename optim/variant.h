// Variant: a row of the table of distributed SGD variants, with what a config changes of it.
//
// A row names one of each: the schedule of steps, the codec, the local rule, the servers' rule.
// ALGORITHMS.md beside this file has the equations and the sources.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "optim/exchange.h"
#include "optim/shard.h"

namespace trainer {

/// What a config says about distribution; nullopt and "auto": as the variant's row has it.
struct VariantOptions {
    std::string variant = "ssgd";
    int workers = 1;
    int64_t warmup_steps = 0;  ///< T_w
    int64_t delay_steps = 5;   ///< k of ssdsgd
    int64_t staleness = 3;     ///< s of ssp
    int64_t local_steps = 8;   ///< H of localsgd
    int max_inflight = 2;
    LocalRuleOptions local{};
    std::optional<double> local_lr{};
    double dc_lambda = 0.04, dc_lambda0 = 2.0, dc_m = 0.95;
    std::string codec = "auto";         ///< auto | raw | fp16 | bf16 | 2bit
    std::optional<double> threshold{};  ///< of 2bit; nullopt: auto
    std::optional<int64_t> exact_every{};
    bool flush_on_exact = false;
};

/// The two ends of a variant; `lr` of both is still to be set.
struct Variant {
    ShardOptions shard;
    ExchangeOptions exchange;
    bool synchronous = true;  ///< the same seed gives the same bits
};

/// Resolves a row. Throws UsageError, one line that says why, for an unknown variant (with the
/// nearest one) and for combinations that make no sense.
Variant make_variant(const VariantOptions& options);

/// The names of all variants.
std::vector<std::string> variant_names();

}  // namespace trainer
