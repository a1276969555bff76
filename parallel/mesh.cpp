#include "parallel/mesh.h"

#include <algorithm>

#include <fmt/format.h>

namespace ltrain {
namespace {

/// Ranks between neighbours on the axis.
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
    if (word == "ep" && !seen.has(Axis::expert)) {  // of one rank: anywhere
      seen = seen | Axis::expert;
      continue;
    }
    const auto* name = std::find_if(std::begin(kNames), std::end(kNames),
                                    [&](const auto& entry) { return entry.first == word; });
    if (name == std::end(kNames)) {
      error = fmt::format("\"{}\" is none of tp, cp, dp, pp", word);
      return kAxisOrder;
    }
    if (seen.has(name->second)) {
      error = fmt::format("{} is there twice", word);
      return kAxisOrder;
    }
    seen = seen | name->second;
    order[n++] = name->second;
  }
  for (const auto& [name, axis] : kNames)
    if (!seen.has(axis)) error += fmt::format("{}{}", error.empty() ? "" : " and ", name);
  if (!error.empty()) error += n == 3 ? " is missing" : " are missing";
  return error.empty() ? order : kAxisOrder;
}

int Mesh::world() const {
  int n = 1;
  for (int d : degree) n *= d;
  return n;
}

int Mesh::coordinate(Axis a) const { return rank / stride(*this, a) % size(a); }

std::vector<int> Mesh::group(AxisSet axes) const {
  std::vector<int> ranks;
  Mesh other = *this;
  for (other.rank = 0; other.rank < world(); ++other.rank) {
    bool same = true;
    for (int i = 0; i < kAxisCount; ++i)
      if (const Axis a = static_cast<Axis>(i); !axes.has(a)) same &= other.coordinate(a) == coordinate(a);
    if (same) ranks.push_back(other.rank);
  }
  return ranks;
}

int Mesh::place_in(AxisSet axes) const {
  const std::vector<int> ranks = group(axes);
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

int Mesh::at(Axis a, int c) const { return rank + (c - coordinate(a)) * stride(*this, a); }

}  // namespace ltrain
