// Documents in a sequence, and the cut of sequences over context-parallel ranks.
#include <catch2/catch.hpp>

#include "parallel/mesh/context_sharding.h"
#include "runtime/data/batch_loader.h"
#include "runtime/data/indexed_dataset.h"
#include "tests/runtime/data/support.h"

using namespace ltrain;
using namespace ltrain::data;
using namespace ltrain::data::test;
using Catch::Matchers::Contains;

namespace {

/// Documents of lengths 1, 0, 3, 9, 0, 0, 2, ... of counting tokens; the starts of those that are not empty.
std::vector<int64_t> uneven_dataset(const std::string& prefix, int64_t tokens) {
  constexpr int64_t lengths[] = {1, 0, 3, 9, 0, 0, 2, 17, 5};
  std::vector<std::vector<int32_t>> documents;
  std::vector<int64_t> starts;
  for (int64_t at = 0, i = 0; at < tokens; at += documents.back().size(), ++i) {
    documents.emplace_back();
    for (int64_t j = 0; j < lengths[i % 9] && at + j < tokens; ++j)
      documents.back().push_back(static_cast<int32_t>(at + j));
    if (!documents.back().empty()) starts.push_back(at);
  }
  write_dataset(prefix, documents);
  return starts;
}

LoaderOptions packing_options(const std::string& prefix) {
  LoaderOptions o;
  o.sources = {{prefix, 1}};
  o.seq_length = 16;
  o.micro_batch = 2;
  o.global_batch = 4;
  o.seed = 5;
  o.vocab_size = 1 << 20;
  return o;
}

}  // namespace

TEST_CASE("packing: where documents begin in a range", "[data]") {
  TempFolder f;
  const std::vector<int64_t> starts = uneven_dataset(f / "a", 20000);  // more sequences than one index block
  const IndexedDataset data(f / "a");
  REQUIRE(data.info().sequences > 4096);
  std::vector<int64_t> got;
  for (int64_t first : {0, 1, 4, 12, 13, 14, 15000, 19990})
    for (int64_t count : {0, 1, 2, 10}) {
      std::vector<int64_t> want;
      for (int64_t s : starts)
        if (s >= first && s < first + count) want.push_back(s);
      data.document_starts(first, count, got);
      INFO(first << "+" << count);
      CHECK(got == want);
    }
  data.document_starts(0, 20000, got);
  CHECK(got == starts);
  CHECK_THROWS(data.document_starts(19995, 6, got));
}

TEST_CASE("packing: a document is seen alone, and its positions begin at 0", "[data]") {
  TempFolder f;
  const std::vector<int64_t> starts = uneven_dataset(f / "a", 2000);
  LoaderOptions o = packing_options(f / "a");
  o.packing.attention_mask = o.packing.position_ids = true;
  BatchLoader loader(o, 0);
  Batch batch;
  for (int step = 0; step < 20; ++step) {
    loader.next(batch);
    REQUIRE(batch.documents.size() == 32);
    REQUIRE(batch.position_ids.size() == 32);
    for (int64_t i = 0; i < 32; ++i) {
      const int64_t t = i % 16, first = batch.tokens[i - t];  // tokens are their own places in the stream
      int64_t start = first;
      for (int64_t s : starts)
        if (s <= first + t) start = std::max(start, s);
      REQUIRE(batch.documents[i] == start - first);
      REQUIRE(batch.position_ids[i] == first + t - start);
      REQUIRE(batch.targets[i] == batch.tokens[i] + 1);  // across an end too
    }
  }
}

TEST_CASE("packing: a sequence shorter than a sample is seen alone, by the mix of its sample", "[data]") {
  TempFolder f;
  const std::vector<int64_t> starts = uneven_dataset(f / "a", 2000);
  LoaderOptions o = packing_options(f / "a");
  o.packing.attention_mask = o.packing.position_ids = o.packing.mask_loss = true;
  o.mtp_tokens = 1;
  o.first_sequence = 4;
  o.stages = {{8, {{f / "a", 1}}, 8}, {16, {{f / "a", 1}}, 0}};
  BatchLoader loader(o, 0);
  Batch batch;
  int64_t cut = 0, whole = 0;
  for (int step = 0; step < 20; ++step) {
    loader.next(batch);
    for (int64_t i = 0; i < 32; ++i) {
      const int64_t sample = batch.sample_index[i / 16], length = sample < 8 ? 4 : sample < 16 ? 8 : 16;
      const int64_t t = i % 16, first = batch.tokens[i - t];  // tokens are their own places in the stream
      const auto start_of = [&](int64_t at) {
        int64_t start = first + at / length * length;
        for (int64_t s : starts)
          if (s <= first + at) start = std::max(start, s);
        return start;
      };
      const auto ends = [&](int64_t at) {
        return std::find(starts.begin(), starts.end(), first + at + 1) != starts.end();
      };
      REQUIRE(batch.documents[i] == start_of(t) - first);
      REQUIRE(batch.position_ids[i] == first + t - start_of(t));
      // The end of a sequence predicts the next token, and the end of a document does not.
      REQUIRE(batch.targets[i] == (ends(t) ? -1 : batch.tokens[i] + 1));
      const bool together = t + 1 < 16 && start_of(t + 1) == start_of(t);
      REQUIRE(batch.mtp_targets[i] == (together && !ends(t + 1) ? batch.tokens[i] + 2 : -1));
      cut += start_of(t) == first + 4 && length == 4, whole += length == 16 && t > 8 && start_of(t) == first;
    }
  }
  CHECK(cut > 0);
  CHECK(whole > 0);
  o.packing.position_ids = false;
  CHECK_THROWS(BatchLoader(o, 0));
}

TEST_CASE("packing: an end-of-document token ends its document, as in Megatron-LM", "[data]") {
  TempFolder f;
  std::vector<int32_t> tokens(400);
  for (int i = 0; i < 400; ++i) tokens[i] = i % 7 == 3 ? 99 : i % 7;
  write_dataset(f / "a", {tokens});  // the index knows of one document
  LoaderOptions o = packing_options(f / "a");
  o.packing.position_ids = true;
  o.packing.eod = 99;
  for (bool mask_loss : {false, true}) {
    o.packing.mask_loss = mask_loss;
    BatchLoader loader(o, 0);
    Batch batch;
    for (int step = 0; step < 8; ++step) {
      loader.next(batch);
      CHECK(batch.documents.empty());
      for (int64_t i = 0; i < 32; ++i) {
        // _get_ltor_masks_and_position_ids: positions go on up to the token, and begin again behind it.
        int64_t position = 0;
        for (int64_t j = i - i % 16; j < i; ++j) position = batch.tokens[j] == 99 ? 0 : position + 1;
        REQUIRE(batch.position_ids[i] == position);
        REQUIRE((batch.targets[i] == -1) == (mask_loss && batch.tokens[i] == 99));
      }
    }
  }
}

TEST_CASE("packing: the parts of context-parallel ranks make the whole batch", "[data]") {
  TempFolder f;
  uneven_dataset(f / "a", 3000);
  LoaderOptions o = packing_options(f / "a");
  o.packing = {true, true, true, -1};
  BatchLoader whole_loader(o, 0);
  Batch whole, part;
  for (ContextComm comm : {ContextComm::p2p, ContextComm::all_gather, ContextComm::a2a}) {
    for (int ranks : {2, 4}) {
      BatchLoader reference(o, 0);
      reference.next(whole);
      int64_t covered = 0;
      for (int r = 0; r < ranks; ++r) {
        LoaderOptions mine = o;
        mine.rows = ContextSharding{16, ranks, r, comm}.rows();
        BatchLoader loader(mine, 0);
        loader.next(part);
        REQUIRE(static_cast<int64_t>(part.tokens.size()) == 2 * 16 / ranks);
        CHECK(part.documents == whole.documents);
        CHECK(part.sample_index == whole.sample_index);
        for (int64_t b = 0; b < 2; ++b)
          for (int64_t row = 0; row < mine.rows->rows; ++row) {
            const int64_t i = b * mine.rows->rows + row, j = b * 16 + mine.rows->at(row);
            REQUIRE(part.tokens[i] == whole.tokens[j]);
            REQUIRE(part.targets[i] == whole.targets[j]);
            REQUIRE(part.position_ids[i] == whole.position_ids[j]);
            ++covered;
          }
        CHECK(loader_buffer_bytes(mine) < loader_buffer_bytes(o));
      }
      CHECK(covered == 32);
    }
  }
  LoaderOptions wrong = o;
  wrong.rows = Positions(8);
  CHECK_THAT(error_of([&] { BatchLoader loader(wrong, 0); }),
             Contains("64: data: 8 rows of sequences of 8, but seq_length is 16"));
}
