// Rules of 2D and 3D tensor parallelism, which shards heads, every matrix in two dims, and the sequences of a
// micro-batch.
#include <algorithm>

#include "base/error.h"
#include "runtime/recipe/nearest_value.h"
#include "runtime/recipe/rules/rules_parts.h"

namespace ltrain::recipe {
namespace {

constexpr int64_t kMostRanks = 1 << 20;  // largest number of ranks to suggest

/// Side of the 2D grids or the 3D cube of tensor ranks; 0 if `ranks` do not form one.
int64_t tensor_side(const Parallel& p, int64_t ranks) {
  const bool cube = p.tensor_mode == TensorModeChoice::three_d;
  const int64_t depth = p.tensor_mode == TensorModeChoice::two_and_half_d ? p.tensor_depth : 1;
  const auto volume = [&](int64_t side) { return side * side * (cube ? side : depth); };
  int64_t side = 1;
  while (volume(side + 1) <= ranks) ++side;
  return volume(side) == ranks ? side : 0;
}

}  // namespace

void tensor_grid_rules(const Recipe& r, const BrokenRule& broken) {
  const Parallel& p = r.parallel;
  const ModelConfig& m = r.model;
  const std::string tensor = "parallel.tensor", mode = fmt::format("parallel.tensor_mode: {}", p.tensor_mode);
  const std::vector<std::string> mode_keys{"parallel.tensor_mode", "parallel.tensor_depth"};
  const bool cube = p.tensor_mode == TensorModeChoice::three_d;
  const int64_t depth = p.tensor_mode == TensorModeChoice::two_and_half_d ? p.tensor_depth : 1;
  // shards of a micro-batch
  const auto parts = [&](int64_t side) { return side * (cube ? side : depth); };
  struct Cut {
    std::string what, key;
    int64_t n;
    int power;  // power of the side that must divide it; 3D shards rows of a weight twice
  };
  const std::string heads = "model.num_attention_heads", kv_heads = "model.num_key_value_heads";
  const int twice = cube ? 2 : 1;
  std::vector<Cut> cuts{{heads, heads, m.num_attention_heads, 1},
                        {kv_heads, kv_heads, m.num_key_value_heads, 1},
                        {"model.hidden_size", "model.hidden_size", m.hidden_size, twice},
                        {"model.intermediate_size", "model.intermediate_size", m.intermediate_size, twice}};
  if (m.num_key_value_heads == m.num_attention_heads) cuts.erase(cuts.begin() + 1);  // reported once
  if (cube) {
    cuts.push_back({heads + " * model.head_dim", heads, m.num_attention_heads * m.head_dim, 2});
    cuts.push_back({kv_heads + " * model.head_dim", kv_heads, m.num_key_value_heads * m.head_dim, 2});
  }
  const auto unit = [](const Cut& c, int64_t side) { return c.power == 2 ? side * side : side; };
  const auto good = [&](int64_t ranks) {
    const int64_t side = tensor_side(r.parallel, ranks);
    return side > 0 && r.train.micro_batch_size % parts(side) == 0 &&
           std::all_of(cuts.begin(), cuts.end(), [&](const Cut& c) { return c.n % unit(c, side) == 0; });
  };
  // The side must divide the heads and the micro-batch, which bounds the number of ranks.
  const int64_t longest = std::min(m.num_attention_heads, r.train.micro_batch_size);
  const int64_t most = std::min(kMostRanks, longest * longest * (cube ? longest : depth));
  if (p.sequence_parallel)
    broken("parallel.sequence_parallel",
           fmt::format(
               "{} cuts tokens between the matmuls anyway; remove the key, or use parallel.tensor_mode: 1d",
               mode),
           mode_keys);
  if (p.context > 1)
    broken("parallel.context",
           fmt::format("{} gives each rank whole sequences, so that attention stays on it; nearest valid "
                       "value: 1, or parallel.tensor_mode: 1d",
                       mode),
           mode_keys);
  if (m.traits().query_key_norm != QueryKeyNorm::none)
    broken("parallel.tensor_mode",
           fmt::format(
               "norms of queries and keys, which {} has, are cut in one dimension; nearest valid value: 1d",
               m.family->name),
           {"model.architecture", "parallel.tensor_depth"});
  if (m.traits().latent_attention)
    broken("parallel.tensor_mode",
           fmt::format("latent attention, which {} has, is cut in one dimension; nearest valid value: 1d",
                       m.family->name),
           {"model.architecture", "parallel.tensor_depth"});
  const int64_t side = tensor_side(p, p.tensor);
  const char* letter = cube ? "l" : "q";
  if (side == 0)
    return broken(tensor,
                  fmt::format("must be {} with {}{}",
                              cube         ? "l^3"
                              : depth == 1 ? "q^2"
                                           : fmt::format("parallel.tensor_depth * q^2 ({} * q^2)", depth),
                              mode, nearest(p.tensor, 1, most, good)),
                  mode_keys);
  bool whole = true;
  for (const Cut& c : cuts) {
    if (c.n % unit(c, side) == 0) continue;
    whole = false;
    std::vector<std::string> keys = mode_keys;
    keys.push_back(c.key);
    const std::string divisor =
        c.power == 2 ? fmt::format("{}^2 ({})", letter, side * side) : fmt::format("{} ({})", letter, side);
    broken(tensor,
           fmt::format("with {} its side {} must divide {} ({}){}", mode, divisor, c.what, c.n,
                       nearest(p.tensor, 1, most, good)),
           keys);
  }
  if (const int64_t n = parts(side); whole && r.train.micro_batch_size % n != 0)
    broken("train.micro_batch_size",
           fmt::format("must be a multiple of {}, the parts that {} on {} ranks cuts the sequences of a "
                       "micro-batch into{}",
                       n, mode, p.tensor, nearest_multiple(r.train.micro_batch_size, n)),
           {tensor, "parallel.tensor_mode", "parallel.tensor_depth"});
}

void one_axis_rule(const Recipe& r, const BrokenRule& broken, const char* key, const char* off) {
  if (r.parallel.tensor <= 1 || r.parallel.tensor_mode == TensorModeChoice::one_d) return;
  broken(key,
         fmt::format("is for matrices that one axis cuts, and parallel.tensor_mode: {} cuts them by two or "
                     "three; nearest valid value: {}, or parallel.tensor_mode: 1d",
                     r.parallel.tensor_mode, off),
         {"parallel.tensor_mode", "parallel.tensor"});
}

}  // namespace ltrain::recipe
