// Tiles that attention visits, compared with a look at each tile.
#include "kernels/attention/attention_tiles.h"

#include <catch2/catch.hpp>
#include <tuple>
#include <vector>

using namespace ltrain;

namespace {

std::vector<int> listed(const TileRange& r) {
  std::vector<int> v;
  for (int n = 0; n < r.total; ++n) v.push_back(r[n]);
  return v;
}

/// Subset of `tiles` that the mask leaves of `other`.
std::vector<int> looked_at(const Tiles& tiles, const Mask& mask, const Tile& other, bool tiles_are_keys) {
  std::vector<int> v;
  for (int i = 0; i < tiles.total; ++i)
    if (!(tiles_are_keys ? mask.hides(other, tiles[i]) : mask.hides(tiles[i], other))) v.push_back(i);
  return v;
}

/// One run, a part of the sequence, or two, as ranks of context parallelism have them.
std::vector<Positions> positions_of(int64_t seq) {
  std::vector<Positions> all{Positions(seq)};
  if (seq >= 4) {
    all.push_back(Positions::run(seq / 2, seq - seq / 2, seq));
    for (int64_t rank : {0, 1})
      all.push_back(Positions::two_runs(rank * (seq / 4), seq - (rank + 1) * (seq / 4), seq / 4, seq));
  }
  return all;
}

}  // namespace

TEST_CASE("attention: the tiles that are walked over are those with something to see") {
  int64_t walked = 0, passed_over = 0;
  for (const int64_t seq : {1, 5, 64, 97, 200})
    for (const int64_t window : {0, 1, 30, 100})
      for (const int64_t document : {0, 1, 13, 60}) {
        std::vector<int32_t> begins(static_cast<size_t>(seq));
        for (int64_t i = 0; i < seq; ++i)
          begins[static_cast<size_t>(i)] = static_cast<int32_t>(document ? i / document * document : 0);
        AttentionArgs a;
        a.seq = seq, a.window = window;
        a.documents = document ? begins.data() : nullptr;
        const Mask mask(a, 0);
        for (const Positions& q_at : positions_of(seq))
          for (const Positions& k_at : positions_of(seq)) {
            const Tiles queries(q_at, 24), keys(k_at, 16);
            CAPTURE(seq, window, document, q_at.first, q_at.second, k_at.first, k_at.second);
            for (int i = 0; i < queries.total; ++i) {
              const auto found = looked_at(keys, mask, queries[i], true);
              REQUIRE(listed(keys_seen(keys, mask, queries[i])) == found);
              walked += static_cast<int64_t>(found.size());
              passed_over += keys.total - static_cast<int64_t>(found.size());
            }
            for (int i = 0; i < keys.total; ++i)
              REQUIRE(listed(queries_that_see(queries, mask, keys[i])) ==
                      looked_at(queries, mask, keys[i], false));
          }
      }
  REQUIRE(walked > 1000);
  REQUIRE(passed_over > 1000);
}

TEST_CASE(
    "attention: each tile of each head is a block's, the heaviest of heads that share the cache first") {
  for (const auto& [units, tiles, bytes, sharing] : {std::tuple{6, 5, 1, 1},
                                                     {7, 3, 16 << 20, 1},
                                                     {12, 4, 16 << 20, 3},
                                                     {1, 9, 1, 1},
                                                     {5, 1, 64 << 20, 2}}) {
    CAPTURE(units, tiles, bytes, sharing);
    const WorkList list(units, tiles, bytes, sharing);
    REQUIRE(list.together == std::min(units, bytes == 1 ? units : std::max((32 << 20) / bytes, 1) * sharing));
    std::vector<int> met(static_cast<size_t>(units * tiles));
    int group = 0, tile = 0;
    for (int i = 0; i < list.pieces(); ++i) {
      const auto [t, u] = list[static_cast<unsigned>(i)];
      REQUIRE(met.at(static_cast<size_t>(u * tiles + t))++ == 0);
      const int g = u / list.together;
      REQUIRE((g == group ? t >= tile : g == group + 1 && t == 0));
      group = g, tile = t;
    }
  }
}
