// Hello: how a worker introduces itself, and what both ends must agree on before anything else.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/message.h"
#include "engine/arena.h"

namespace trainer {

/// What must be the same on every process of a run: key and value as a person reads them, e.g.
/// {"optim.lr", "0.1"}. Sent as they are, so that a refusal can say what differs.
using Terms = std::vector<std::pair<std::string, std::string>>;

/// The term that stands for a model, e.g. "resnet20, 269722 parameters, digest 5f3c01aa"; the
/// digest covers every tensor's name, shape and place.
std::string model_term(const std::string& name, const TensorTable& table);

/// A number that is drawn for one proof only; and a proof (secret.h).
using Nonce = std::array<std::byte, 32>;
using Proof = std::array<std::byte, 32>;

/// The payload of MessageKind::hello.
struct Hello {
    std::optional<Nonce> nonce{};  ///< where the worker can prove the run's secret
    int32_t wished_rank = -1;      ///< -1: whichever is free
    int32_t server = 0;            ///< which server the worker takes the other end for
    int32_t servers = 1;           ///< how many there are
    std::string host{};            ///< the worker's machine, for people
    Terms terms{};

    bool operator==(const Hello&) const = default;
};

/// The payload of MessageKind::welcome.
struct Welcome {
    int32_t rank = 0;
    int32_t workers = 1;           ///< that the run has, present or not yet
    std::optional<Proof> proof{};  ///< the server's, where the worker has given one

    bool operator==(const Welcome&) const = default;
};

std::vector<std::byte> encode(const Hello& hello);
std::vector<std::byte> encode(const Welcome& welcome);

/// Throw Error where the bytes are no such payload.
Hello parse_hello(std::span<const std::byte> bytes);
Welcome parse_welcome(std::span<const std::byte> bytes);

/// Nothing where both agree; otherwise what differs, e.g. "optim.lr is 0.1 on node1:9000 and 0.2 on
/// worker 1". `here` and `there` name the two ends.
std::optional<std::string> difference(const Terms& ours, const std::string& here,
                                      const Terms& theirs, const std::string& there);

}  // namespace trainer
