// Layouts inside a site of DiLoCo, which train as a site of one rank does.
#pragma once
#include <vector>

#include "tests/parity/parity.h"

namespace ltrain::test {

/// Bytes of the last rank to ranks of other sites.
inline int64_t sent_to_sites(const TinyResult& r) {
  const auto at = r.used_groups.find("sites");
  return at == r.used_groups.end() ? 0 : at->second;
}

inline std::vector<NamedLayout> site_layouts() {
  return {{"tensor 2", [](TinyOptions& o) { o.tensor = 2; }},
          {"data 2", [](TinyOptions& o) { o.ranks = 2; }},
          {"ZeRO-1", [](TinyOptions& o) { o.ranks = 2, o.zero_stage = 1; }},
          {"ZeRO-2", [](TinyOptions& o) { o.ranks = 2, o.zero_stage = 2; }},
          {"ZeRO-3", [](TinyOptions& o) { o.ranks = 2, o.zero_stage = 3; }},
          {"pipeline 2", [](TinyOptions& o) { o.pipeline = 2; }},
          {"context 2, ZeRO-1", [](TinyOptions& o) { o.context = 2, o.zero_stage = 1; }},
          {"hybrid ZeRO-1", [](TinyOptions& o) { o.ranks = 4, o.shard = 2, o.zero_stage = 1; }}};
}

}  // namespace ltrain::test
