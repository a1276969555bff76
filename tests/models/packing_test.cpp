// A document in a packed sample is what it would be alone.
#include <catch2/catch.hpp>
#include <cmath>

#include "tests/models/program_rank.h"
#include "tests/support/tiny_job.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

constexpr int64_t kPackedSeq = 100, kFirst = 37,
                  kLength = 41;  // the document in the middle, over several tiles

struct PackedRank : ProgramRank {
  using ProgramRank::ProgramRank;
  double loss(const HostBatch& batch) {
    bool more = true;
    return program.evaluate([&] { return std::exchange(more, false) ? &batch : nullptr; });
  }
};

/// The document's tokens at `first` of a sample, others around it; only its own targets count.
HostBatch packed_sample(const TinyOptions& o, int64_t first, int64_t others) {
  const std::vector<int32_t> text = tiny_sample(o, 1), around = tiny_sample(o, others);
  HostBatch b;
  for (int64_t t = 0; t < kPackedSeq; ++t) {
    const bool inside = t >= first && t < first + kLength;
    b.tokens.push_back(inside ? text[t - first] : around[t]);
    b.targets.push_back(inside ? text[t - first + 1] : -1);
    b.documents.push_back(static_cast<int32_t>(inside ? first : t < first ? 0 : first + kLength));
    b.position_ids.push_back(static_cast<int32_t>(t) - b.documents.back());
  }
  b.sample_index = {0};
  return b;
}

}  // namespace

TEST_CASE("a packed document has the loss that it has alone") {
  TinyOptions o;
  o.architecture = GENERATE(as<std::string>(), "llama", "gpt2");
  o.seq = kPackedSeq;
  o.global_batch = 1;
  ProgramOptions p = tiny_program(o);
  p.documents = p.position_ids = true;
  PackedRank packed(p);
  const double alone = packed.loss(packed_sample(o, 0, 5));
  CHECK(std::abs(packed.loss(packed_sample(o, kFirst, 5)) - alone) < 1e-13);
  CHECK(std::abs(packed.loss(packed_sample(o, kFirst, 6)) - alone) < 1e-13);  // whatever lies around it
  // Negative controls: without the mask, and without positions of its own.
  p.documents = false;
  CHECK(std::abs(PackedRank(p).loss(packed_sample(o, kFirst, 5)) - alone) > 1e-4);
  p.documents = true, p.position_ids = false;
  const double moved = std::abs(PackedRank(p).loss(packed_sample(o, kFirst, 5)) - alone);
  CHECK((o.architecture == "gpt2" ? moved > 1e-4 : moved < 1e-6));  // rotary positions are relative
}
