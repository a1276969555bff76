#include "parallel/mesh/mesh.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace ltrain {
namespace {

/// Distance in ranks between neighbours on the axis.
int stride(const Mesh& m, Axis a) {
  int s = 1;
  for (Axis inner : m.order) {
    if (inner == a) break;
    s *= m.size(inner);
  }
  return s;
}

}  // namespace

AxisOrder parse_axis_order(std::string_view text, std::string& error) {
  constexpr std::pair<std::string_view, Axis> kNames[] = {
      {"tp", Axis::tensor}, {"cp", Axis::context}, {"dp", Axis::data}, {"pp", Axis::pipeline}};
  AxisOrder order = kAxisOrder;
  AxisSet seen;
  size_t n = 0;
  error.clear();
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find('-', at), text.size());
    const std::string_view word = text.substr(at, end - at);
    at = end + 1;
    if (word == "ep" && !seen.has(Axis::expert)) {
      seen = seen | Axis::expert;
      if (end == text.size() || text.substr(at, 2) != "dp") {
        error = "ep is the inner part of dp and must be right before it";
        return kAxisOrder;
      }
      continue;
    }
    const auto* name = std::find_if(std::begin(kNames), std::end(kNames),
                                    [&](const auto& entry) { return entry.first == word; });
    if (name == std::end(kNames)) {
      error = fmt::format("\"{}\" is none of tp, cp, dp, pp", word);
      return kAxisOrder;
    }
    if (seen.has(name->second)) {
      error = fmt::format("{} is a duplicate", word);
      return kAxisOrder;
    }
    seen = seen | name->second;
    if (name->second == Axis::data) order[n++] = Axis::expert;
    order[n++] = name->second;
    if (word == "tp")  // plus its axes in two and three dimensions
      for (Axis a : {Axis::column, Axis::row, Axis::depth}) order[n++] = a;
    if (name->second == Axis::data) order[n++] = Axis::replica;
  }
  int missing = 0;
  for (const auto& [name, axis] : kNames)
    if (!seen.has(axis) && ++missing) error += fmt::format("{}{}", error.empty() ? "" : " and ", name);
  if (!error.empty()) error += missing == 1 ? " is missing" : " are missing";
  return error.empty() ? order : kAxisOrder;
}

TensorMode tensor_mode(std::string_view name) {
  if (name == "1d") return TensorMode::one_d;
  if (name == "3d") return TensorMode::three_d;
  LT_CHECK(name == "2d" || name == "2.5d", "expected a tensor mode of 1d, 2d, 2.5d or 3d, got {}", name);
  return TensorMode::two_d;
}

void Mesh::cut_tensor(TensorMode mode, int ranks, int depth) {
  const auto root = [&](int n, auto power) {
    int q = 1;
    while (power(q + 1) <= n) ++q;
    LT_CHECK(power(q) == n, "expected a square or cube of tensor-parallel ranks, got {} with depth {}", ranks,
             depth);
    return q;
  };
  const auto set = [&](Axis a, int n) { degree[static_cast<int>(a)] = n; };
  tensor_mode = ranks == 1 ? TensorMode::one_d : mode;  // one rank has no grid
  for (Axis a : kTensorAxes) set(a, 1);
  if (tensor_mode == TensorMode::one_d) {
    set(Axis::tensor, ranks);
  } else if (tensor_mode == TensorMode::two_d) {
    LT_CHECK(ranks % depth == 0, "expected a multiple of depth {} tensor-parallel ranks, got {}", depth,
             ranks);
    const int q = root(ranks / depth, [](int64_t n) { return n * n; });
    set(Axis::row, q), set(Axis::column, q), set(Axis::depth, depth);
  } else {
    const int l = root(ranks, [](int64_t n) { return n * n * n; });
    set(Axis::row, l), set(Axis::column, l), set(Axis::depth, l);
    // Ranks that gather weights are neighbours.
    std::swap(*std::find(order.begin(), order.end(), Axis::column),
              *std::find(order.begin(), order.end(), Axis::depth));
  }
}

Axis Mesh::inner_axis() const {
  return tensor_mode == TensorMode::one_d   ? Axis::tensor
         : tensor_mode == TensorMode::two_d ? Axis::column
                                            : Axis::row;
}

int Mesh::site_ranks() const {
  int n = 1;
  for (int d : degree) n *= d;
  return n;
}

std::vector<int> Mesh::site_peers() const {
  std::vector<int> ranks;
  for (int r = rank % site_ranks(); r < world(); r += site_ranks()) ranks.push_back(r);
  return ranks;
}

std::vector<int> Mesh::all_ranks() const {
  std::vector<int> ranks(static_cast<size_t>(world()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

int Mesh::size(AxisSet axes) const {
  int n = 1;
  for (int i = 0; i < kAxisCount; ++i)
    if (axes.has(static_cast<Axis>(i))) n *= degree[i];
  return n;
}

std::string Mesh::split_levels(int64_t ranks) {
  LT_CHECK(size(Axis::replica) == 1, "expected a mesh with one level, got {} replicas", size(Axis::replica));
  const int data = size(Axis::data), context = size(Axis::context), all = data * context;
  if (ranks < 1 || all % ranks != 0)
    return fmt::format("must divide the {} ranks that gradients are summed over", all);
  if (ranks == all) return "";
  // Replica is taken from the data axis; sequences keep their sharding.
  const bool context_first = std::find(order.begin(), order.end(), Axis::context) <
                             std::find(order.begin(), order.end(), Axis::data);
  const int64_t near = context_first ? ranks / context : ranks;
  if (context_first ? ranks % context != 0 : data % ranks != 0)
    return fmt::format("must {} the {} ranks of the {}, which cannot be cut in two levels",
                       context_first ? "be a multiple of" : "divide", context_first ? context : data,
                       context_first ? "context axis" : "data axis, inside the context axis");
  degree[static_cast<int>(Axis::data)] = static_cast<int>(near);
  degree[static_cast<int>(Axis::replica)] = static_cast<int>(data / near);
  shard = Axis::data | Axis::expert;
  if (context_first) shard = shard | Axis::context;
  return "";
}

std::string Mesh::cut_experts(int ranks, bool over_tensor) {
  LT_CHECK(size(Axis::expert) == 1, "expected a mesh without sharded experts, got {} expert ranks",
           size(Axis::expert));
  if (ranks == 1) return "";
  int left = ranks;
  const auto fold = [&](Axis a) {
    if (left % size(a) != 0)
      return fmt::format("must be a multiple of the {} ranks of the {} axis", size(a), axis_name(a));
    left /= size(a);
    expert_axes = expert_axes | a;
    return std::string();
  };
  if (over_tensor && size(Axis::tensor) > 1)
    if (const std::string wrong = fold(Axis::tensor); !wrong.empty()) return wrong;
  if (size(Axis::data) % left != 0 && size(Axis::context) > 1)
    if (const std::string wrong = fold(Axis::context); !wrong.empty()) return wrong;
  if (size(Axis::data) % left != 0)
    return fmt::format("{}must divide the {} data-parallel ranks{}",
                       left == ranks ? "" : fmt::format("what the inner axes leave of it, {}, ", left),
                       size(Axis::data), two_levels() ? " of a node" : "");
  degree[static_cast<int>(Axis::data)] /= left;
  degree[static_cast<int>(Axis::expert)] = left;
  return "";
}

int Mesh::coordinate(Axis a) const { return rank / stride(*this, a) % size(a); }

std::vector<int> Mesh::group(AxisSet axes) const {
  int first = rank, ranks_inside = 1;
  std::vector<int> ranks{0};  // offsets from the first
  for (const Axis a : order) {
    if (axes.has(a)) {
      first -= coordinate(a) * ranks_inside;
      const size_t inner = ranks.size();
      for (int c = 1; c < size(a); ++c)
        for (size_t i = 0; i < inner; ++i) ranks.push_back(ranks[i] + c * ranks_inside);
    }
    ranks_inside *= size(a);
  }
  for (int& r : ranks) r += first;
  return ranks;
}

int Mesh::place_in(AxisSet axes) const {
  int place = 0, inner = 1;
  for (const Axis a : order) {
    if (!axes.has(a)) continue;
    place += coordinate(a) * inner;
    inner *= size(a);
  }
  return place;
}

int Mesh::at(Axis a, int c) const { return rank + (c - coordinate(a)) * stride(*this, a); }

}  // namespace ltrain
