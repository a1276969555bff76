// Codes and magnitudes of NF4 in a manifest become one tensor, or are refused.
#include "runtime/checkpoint/nf4_pieces.h"

#include <catch2/catch.hpp>

using namespace ltrain;
using Catch::Contains;

namespace {

/// A matrix (4, 256) in two pieces, as two ranks of tensor parallelism write it.
std::map<std::string, TensorParts> two_pieces() {
  std::map<std::string, TensorParts> all;
  TensorParts codes{DType::u8, {4, 128}, {}}, absmax{DType::f32, {4, 4}, {}};
  for (int rank = 0; rank < 2; ++rank) {
    codes.pieces.push_back({rank, "w", Slice::box({4, 128}, {0, 64 * rank}, {4, 64})});
    absmax.pieces.push_back({rank, "w.absmax", Slice::box({4, 4}, {0, 2 * rank}, {4, 2})});
  }
  all["w"] = codes;
  all["w.absmax"] = absmax;
  all["other"] = {DType::u8, {3}, {{0, "other", Slice::whole({3})}}};
  return all;
}

}  // namespace

TEST_CASE("codes and magnitudes of NF4 are read as one tensor of f32") {
  const auto joined = join_nf4(two_pieces(), "checkpoint");
  REQUIRE(joined.size() == 2);
  const TensorParts& w = joined.at("w");
  CHECK((w.dtype == DType::f32 && w.shape == Shape({4, 256}) && is_nf4(w)));
  CHECK(w.pieces[1].slice == Slice::box({4, 256}, {0, 128}, {4, 128}));
  CHECK((w.pieces[1].order.scales == "w.absmax" && w.pieces[1].order.scales_file == 1));
  CHECK_FALSE(is_nf4(joined.at("other")));
}

TEST_CASE("codes and magnitudes of NF4 that do not belong together are refused by name") {
  const auto refused = [](const char* why, auto change) {
    INFO(why);
    auto tensors = two_pieces();
    change(tensors);
    CHECK_THROWS_WITH(join_nf4(tensors, "checkpoint"),
                      Contains("checkpoint: w and w.absmax are not a matrix in NF4") && Contains(why));
  };
  using Tensors = std::map<std::string, TensorParts>;
  refused("got u8 [4, 128] and f16 [4, 4]", [](Tensors& t) { t["w.absmax"].dtype = DType::f16; });
  refused("in as many pieces", [](Tensors& t) { t["w.absmax"].pieces.pop_back(); });
  refused("its magnitudes are of",
          [](Tensors& t) { std::swap(t["w.absmax"].pieces[0], t["w.absmax"].pieces[1]); });
  refused("its magnitudes are of", [](Tensors& t) { t["w.absmax"].pieces[1].slice.global = {4, 5}; });
  refused("got 36028797018963969", [](Tensors& t) { t["w"].shape = {1, (int64_t{1} << 55) + 1}; });
}
