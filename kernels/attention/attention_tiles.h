// Tiles of queries and keys, on every device.
#pragma once
#include <algorithm>
#include <cmath>

#include "kernels/attention/attention.h"
#include "kernels/tensor/host_device.h"

namespace ltrain {

/// Rows [row, row + count) of a sample, at consecutive positions from `at` on.
struct Tile {
  int64_t row, count, at;
};

/// Divides rows into tiles of at most `block` rows. No tile crosses the gap between two runs.
struct Tiles {
  Positions p;
  int64_t block, in_first, total;
  LT_HD Tiles(const Positions& positions, int64_t block)
      : p(positions),
        block(block),
        in_first((p.split + block - 1) / block),
        total(in_first + (p.rows - p.split + block - 1) / block) {}
  LT_HD Tile operator[](int64_t i) const {
    const int64_t row = i < in_first ? i * block : p.split + (i - in_first) * block;
    const int64_t left = (i < in_first ? p.split : p.rows) - row;
    return {row, left < block ? left : block, p.at(row)};
  }
};

/// Keys that a query of the sample may see.
struct Mask {
  const int32_t* documents;  ///< documents of the sample, or null
  int64_t window;            ///< 0: no window
  LT_HD Mask(const AttentionArgs& a, int64_t sample)
      : documents(a.documents ? a.documents + sample * a.seq : nullptr), window(a.window) {}
  /// First key that the query sees; does not descend from query to query.
  LT_HD int64_t lowest(int64_t query) const {
    const int64_t document = documents ? documents[query] : 0;
    const int64_t in_window = window ? query - window + 1 : 0;
    return document > in_window ? document : in_window;
  }
  /// True if every query sees all keys up to its own.
  LT_HD bool causal_only() const { return !documents && window == 0; }
  LT_HD bool hides(const Tile& queries, const Tile& keys) const {
    return keys.at > queries.at + queries.count - 1 || keys.at + keys.count <= lowest(queries.at);
  }
  /// Keys [begin, end) of the tile that the query at `position` sees; empty when end <= begin.
  LT_HD int64_t begin(int64_t position, const Tile& keys) const {
    const int64_t first = lowest(position) - keys.at;
    return first > 0 ? first : 0;
  }
  LT_HD int64_t end(int64_t position, const Tile& keys) const {
    const int64_t last = position - keys.at + 1;
    return last < keys.count ? last : keys.count;
  }
};

/// A range of tiles in each of the two runs, in the order of their rows.
struct TileRange {
  int first = 0, second = 0, in_first = 0, total = 0;
  /// Tiles [from, until) of each run of `runs`, counted within the run.
  LT_HD static TileRange of(const Tiles& runs, const int (&from)[2], const int (&until)[2]) {
    TileRange r;
    r.in_first = until[0] > from[0] ? until[0] - from[0] : 0;
    r.total = r.in_first + (until[1] > from[1] ? until[1] - from[1] : 0);
    r.first = from[0], r.second = static_cast<int>(runs.in_first) + from[1] - r.in_first;
    return r;
  }
  /// Index of the n-th tile of the range.
  LT_HD int operator[](int n) const { return (n < in_first ? first : second) + n; }
};

/// A run of tiles.
struct TileRun {
  int at, rows, block, tiles;
  LT_HD TileRun(const Tiles& t, int run)
      : at(static_cast<int>(run == 0 ? t.p.first : t.p.second)),
        rows(static_cast<int>(run == 0 ? t.p.split : t.p.rows - t.p.split)),
        block(static_cast<int>(t.block)),
        tiles((rows + block - 1) / block) {}
  /// First tile with a row at or after `position`.
  LT_HD int from(int position) const {
    return position >= at + rows ? tiles : position > at ? (position - at) / block : 0;
  }
  /// One past the last tile that begins before `position`.
  LT_HD int until(int position) const {
    const int64_t ahead = position > at ? (int64_t{position} - at + block - 1) / block : 0;
    return ahead < tiles ? static_cast<int>(ahead) : tiles;
  }
};

/// Tiles of keys that some of these queries see.
LT_HD inline TileRange keys_seen(const Tiles& keys, const Mask& mask, const Tile& queries) {
  const int lowest = static_cast<int>(mask.lowest(queries.at));
  int from[2], until[2];
  for (int run = 0; run < 2; ++run) {
    const TileRun r(keys, run);
    from[run] = r.from(lowest), until[run] = r.until(static_cast<int>(queries.at + queries.count));
  }
  return TileRange::of(keys, from, until);
}

/// One past the last number of [from, until) that `seen` accepts. The accepted numbers come first.
struct BinarySearch {
  template <class F>
  LT_HD int operator()(int from, int until, F&& seen) const {
    while (from < until) {
      const int middle = from + (until - from) / 2;
      if (seen(middle)) {
        from = middle + 1;
      } else {
        until = middle;
      }
    }
    return from;
  }
};

/// Tiles of queries that see some of these keys. Documents need a search: if a tile of queries begins in a
/// document after the keys, no later tile sees them.
template <class Search = BinarySearch>
LT_HD inline TileRange queries_that_see(const Tiles& queries, const Mask& mask, const Tile& keys,
                                        Search search = {}) {
  const int64_t end = keys.at + keys.count;
  int from[2], until[2];
  for (int run = 0; run < 2; ++run) {
    const TileRun r(queries, run);
    from[run] = r.from(static_cast<int>(keys.at)), until[run] = r.tiles;
    if (mask.window) {
      const int64_t last = end + mask.window - 1;
      until[run] = r.until(static_cast<int>(last < r.at + r.rows ? last : r.at + r.rows));
    }
    if (mask.documents)
      until[run] = search(from[run], until[run],
                          [&](int tile) { return mask.documents[r.at + tile * r.block] < end; });
  }
  return TileRange::of(queries, from, until);
}

/// Order in which pieces of work start. Heavy tiles come first, so that light tiles fill the end of the
/// kernel. All tiles of `together` units, whose other side fits the L2 cache, come before the next units. A
/// unit is a head, or a key-value head, of a sample.
struct WorkList {
  int units = 0, tiles = 0, together = 1;
  /// `other_bytes`: bytes that the tiles of a unit read of the other side; `sharing`: units that read the
  /// same bytes.
  WorkList(int64_t units, int64_t tiles, int64_t other_bytes, int64_t sharing)
      : units(static_cast<int>(units)),
        tiles(static_cast<int>(tiles)),
        together(static_cast<int>(std::min(units, std::max<int64_t>(kCache / other_bytes, 1) * sharing))) {
    LT_CHECK(units * tiles < int64_t{1} << 31,
             "attention: expected fewer than 2^31 pieces of work, got {} heads of samples with {} tiles each",
             units, tiles);
  }
  LT_HD int pieces() const { return units * tiles; }
  struct Work {
    int tile, unit;
  };
  /// Work of a block. Tile 0 is the heaviest.
  LT_HD Work operator[](unsigned block) const {
    const unsigned size = static_cast<unsigned>(together) * tiles, which = block / size, rest = block % size;
    const int first = static_cast<int>(which) * together, left = units - first;
    const unsigned here = left < together ? left : together;
    return {static_cast<int>(rest / here), first + static_cast<int>(rest % here)};
  }
  static constexpr int64_t kCache = 32 << 20;  ///< part of 40 MB of L2 on A100 and 50 MB on H100 and H200
};

/// Factor of the scores.
template <class A>
LT_HD A score_scale(const AttentionArgs& a) {
  return a.scale > 0 ? A(a.scale) : A(1) / std::sqrt(A(a.head_dim));
}

/// First Philox call for the probabilities of one query. Each call serves four keys.
LT_HD inline uint64_t dropout_call(const AttentionArgs& a, int64_t sample, int64_t head, int64_t query) {
  const uint64_t all = static_cast<uint64_t>(a.drop.sample_index[sample]) * a.all_heads + a.first_head + head;
  return (all * a.seq + query) * static_cast<uint64_t>((a.seq + 3) / 4);
}

}  // namespace ltrain
