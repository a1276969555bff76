#include "runtime/recipe/moe_rules.h"

#include "kernels/core/error.h"
#include "parallel/mesh.h"
#include "runtime/recipe/nearest.h"
#include "runtime/recipe/schema.h"

namespace ltrain::recipe {
namespace {

const std::string kExperts = "model.moe.num_experts", kTopK = "model.moe.top_k", kExpert = "parallel.expert",
                  kExpertTensor = "parallel.expert_tensor", kTensor = "parallel.tensor";

/// Experts are apart on tensor ranks, which then route rows of their own.
bool apart(const Parallel& p) { return p.tensor > 1 && p.expert_tensor == 1; }

/// "" or why experts cannot be cut over `ranks` ranks.
std::string wrong_cut(const Recipe& r, int64_t data, int64_t inside, int64_t ranks) {
  const Parallel& p = r.parallel;
  Mesh m;
  m.degree[static_cast<int>(Axis::data)] = static_cast<int>(data);
  m.degree[static_cast<int>(Axis::context)] = static_cast<int>(p.context);
  m.degree[static_cast<int>(Axis::tensor)] = static_cast<int>(p.tensor);
  std::string error;
  m.order = parse_axis_order(p.order, error);
  if (inside > 0 && !m.split_levels(inside).empty()) return "";  // refused as it is
  return m.cut_experts(static_cast<int>(ranks), apart(p));
}

void routing(const MoeConfig& m, const BrokenRule& broken) {
  if (m.top_k > m.num_experts)
    broken(kTopK,
           fmt::format("must be at most {} ({}); nearest valid value: {}", kExperts, m.num_experts,
                       m.num_experts),
           {kExperts});
  const std::string groups = "model.moe.router.n_group", kept = "model.moe.router.topk_group";
  if (m.num_experts % m.n_group != 0)
    return broken(groups,
                  fmt::format("must divide {} ({}){}", kExperts, m.num_experts,
                              nearest(m.n_group, 1, std::min<int64_t>(64, m.num_experts),
                                      [&](int64_t n) { return m.num_experts % n == 0; })),
                  {kExperts});
  if (m.topk_group > m.n_group)
    return broken(
        kept, fmt::format("must be at most {} ({}); nearest valid value: {}", groups, m.n_group, m.n_group),
        {groups});
  const int64_t each = m.num_experts / m.n_group, needed = (m.top_k + each - 1) / each;
  if (m.topk_group < needed && needed <= m.n_group)
    broken(kept,
           fmt::format("groups of {} experts have {} in all, and a token chooses {}; nearest valid value: {}",
                       each, each * m.topk_group, m.top_k, needed),
           {groups, kTopK, kExperts});
}

void capacity(const Recipe& r, const BrokenRule& broken) {
  const MoeConfig& m = r.model.moe;
  const Parallel& p = r.parallel;
  for (const auto& [key, factor] :
       {std::pair<std::string, std::optional<double>>{"model.moe.capacity_factor", m.capacity_factor},
        {"model.moe.eval_capacity_factor", m.eval_capacity_factor}}) {
    if (!factor || (key != "model.moe.capacity_factor" && factor == m.capacity_factor)) continue;
    if (p.context > 1)
      return broken(
          "parallel.context",
          fmt::format("{} drops by the tokens of a rank, and other parts of a sequence would drop others; "
                      "nearest valid value: 1, or {}: null",
                      key, key),
          {key});
    if (apart(p))
      return broken(
          kExpertTensor,
          fmt::format("{} drops by the tokens of a rank, and tensor ranks would each have their own; "
                      "nearest valid value: {}, or {}: null",
                      key, p.tensor, key),
          {key, kTensor});
    const double tokens = static_cast<double>(r.train.micro_batch_size * r.data.seq_length);
    const double even = tokens * static_cast<double>(m.top_k) / static_cast<double>(m.num_experts);
    if (*factor * even < 1)
      broken(
          key,
          fmt::format("leaves {} of a token to an expert ({} * {} tokens * {} / {}); nearest valid value: {}",
                      write_number(*factor * even), write_number(*factor), tokens, m.top_k, m.num_experts,
                      write_number(1 / even)),
          {"train.micro_batch_size", "data.seq_length", kExperts, kTopK});
  }
}

void tensor(const Recipe& r, const BrokenRule& broken) {
  const Parallel& p = r.parallel;
  const ModelConfig& m = r.model;
  if (p.tensor == 1) return;
  if (p.tensor_mode != "1d")
    return broken("parallel.tensor_mode",
                  "mixtures of experts are cut in one dimension; nearest valid value: 1d", {kExperts});
  if (m.query_key_norm() == QueryKeyNorm::projection)
    broken(kTensor,
           "olmoe norms queries and keys over all heads, which one rank then has; nearest valid value: 1",
           {"model.architecture"});
  if (p.expert_tensor != 1 && p.expert_tensor != p.tensor)
    return broken(kExpertTensor,
                  fmt::format("must be 1 or {} ({}); nearest valid value: {}", kTensor, p.tensor,
                              p.expert_tensor > p.tensor ? p.tensor : 1),
                  {kTensor});
  const std::string width = "model.moe.intermediate_size";
  const int64_t f = m.moe.intermediate_size, shared = m.moe.shared_experts * f;
  if (apart(p)) {
    if (!p.sequence_parallel)
      broken(kExpertTensor,
             fmt::format(
                 "tensor ranks with experts of their own need rows of their own; nearest valid value: {}, or "
                 "parallel.sequence_parallel: true",
                 p.tensor),
             {kTensor, "parallel.sequence_parallel"});
    if (p.expert % p.tensor != 0)
      broken(kExpert,
             fmt::format("must be a multiple of {} ({}) with {}: 1{}", kTensor, p.tensor, kExpertTensor,
                         nearest(p.expert, 1, 1 << 20, [&](int64_t n) { return n % p.tensor == 0; })),
             {kTensor, kExpertTensor});
    if (m.moe.balance == "sequence" && r.train.micro_batch_size > 1)
      broken("model.moe.balance.kind",
             fmt::format(
                 "sequence with {}: 1 cuts a micro-batch where sequences do not end; nearest valid value: "
                 "switch, or train.micro_batch_size: 1",
                 kExpertTensor),
             {kExpertTensor, "train.micro_batch_size"});
  }
  for (const int64_t n : {apart(p) ? 0 : f, shared})
    if (n % p.tensor != 0)
      return broken(kTensor,
                    fmt::format("must divide {} ({}){}", width, n,
                                nearest(p.tensor, 1, n, [&](int64_t ranks) { return n % ranks == 0; })),
                    {width});
}

}  // namespace

void check_moe(const Recipe& r, const BrokenRule& broken) {
  const MoeConfig& m = r.model.moe;
  const Parallel& p = r.parallel;
  const std::string& architecture = r.model.architecture;
  if (m.num_experts == 0) {
    if (architecture != "llama" && architecture != "gpt2")
      broken(kExperts, fmt::format("{} is a mixture of experts; nearest valid value: 1", architecture),
             {"model.architecture"});
    if (p.expert > 1)
      broken(kExpert,
             "a dense model has no experts to cut; nearest valid value: 1, or give model.moe.num_experts",
             {kExperts});
    if (p.expert_tensor != 1 && p.expert_tensor != p.tensor)
      broken(kExpertTensor, "a dense model has no experts; remove the key", {});
    return;
  }
  if (architecture == "gpt2")
    return broken(
        kExperts,
        "experts are SwiGLU layers of llama's kind; nearest valid value: 0, or model.architecture: llama",
        {"model.architecture"});
  routing(m, broken);
  capacity(r, broken);
  tensor(r, broken);
  for (const int64_t layer : m.dense_layers)
    if (layer >= r.model.num_hidden_layers)
      broken("model.moe.dense_layers",
             fmt::format("{} is beyond the {} layers, which are numbered from 0", layer,
                         r.model.num_hidden_layers),
             {"model.num_hidden_layers"});
  if (m.num_experts % p.expert != 0)
    broken(kExpert,
           fmt::format("must divide {} ({}){}", kExperts, m.num_experts,
                       nearest(p.expert, 1, m.num_experts,
                               [&](int64_t n) {
                                 return m.num_experts % n == 0 &&
                                        (p.data < 1 || wrong_cut(r, p.data, 0, n).empty());
                               })),
           {kExperts});
}

void check_moe_layout(const Recipe& r, int64_t data, int64_t inside, const BrokenRule& broken) {
  const Parallel& p = r.parallel;
  if (p.expert == 1 || r.model.moe.num_experts % p.expert != 0 || p.tensor_mode != "1d") return;
  const auto wrong = [&](int64_t ranks) { return wrong_cut(r, data, inside, ranks); };
  const auto good = [&](int64_t ranks) {
    return r.model.moe.num_experts % ranks == 0 && wrong(ranks).empty();
  };
  if (const std::string text = wrong(p.expert); !text.empty())
    broken(kExpert, text + nearest(p.expert, 1, r.model.moe.num_experts, good),
           {"parallel.data", "parallel.context", kTensor, "parallel.shard_group"});
}

}  // namespace ltrain::recipe
