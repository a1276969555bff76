#include "kernels/matmul/grouped/grouped_gemm.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "base/error.h"

namespace ltrain {
namespace {

constexpr GroupedGemm kFastestFirst[] = {GroupedGemm::wgmma, GroupedGemm::mma, GroupedGemm::each};

/// Value of LTRAIN_GROUPED_GEMM, or null if unset or empty.
const char* asked() {
  const char* value = std::getenv("LTRAIN_GROUPED_GEMM");
  return value && *value ? value : nullptr;
}

}  // namespace

bool grouped_gemm_is_forced() { return asked(); }

std::string_view grouped_gemm_name(GroupedGemm kernel) {
  switch (kernel) {
    case GroupedGemm::each:
      return "each";
    case GroupedGemm::mma:
      return "mma";
    case GroupedGemm::wgmma:
      return "wgmma";
  }
  fail(ExitCode::internal, "grouped product {}", static_cast<int>(kernel));
}

std::string_view grouped_gemm_obstacle(GroupedGemm kernel, const GroupedGemmTraits& t) {
  if (kernel == GroupedGemm::each) return "";
  if (!is_half(t.type)) return "bf16 and fp16 only";
  if (!t.aligned || t.n % 8 || t.k % 8) return "rows that begin at multiples of 16 bytes only";
  if (kernel == GroupedGemm::mma) return "";
  return t.capability == 90 ? "" : "GPUs of compute capability 9.0 (H100, H200) only";
}

GroupedGemm choose_grouped_gemm(const GroupedGemmTraits& traits) {
  if (const char* name = asked()) {
    for (GroupedGemm kernel : kFastestFirst) {
      if (grouped_gemm_name(kernel) != name) continue;
      if (const std::string_view why = grouped_gemm_obstacle(kernel, traits); !why.empty())
        fail(ExitCode::usage, "LTRAIN_GROUPED_GEMM={}: experts of {} x {} in {}: {}", name, traits.n,
             traits.k, dtype_name(traits.type), why);
      return kernel;
    }
    fail(ExitCode::usage, "LTRAIN_GROUPED_GEMM={}: each, mma or wgmma", name);
  }
  for (GroupedGemm kernel : kFastestFirst)
    if (grouped_gemm_obstacle(kernel, traits).empty()) return kernel;
  return GroupedGemm::each;
}

std::vector<GroupTable> group_tables(const GroupedOperands& o, const GroupRows& rows, int64_t tile_rows,
                                     int64_t tile_cols) {
  const bool gradient = o.kind == GroupedProduct::weight_gradient;
  const auto tiles = [](int64_t n, int64_t tile) { return (n + tile - 1) / tile; };
  const int64_t across = tiles(o.kind == GroupedProduct::forward ? o.n : o.k, tile_cols);
  struct Entry {
    int64_t group, row, rows;
  };
  std::vector<Entry> entries;
  int64_t row = 0;
  for (size_t g = 0; g < rows.size(); ++g) {
    if (rows[g] > 0 || (gradient && !o.accumulate))
      entries.push_back({static_cast<int64_t>(g), row, rows[g]});
    row += rows[g];
  }
  LT_CHECK(row < int64_t{1} << 31 && rows.size() <= size_t{1} << 16,
           "grouped GEMM: expected fewer than 2^31 rows and at most 65536 groups, got {} rows and {} groups",
           row, rows.size());
  if (gradient)
    std::stable_sort(entries.begin(), entries.end(),
                     [](const Entry& a, const Entry& b) { return a.rows > b.rows; });
  std::vector<GroupTable> out;
  int64_t at = 0;
  for (const Entry& e : entries) {
    if (out.empty() || out.back().groups == kGroupsALaunch) out.emplace_back(), at = 0;
    GroupTable& t = out.back();
    const int i = t.groups++;
    t.group[i] = static_cast<uint16_t>(e.group);
    t.row[i] = static_cast<int32_t>(e.row);
    t.rows[i] = static_cast<int32_t>(e.rows);
    t.first_tile[i] = static_cast<int32_t>(at);
    at += across * tiles(gradient ? o.n : e.rows, tile_rows);
    LT_CHECK(at < int64_t{1} << 31, "grouped GEMM: expected fewer than 2^31 tiles in one launch, got {}", at);
    t.tiles = static_cast<int32_t>(at);
  }
  return out;
}

}  // namespace ltrain
