#include "parallel/comm/split_members.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "base/error.h"

namespace ltrain {

SplitPlace agree_on_split(KeyValueStore& store, const std::string& base, int rank, int size, int color,
                          int key, double timeout_seconds) {
  store.set(base + std::to_string(rank), fmt::format("{} {}", color, key));
  std::vector<std::pair<int, int>> members;  // (key, rank) of this colour
  for (int r = 0; r < size; ++r) {
    int c = -1, k = 0;
    const std::string text = store.get(base + std::to_string(r), timeout_seconds);
    LT_CHECK(std::sscanf(text.c_str(), "%d %d", &c, &k) == 2,
             "expected a split record of colour and key, got \"{}\"", text);
    if (c == color) members.emplace_back(k, r);
  }
  SplitPlace s;
  if (color < 0) return s;
  std::sort(members.begin(), members.end());
  s.count = static_cast<int>(members.size());
  for (size_t i = 0; i < members.size(); ++i)
    if (members[i].second == rank) s.place = static_cast<int>(i);
  return s;
}

}  // namespace ltrain
