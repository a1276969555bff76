#include "parallel/mesh/context_sharding.h"

#include <catch2/catch.hpp>
#include <set>

#include "base/error.h"

using namespace ltrain;

namespace {

std::vector<ContextSharding> all_cuts(int64_t seq) {
  std::vector<ContextSharding> cuts;
  for (int ranks : {1, 2, 4, 8})
    for (const char* name : {"p2p", "all_gather", "a2a", "a2a+p2p"})
      for (int inner : {1, 2, 4, 8}) {
        ContextSharding c{seq, ranks, 0, enum_value<ContextComm>(name).value(), inner};
        if ((c.comm == ContextComm::a2a_p2p ? ranks % inner : inner > 1) || seq % c.unit()) continue;
        for (c.rank = 0; c.rank < ranks; ++c.rank) cuts.push_back(c);
      }
  return cuts;
}

}  // namespace

TEST_CASE("one context rank exchanges with nobody, whatever the groups would be") {
  for (const ContextComm comm :
       {ContextComm::p2p, ContextComm::all_gather, ContextComm::a2a, ContextComm::a2a_p2p}) {
    const ContextSharding alone{.seq = 48, .ranks = 1, .rank = 0, .comm = comm, .inner_ranks = 2};
    CHECK(alone.exchange() == 1);
    CHECK(alone.rings() == 1);
    CHECK(alone.exchanged_rows_of(0).rows == 48);
  }
}

TEST_CASE("every position is on one rank, and on one ring") {
  for (const ContextSharding& c : all_cuts(48)) {
    if (c.rank) continue;
    std::set<int64_t> seen, of_rings;
    for (int r = 0; r < c.ranks; ++r) {
      const Positions p = c.rows_of(r), e = c.exchanged_rows_of(r);
      CHECK(p.rows == 48 / c.ranks);
      CHECK(e.rows == 48 / c.rings());
      for (int64_t i = 0; i < p.rows; ++i) {
        CHECK(seen.insert(p.at(i)).second);
        CHECK(e.row_of(p.at(i)) >= 0);
      }
      if (r % c.exchange() == 0)
        for (int64_t i = 0; i < e.rows; ++i) {
          CHECK(of_rings.insert(e.at(i)).second);
          if (i) CHECK(e.at(i) > e.at(i - 1));
        }
    }
    CHECK(seen.size() == 48);
    CHECK(of_rings.size() == 48);
  }
}

TEST_CASE("zig-zag: rank r has chunks r and 2P-1-r") {
  const ContextSharding c{24, 3, 1, ContextComm::p2p};
  const Positions p = c.rows();
  CHECK((p.first == 4 && p.split == 4 && p.second == 16 && p.rows == 8));
  CHECK(c.unit() == 6);
  CHECK_FALSE((ContextSharding{24, 3, 1, ContextComm::a2a}).zig_zag());
  CHECK((ContextSharding{24, 3, 1, ContextComm::all_gather}).zig_zag());
  CHECK_FALSE((ContextSharding{9, 3, 1, ContextComm::all_gather}).zig_zag());
  CHECK_THROWS_AS((ContextSharding{9, 3, 1, ContextComm::p2p}).rows(), Error);
  CHECK_FALSE(enum_value<ContextComm>("ring"));
}

TEST_CASE("rows in order, and back, are each other's inverse") {
  for (const ContextSharding& c : all_cuts(48)) {
    std::vector<Positions> pieces;
    for (int i = 0; i < c.exchange(); ++i)
      pieces.push_back(c.rows_of(c.rank / c.exchange() * c.exchange() + i));
    const Positions whole = c.exchanged_rows_of(c.rank);
    std::set<int64_t> from, to;
    for (const CopyRectangle& p : rows_in_order(pieces, whole, 3, 5)) {
      CHECK(p.cols == 5);
      for (int64_t r = 0; r < p.rows; ++r) {
        CHECK(from.insert(p.from_row + r).second);
        CHECK(to.insert(p.to_row + r).second);
        // Row of piece, sample, row of the sample -> the same position.
        const int64_t rows = pieces[0].rows, piece = (p.from_row + r) / (3 * rows),
                      sample = (p.from_row + r) / rows % 3, row = (p.from_row + r) % rows;
        CHECK((p.to_row + r) / whole.rows == sample);
        CHECK(whole.at((p.to_row + r) % whole.rows) == pieces[piece].at(row));
      }
    }
    CHECK(static_cast<int64_t>(from.size()) == 3 * whole.rows);
    CHECK(static_cast<int64_t>(to.size()) == 3 * whole.rows);
  }
}

TEST_CASE("columns in pieces: each gets its share of every run") {
  const auto parts = columns_in_pieces(2, 7, {{0, 8}, {8, 4}, {12, 4}});
  REQUIRE(parts.size() == 6);
  const CopyRectangle& last = parts[5];  // values of the second piece
  CHECK((last.rows == 7 && last.cols == 2 && last.from_col == 14 && last.to_row == 7 && last.to_col == 6));
  const CopyRectangle back = reversed(parts)[5];
  CHECK((back.from_row == 7 && back.from_col == 6 && back.to_row == 0 && back.to_col == 14));
  CHECK_THROWS_AS(columns_in_pieces(3, 7, {{0, 8}}), Error);
}
