#include "tools/trainer/allreduce.h"

#include <chrono>

#include "comm/mesh.h"
#include "tools/trainer/cluster_messages.h"
#include "tools/trainer/setup.h"

namespace trainer {
namespace {

// Others may still be reading their data.
constexpr std::chrono::hours patience{24};

/// What each worker has to say, by rank; all ask at once.
std::vector<std::string> gather(Link& link, const std::string& word) {
    const PooledBytes reply =
        link.call(0, 0, std::string(job::gather), {std::as_bytes(std::span(word))}, patience);
    std::span<const std::byte> body = reply.bytes();
    std::vector<std::string> words;
    while (!body.empty())
        words.push_back(job::take_text(body));
    return words;
}

}  // namespace

void check_topology(const Config& config) {
    if (!is_allreduce(config))
        return;
    const auto refuse = [](const std::string& key, const std::string& why,
                           const std::string& instead) {
        throw UsageError("distributed." + key + " " + why + "; take " + instead +
                         ", or distributed.topology ps");
    };
    const auto& distributed = config.distributed;
    const std::string& variant = distributed.variant;
    if (variant != "ssgd" && variant != "localsgd")
        refuse("variant: " + variant, "needs servers, which topology allreduce has none of",
               "ssgd or localsgd");
    const std::string& codec = distributed.codec.name;
    if (codec != "auto" && codec != "raw")
        refuse("codec.name: " + codec, "has no place in topology allreduce, which sums floats",
               "raw");
    if (distributed.backup_workers > 0)
        refuse("backup_workers: " + std::to_string(distributed.backup_workers),
               "is not for topology allreduce, which waits for every worker", "0");
    if (distributed.on_worker_loss == "continue")
        refuse("on_worker_loss: continue",
               "is not for topology allreduce, which cannot sum without a worker", "abort");
}

std::unique_ptr<Collective> join_group(const WorkerGroup& group, Link& link, Backend& backend) {
    // The first letter says by what: all workers must be alike.
    constexpr char by_nccl = 'n', by_mesh = 'm';
    const auto all = [&](char way, const std::string& word) {
        std::vector<std::string> words = gather(link, way + word);
        for (std::string& said : words) {
            if (said.empty() || said[0] != way)
                throw Error(
                    "distributed.topology: allreduce: some workers compute on GPUs and "
                    "some on processors; set device alike for all");
            said.erase(0, 1);
        }
        return words;
    };
    const int64_t elements = group.plan.network.parameters().size();
    const auto timeout = comm_timeout(group.config);
    if (cuda_device(group.config)) {
        const std::string id = link.rank() == 0 ? backend.make_group_id() : std::string();
        return backend.join({.id = all(by_nccl, id).front(),
                             .rank = link.rank(),
                             .size = link.workers(),
                             .elements = elements,
                             .timeout = timeout,
                             .look = [&link] { link.check_alive(); }});
    }
    auto mesh = std::make_unique<Mesh>(MeshOptions{.rank = link.rank(),
                                                   .size = link.workers(),
                                                   .elements = elements,
                                                   .listen = group.listen,
                                                   .terms = group.plan.terms,
                                                   .timeout = timeout,
                                                   .secret = secret_of(group.config),
                                                   .transport = group.transport});
    mesh->connect(all(by_mesh, mesh->address()));
    return mesh;
}

}  // namespace trainer
