// Slices of tensors against a brute-force table of indices.
#include "parallel/mesh/sharding.h"

#include <catch2/catch.hpp>

#include <random>
#include <set>
#include <vector>

using namespace ltrain;
using Catch::Contains;

namespace {

using Random = std::mt19937_64;

int64_t draw(Random& g, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(g);
}

Slice random_slice(Random& g, const Shape& shape) {
  Slice s = Slice::whole(shape);
  for (int i = 0; i < shape.rank; ++i) {
    s.offset.dims[i] = draw(g, 0, shape[i]);
    s.extent.dims[i] = draw(g, 0, shape[i] - s.offset[i]);
    if (draw(g, 0, 2) == 0) s.offset.dims[i] = 0, s.extent.dims[i] = shape[i];
  }
  const int64_t n = s.extent.elements();
  s.begin = draw(g, 0, n);
  s.end = draw(g, s.begin, n);
  if (draw(g, 0, 1)) s.begin = 0, s.end = n;
  return s;
}

Shape random_shape(Random& g) {
  Shape shape;
  shape.rank = static_cast<int>(draw(g, 0, 4));
  for (int i = 0; i < shape.rank; ++i) shape.dims[i] = draw(g, 1, 6);
  return shape;
}

/// The whole-tensor index of each element of the slice, in the order of its memory.
std::vector<int64_t> indices(const Slice& s) {
  std::vector<int64_t> all;
  for (int64_t flat = 0; flat < s.global.elements(); ++flat) {
    int64_t rest = flat;
    bool inside = true;
    for (int i = s.global.rank - 1; i >= 0; --i) {
      const int64_t c = rest % s.global[i];
      rest /= s.global[i];
      inside = inside && c >= s.offset[i] && c < s.offset[i] + s.extent[i];
    }
    if (inside) all.push_back(flat);
  }
  return {all.begin() + s.begin, all.begin() + s.end};
}

}  // namespace

TEST_CASE("runs list exactly the elements of a slice, in order", "[sharding]") {
  Random g(1);
  for (int round = 0; round < 3000; ++round) {
    const Slice s = random_slice(g, random_shape(g));
    INFO(to_string(s));
    REQUIRE(invalid_slice(s).empty());
    std::vector<int64_t> found;
    Runs runs(s);
    for (Run r = runs.next(); r.count > 0; r = runs.next()) {
      REQUIRE(r.local == static_cast<int64_t>(found.size()));
      for (int64_t i = 0; i < r.count; ++i) found.push_back(r.global + i);
    }
    REQUIRE(found == indices(s));
  }
}

TEST_CASE("the common elements of two slices are found once each", "[sharding]") {
  Random g(2);
  for (int round = 0; round < 3000; ++round) {
    const Shape shape = random_shape(g);
    const Slice a = random_slice(g, shape), b = random_slice(g, shape);
    const std::vector<int64_t> ia = indices(a), ib = indices(b);
    const std::set<int64_t> sa(ia.begin(), ia.end());
    int64_t expected = 0;
    for (int64_t i : ib) expected += static_cast<int64_t>(sa.count(i));
    int64_t found = 0;
    for_each_common(a, b, [&](int64_t la, int64_t lb, int64_t count) {
      for (int64_t i = 0; i < count; ++i) REQUIRE(ia[la + i] == ib[lb + i]);
      found += count;
    });
    REQUIRE(found == expected);
    REQUIRE(common_elements(a, b) == expected);
  }
}

TEST_CASE("shards, parts and flat pieces tile a tensor", "[sharding]") {
  Random g(3);
  for (int round = 0; round < 500; ++round) {
    Shape shape = random_shape(g);
    if (shape.rank == 0) continue;
    const int parts = static_cast<int>(draw(g, 1, 7)), dim = static_cast<int>(draw(g, 0, shape.rank - 1));
    std::vector<Slice> slices;
    for (int i = 0; i < parts; ++i)
      for (int j = 0; j < 3; ++j) slices.push_back(Slice::shard(shape, dim, i, parts).part(j, 3));
    std::vector<int> count(shape.elements());
    for (const Slice& s : slices)
      for (int64_t i : indices(s)) ++count[i];
    for (int c : count) REQUIRE(c == 1);
    for (size_t i = 0; i < slices.size(); ++i)
      for (size_t j = 0; j < i; ++j) REQUIRE(common_elements(slices[i], slices[j]) == 0);
  }
  CHECK(common_elements(Slice::flat({4, 4}, 0, 9), Slice::flat({4, 4}, 8, 16)) ==
        1);  // negative control: an overlap
}

TEST_CASE("rows are one run, columns are many", "[sharding]") {
  Runs rows(Slice::shard({8, 6}, 0, 1, 2));
  CHECK(rows.next() == Run{24, 0, 24});
  CHECK(rows.next().count == 0);
  Runs columns(Slice::shard({2, 6}, 1, 1, 2));
  CHECK(columns.next() == Run{3, 0, 3});
  CHECK(columns.next() == Run{9, 3, 3});
  CHECK(columns.next().count == 0);
  Runs scalar(Slice::whole(Shape{}));
  CHECK(scalar.next() == Run{0, 0, 1});
}

TEST_CASE("slices from outside are checked", "[sharding]") {
  Slice s = Slice::whole({4, 6});
  CHECK(invalid_slice(s).empty());
  s.offset.dims[0] = 1;
  CHECK_THAT(invalid_slice(s), Contains("box [4, 6] at [1, 0] is outside [4, 6]"));
  s = Slice::whole({4, 6});
  s.end = 25;
  CHECK_THAT(invalid_slice(s), Contains("elements 0 to 25 are outside box [4, 6]"));
  s.end = -1;
  CHECK_FALSE(invalid_slice(s).empty());
  s = Slice::whole({4});
  s.global = Shape{int64_t{1} << 40, int64_t{1} << 40};
  CHECK_FALSE(invalid_slice(s).empty());
  CHECK(checked_elements({int64_t{1} << 40, int64_t{1} << 40}) == -1);
  CHECK(checked_elements({3, -1}) == -1);
  CHECK(checked_elements({int64_t{1} << 40, 0}) == 0);
  s = Slice::whole({8});
  s.offset.dims[0] = INT64_MAX;
  CHECK_FALSE(invalid_slice(s).empty());
}
