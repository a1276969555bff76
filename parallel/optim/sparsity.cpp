#include "parallel/optim/sparsity.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "parallel/optim/parameter_rule.h"
#include "parallel/optim/parameter_spec.h"

namespace ltrain {

int64_t SparsitySettings::tail_begin() const {
  if (dense_tail == 0) return std::numeric_limits<int64_t>::max();
  return train_steps - std::llround(dense_tail * static_cast<double>(train_steps)) + 1;
}

int64_t SparsitySettings::sparse_steps() const {
  if (!on()) return 0;
  const int64_t first = moves() ? at_step : at_step + 1;
  const int64_t last = moves() ? std::min(train_steps, tail_begin() - 1) : train_steps;
  return std::max<int64_t>(0, last - first + 1);
}

double SparsitySettings::kept_share() const {
  const SparsePattern p = sparse_pattern(*this, 0);
  return p.kept / static_cast<double>(p.group);
}

std::optional<SparsePattern> parse_pattern(std::string_view text) {
  SparsePattern p;
  const char* const end = text.data() + text.size();
  const auto n = std::from_chars(text.data(), end, p.kept);
  if (n.ec != std::errc() || n.ptr == end || *n.ptr != ':') return {};
  const auto m = std::from_chars(n.ptr + 1, end, p.group);
  const bool known = p.group == 4 || p.group == 8 || p.group == 16;
  if (m.ec != std::errc() || m.ptr != end || !known || p.kept < 1 || p.kept >= p.group) return {};
  return p;
}

std::string pattern_text(const SparsitySettings& settings) {
  return settings.pattern + (settings.transposable ? " transposable" : "");
}

SparsePattern sparse_pattern(const SparsitySettings& settings, int64_t cols) {
  SparsePattern p = parse_pattern(settings.pattern).value();
  if (settings.transposable) p.cols = cols;
  return p;
}

bool is_sparse(const SparsitySettings& settings, const ParameterSpec& spec) {
  return spec.is_linear() && std::any_of(settings.match.begin(), settings.match.end(),
                                         [&](const auto& m) { return name_matches(m, spec.name); });
}

void require_groups(const SparsitySettings& settings, const ParameterSpec& spec) {
  const int group = sparse_pattern(settings, 0).group;
  const auto require = [&](int dim, int64_t part, int of, const char* what) {
    const int64_t whole = spec.slice.global[dim];
    if (part % of == 0 && spec.slice.offset[dim] % of == 0) return;
    fail(ExitCode::usage,
         "sparsity.match: {} has {} {}{}, and {} needs a multiple of {}; leave it out of the patterns{}",
         spec.name, whole, what, part == whole ? "" : fmt::format(", {} on a rank", part),
         pattern_text(settings), of, part == whole ? "" : ", or make parallel.tensor smaller");
  };
  require(1, spec.shape[1], group, "columns");
  if (settings.transposable) require(0, spec.slice.extent[0], 4, "rows");
}

}  // namespace ltrain
