// Best-fit packing of whole documents.
#include "runtime/data/packer.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

using ltrain::data::Packer;

namespace {

std::vector<std::vector<int64_t>> packed(int64_t length, const std::vector<int64_t>& sizes) {
  Packer packer(length);
  for (const int64_t size : sizes) packer.add(size);
  std::vector<std::vector<int64_t>> samples;
  packer.flush([&](const std::vector<int64_t>& sample) { samples.push_back(sample); });
  return samples;
}

}  // namespace

TEST_CASE("packing: lengths 4, 2, 3, 1 in samples of 4 are TRL's best-fit decreasing", "[data]") {
  CHECK(packed(4, {4, 2, 3, 1}) == std::vector<std::vector<int64_t>>{{0}, {2, 3}, {1}});
}

TEST_CASE("packing: every document is in one sample, none is cut, and few tokens are padding", "[data]") {
  std::mt19937 random(3);
  std::vector<int64_t> sizes;
  int64_t tokens = 0;
  for (int i = 0; i < 5000; ++i) tokens += sizes.emplace_back(1 + static_cast<int64_t>(random() % 700));
  const auto samples = packed(1024, sizes);
  std::vector<int> seen(sizes.size());
  for (const auto& sample : samples) {
    int64_t sum = 0;
    for (const int64_t d : sample) sum += sizes[d], ++seen[d];
    CHECK(sum <= 1024);
  }
  CHECK(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; }));
  CHECK(static_cast<int64_t>(samples.size()) * 1024 < tokens * 102 / 100);
}
