#include "runtime/data/staged_order.h"

#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "runtime/data/source_union.h"

using namespace ltrain;
using namespace ltrain::data;

namespace {

SampleRef sample_of(const StagedOrder& order, int64_t g, const std::vector<int64_t>& samples, uint64_t seed) {
  const Blend::Draw draw = order(g);
  return drawn_sample(draw.source, draw.index, samples[static_cast<size_t>(draw.source)], seed, true);
}

std::pair<int64_t, int64_t> place(const SampleRef& r, const std::vector<int64_t>& samples) {
  return {r.source, r.epoch * samples[static_cast<size_t>(r.source)] + r.sample};
}

}  // namespace

TEST_CASE("stages: one stage is the order without stages", "[data]") {
  const std::vector<int64_t> samples{7, 11, 5};
  const std::vector<double> weights{0.5, 0.3, 0.2};
  const SampleOrder plain(samples, weights, 42);
  const StagedOrder staged(3, {{0, {0, 1, 2}, weights}});
  for (int64_t g = 0; g < 500; ++g)
    CHECK(place(plain(g), samples) == place(sample_of(staged, g, samples, 42), samples));
}

TEST_CASE("stages: a source goes on where an earlier stage left it, and its epochs are whole", "[data]") {
  const std::vector<int64_t> samples{10, 1000, 1000};
  // Source 0 gives 6 of the first 12 samples, none of the next 20, and all later ones.
  const StagedOrder order(3, {{0, {0, 1}, {1, 1}}, {12, {1, 2}, {1, 3}}, {32, {0}, {1}}});
  std::map<int64_t, std::set<int64_t>> epochs;  // samples of source 0
  std::map<int, int> in_stage;
  for (int64_t g = 0; g < 46; ++g) {
    const SampleRef r = sample_of(order, g, samples, 7);
    if (g >= 12 && g < 32) ++in_stage[r.source];
    if (r.source != 0) continue;
    CHECK(epochs[r.epoch].insert(r.sample).second);
  }
  CHECK(in_stage == std::map<int, int>{{1, 5}, {2, 15}});
  CHECK(epochs[0].size() == 10);
  CHECK(epochs[1].size() == 10);
  CHECK(order.draws_before(0, 12) == 6);
  CHECK(order.draws_before(0, 32) == 6);
  CHECK(order.draws_before(0, 46) == 20);
  CHECK(order.draws_before(1, 46) == 11);
}

TEST_CASE("stages: a later stage changes no earlier sample", "[data]") {
  const StagedOrder whole(3, {{0, {0, 1}, {2, 1}}}), staged(3, {{0, {0, 1}, {2, 1}}, {25, {2}, {1}}});
  for (int64_t g = 0; g < 25; ++g)
    CHECK((whole(g).source == staged(g).source && whole(g).index == staged(g).index));
  CHECK(staged(25).source == 2);
}

TEST_CASE("stages: the files of all mixes are numbered once, those of the first one first", "[data]") {
  const SourceUnion all = union_of({{"a", 1}, {"b", 2}}, {{8, {{"c", 1}, {"b.bin", 5}}}, {16, {{"c", 1}}}});
  CHECK(all.paths == std::vector<std::string>{"a", "b", "c"});
  REQUIRE(all.stages.size() == 3);
  CHECK(all.stages[1].sources == std::vector<int>{2, 1});
  CHECK(all.stages[1].weights == std::vector<double>{1, 5});
  CHECK(all.stages[2].sources == std::vector<int>{2});
}
