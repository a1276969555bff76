// How attention cuts queries and keys, on every device.
#pragma once
#include <cmath>

#include "kernels/attention/attention.h"
#include "kernels/tensor/host_device.h"

namespace ltrain {

/// Rows [row, row + count) of a sample, at consecutive positions from `at` on.
struct Tile {
  int64_t row, count, at;
};

/// Cuts rows into tiles of at most `block`, none of them across the gap between two runs.
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

/// What a query of the sample may look at.
struct Mask {
  const int32_t* documents;  ///< of the sample, or null
  int64_t window;            ///< 0: none
  LT_HD Mask(const AttentionArgs& a, int64_t sample)
      : documents(a.documents ? a.documents + sample * a.seq : nullptr), window(a.window) {}
  /// The first key that the query sees; does not descend from query to query.
  LT_HD int64_t lowest(int64_t query) const {
    const int64_t document = documents ? documents[query] : 0;
    const int64_t in_window = window ? query - window + 1 : 0;
    return document > in_window ? document : in_window;
  }
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

/// What products of queries and keys are multiplied by.
template <class A>
LT_HD A score_scale(const AttentionArgs& a) {
  return a.scale > 0 ? A(a.scale) : A(1) / std::sqrt(A(a.head_dim));
}

/// The first Philox call of the probabilities of one query; four keys come from each.
LT_HD inline uint64_t dropout_call(const AttentionArgs& a, int64_t sample, int64_t head, int64_t query) {
  const uint64_t all = static_cast<uint64_t>(a.drop.sample_index[sample]) * a.all_heads + a.first_head + head;
  return (all * a.seq + query) * static_cast<uint64_t>((a.seq + 3) / 4);
}

}  // namespace ltrain
