#include "runtime/recipe/rules/dispatch_rules.h"

#include "base/error.h"
#include "parallel/mesh/mesh.h"
#include "runtime/recipe/nearest_value.h"
#include "runtime/recipe/rules/rules.h"
#include "runtime/recipe/rules/rules_parts.h"

namespace ltrain::recipe {
namespace {

const std::string kLevels = "parallel.hierarchical_all_to_all", kDispatch = "parallel.expert_dispatch",
                  kChunks = "parallel.expert_chunks", kExpert = "parallel.expert",
                  kReplicas = "parallel.shadow_experts";

}  // namespace

void check_dispatch(const Recipe& r, const BrokenRule& broken) {
  const Parallel& p = r.parallel;
  const bool gather = p.expert_dispatch == ExpertDispatch::all_gather;
  if (gather && p.hierarchical_all_to_all != kOneLevel)
    broken(kLevels,
           "with parallel.expert_dispatch: all_gather there is no all-to-all; nearest valid value: none",
           {kDispatch});
  if (gather && p.expert_chunks > 1)
    broken(kChunks, "with parallel.expert_dispatch: all_gather tokens go in one part; nearest valid value: 1",
           {kDispatch});
  if (gather && r.model.moe.row_budget)
    broken(
        "model.moe.row_budget",
        "with parallel.expert_dispatch: all_gather every rank has the tokens of all, and no slices of rows "
        "travel; nearest valid value: null, or parallel.expert_dispatch: all_to_all",
        {kDispatch});
  if (p.replicated_experts > r.model.moe.num_experts && r.model.moe.num_experts > 0)
    broken(kReplicas,
           fmt::format("must be at most model.moe.num_experts ({}); nearest valid value: {}",
                       r.model.moe.num_experts, r.model.moe.num_experts),
           {"model.moe.num_experts"});
  const int64_t tokens = r.train.micro_batch_size * r.data.seq_length / std::max<int64_t>(1, p.context);
  if (p.expert_chunks > tokens)
    broken(kChunks,
           fmt::format("must be at most the tokens of a micro-batch on a rank ({}); nearest valid value: {}",
                       tokens, tokens),
           {"train.micro_batch_size", "data.seq_length", "parallel.context"});
  if (p.hierarchical_all_to_all == kOneLevel || p.hierarchical_all_to_all == kNode || p.expert == 1) return;
  const int64_t n = p.hierarchical_all_to_all;
  const auto good = [&](int64_t ranks) { return p.expert % ranks == 0; };
  if (n >= p.expert || !good(n)) {
    const std::string near = nearest(std::min(n, p.expert), 2, p.expert - 1, good);
    broken(kLevels,
           fmt::format("must divide {} ({}) in more than one part{}", kExpert, p.expert,
                       near.empty() ? "; nearest valid value: none" : near + ", or none"),
           {kExpert});
  }
}

int64_t intra_node_experts(const Recipe& r, int64_t data, int64_t shard, int64_t per_node,
                           const BrokenRule& broken) {
  const Parallel& p = r.parallel;
  if (p.hierarchical_all_to_all == kOneLevel || p.expert == 1 || r.model.moe.num_experts == 0) return 0;
  if (p.hierarchical_all_to_all != kNode) return p.hierarchical_all_to_all;
  Mesh m = plain_mesh(r, data);
  if (shard > 0 && !m.split_levels(shard).empty()) return 0;  // another rule reports the error
  if (!m.cut_experts(static_cast<int>(p.expert), experts_apart(r)).empty()) return 0;
  const int64_t here = on_each_host(m, m.expert_axes, per_node);
  if (here == p.expert) return 0;  // one level if all ranks are on one node
  if (here > 1) return here;
  if (broken)
    broken(kLevels,
           fmt::format("nodes of {} ranks have {} of the {} that experts are cut over; nearest valid value: "
                       "none; or another parallel.order or launch.ranks_per_node",
                       per_node, here == 1 ? "one" : "unequal parts", p.expert),
           {kExpert, "launch.ranks_per_node", "parallel.order", "parallel.data", "parallel.context"});
  return 0;
}

}  // namespace ltrain::recipe
