// The order of the axes: every order gives each rank its own coordinates, and neighbours along the innermost.
#include "parallel/mesh/mesh.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <set>

#include "base/error.h"

using namespace ltrain;

TEST_CASE("the order of the axes is a permutation of four", "[mesh]") {
  std::string error;
  const auto rejected = [&](const char* text) { return parse_axis_order(text, error), error; };
  CHECK(parse_axis_order("tp-cp-dp-pp", error) == kAxisOrder);
  CHECK(error == "");
  CHECK(parse_axis_order("pp-tp-dp-cp", error)[0] == Axis::pipeline);
  CHECK(rejected("pp-tp-dp-cp") == "");
  CHECK(parse_axis_order("tp-cp-ep-dp-pp", error) == kAxisOrder);
  CHECK(error == "");
  CHECK(rejected("tp-cp-ep-dp-ep-pp") == "\"ep\" is none of tp, cp, dp, pp");
  for (const char* text : {"tp-cp-dp-pp-ep", "ep", "tp-ep-", "tp-ep-pp"})
    CHECK(rejected(text) == "ep is the inner part of dp and must be right before it");
  CHECK(rejected("tp-cp-dp") == "pp is missing");
  CHECK(rejected("tp-dp") == "cp and pp are missing");
  CHECK(rejected("tp-tp-dp-pp") == "tp is a duplicate");
  CHECK(rejected("tp-cp-dp-pp-tp") == "tp is a duplicate");
  CHECK(rejected("tp-cp-dp-xp") == "\"xp\" is none of tp, cp, dp, pp");
  CHECK(rejected("") == "\"\" is none of tp, cp, dp, pp");
  CHECK(rejected("tp-cp-dp-pp-") == "\"\" is none of tp, cp, dp, pp");
}

TEST_CASE("a mesh of any order: groups partition the ranks, and hold one rank for each coordinate",
          "[mesh]") {
  const char* orders[] = {"tp-cp-dp-pp", "tp-cp-pp-dp", "dp-tp-pp-cp", "pp-dp-cp-tp"};
  for (const char* text : orders) {
    INFO(text);
    std::string error;
    Mesh m;
    m.degree = {2, 3, 2, 4, 1, 1, 1, 1, 1};
    m.order = parse_axis_order(text, error);
    std::set<std::vector<int>> places;
    for (m.rank = 0; m.rank < m.world(); ++m.rank) {
      std::vector<int> at;
      for (int a = 0; a < kAxisCount; ++a) {
        const Axis axis = static_cast<Axis>(a);
        at.push_back(m.coordinate(axis));
        const std::vector<int> group = m.group(axis);
        REQUIRE(static_cast<int>(group.size()) == m.size(axis));
        CHECK(m.place_in(axis) == m.coordinate(axis));
        for (int c = 0; c < m.size(axis); ++c) CHECK(m.at(axis, c) == group[c]);
      }
      places.insert(at);
    }
    CHECK(static_cast<int>(places.size()) == m.world());
    // Neighbours along the innermost axis.
    m.rank = 0;
    CHECK(m.at(m.order[0], 1) == 1);
  }
}

TEST_CASE("by default tensor groups are neighbours and stages are furthest apart", "[mesh]") {
  Mesh m;
  m.degree = {2, 2, 1, 2, 1, 1, 1, 1, 1};
  CHECK(m.group(Axis::tensor) == std::vector<int>{0, 1});
  CHECK(m.group(Axis::data) == std::vector<int>{0, 2});
  CHECK(m.group(Axis::pipeline) == std::vector<int>{0, 4});
}

TEST_CASE(
    "tensor parallelism in two and three dimensions: rank = column + q (row + q depth), or depth + l (row + "
    "l column)",
    "[mesh]") {
  Mesh m;
  m.cut_tensor(TensorMode::two_d, 8, 2);
  CHECK((m.size(Axis::depth) == 2 && m.size(Axis::row) == 2 && m.size(Axis::column) == 2));
  CHECK((m.size(Axis::tensor) == 1 && m.sequence_parts() == 4 && m.inner_axis() == Axis::column));
  for (m.rank = 0; m.rank < 8; ++m.rank)
    CHECK(m.rank ==
          m.coordinate(Axis::column) + 2 * (m.coordinate(Axis::row) + 2 * m.coordinate(Axis::depth)));
  Mesh c;
  c.degree[static_cast<int>(Axis::data)] = 2;
  c.cut_tensor(TensorMode::three_d, 27);
  CHECK((c.sequence_parts() == 9 && c.inner_axis() == Axis::row && c.world() == 54));
  for (c.rank = 0; c.rank < 27; ++c.rank)
    CHECK(c.rank ==
          c.coordinate(Axis::depth) + 3 * (c.coordinate(Axis::row) + 3 * c.coordinate(Axis::column)));
  c.rank = 28;
  CHECK(c.coordinate(Axis::data) == 1);
  CHECK(c.group(Axis::depth) == std::vector<int>{27, 28, 29});
  Mesh line;
  for (const TensorMode mode : {TensorMode::two_d, TensorMode::three_d}) {  // one rank has no grid
    line.cut_tensor(mode, 1, 2);
    CHECK((line.tensor_mode == TensorMode::one_d && line.order == kAxisOrder));
  }
  line.cut_tensor(TensorMode::one_d, 6);
  CHECK((line.size(Axis::tensor) == 6 && line.sequence_parts() == 1 && line.inner_axis() == Axis::tensor));
  CHECK_THROWS_AS(line.cut_tensor(TensorMode::two_d, 6), Error);
  CHECK_THROWS_AS(line.cut_tensor(TensorMode::two_d, 8, 3), Error);
  CHECK_THROWS_AS(line.cut_tensor(TensorMode::three_d, 9), Error);
}

TEST_CASE("two levels: inside groups are neighbours, across groups have one rank of each", "[mesh]") {
  for (const auto& [order, ranks] :
       {std::pair("tp-cp-dp-pp", 4), {"tp-cp-dp-pp", 2}, {"dp-cp-tp-pp", 2}, {"pp-cp-dp-tp", 8}}) {
    std::string error;
    Mesh m;
    m.degree = {4, 2, 2, 2, 1, 1, 1, 1, 1};
    m.order = parse_axis_order(order, error);
    const Mesh flat = m;
    INFO(order << ", " << ranks);
    REQUIRE(m.split_levels(ranks) == "");
    CHECK(m.world() == flat.world());
    CHECK(m.two_levels() == (ranks < 8));
    for (m.rank = 0; m.rank < m.world(); ++m.rank) {
      Mesh before = flat;
      before.rank = m.rank;
      const std::vector<int> all = before.group(Axis::data | Axis::context), inside = m.group(m.shard);
      CHECK(m.group(kGradientAxes) == all);
      CHECK(m.place_in(kDataAxes) == before.coordinate(Axis::data));
      // Consecutive ones of all.
      const auto first = std::find(all.begin(), all.end(), inside.front()) - all.begin();
      CHECK(first % ranks == 0);
      CHECK(std::vector<int>(all.begin() + first, all.begin() + first + ranks) == inside);
      const std::vector<int> across = m.group(m.replicate());
      CHECK(static_cast<int>(across.size()) == 8 / ranks);
      for (int rank : across) {
        Mesh other = m;
        other.rank = rank;
        CHECK(other.place_in(m.shard) == m.place_in(m.shard));
      }
    }
  }
}
