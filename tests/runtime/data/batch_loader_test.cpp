#include "runtime/data/batch_loader.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <map>
#include <set>
#include <thread>

#include "base/error.h"
#include "tests/runtime/data/support.h"

using namespace ltrain;
using namespace ltrain::data;
using namespace ltrain::data::test;
using Catch::Matchers::Contains;

namespace {

/// Documents of consecutive numbers, so that each token tells its place.
void counting_dataset(const std::string& prefix, int tokens, int first = 0) {
  std::vector<std::vector<int32_t>> documents;
  for (int at = 0, length = 1; at < tokens; at += length, length = length % 13 + 1) {
    documents.emplace_back();
    for (int i = at; i < std::min(tokens, at + length); ++i) documents.back().push_back(first + i);
  }
  write_dataset(prefix, documents);
}

LoaderOptions loader_options(const std::string& prefix) {
  LoaderOptions o;
  o.sources = {{prefix, 1}};
  o.seq_length = 8;
  o.micro_batch = 2;
  o.global_batch = 8;
  o.seed = 5;
  o.vocab_size = 100000;
  return o;
}

struct Row {
  std::vector<int32_t> tokens, targets;
  bool operator==(const Row&) const = default;
};

/// Rows by global sample index of `steps` steps on all ranks.
std::map<int64_t, Row> collect(LoaderOptions o, int64_t first, int steps) {
  std::map<int64_t, Row> rows;
  for (o.dp_rank = 0; o.dp_rank < o.dp_size; ++o.dp_rank) {
    BatchLoader loader(o, first);
    Batch batch;
    for (int64_t m = 0; m < steps * loader.micro_steps(); ++m) {
      loader.next(batch);
      for (int64_t b = 0; b < o.micro_batch; ++b) {
        const auto t = batch.tokens.begin() + b * o.seq_length, u = batch.targets.begin() + b * o.seq_length;
        const bool fresh =
            rows.emplace(batch.sample_index[b], Row{{t, t + o.seq_length}, {u, u + o.seq_length}}).second;
        REQUIRE(fresh);
      }
    }
    REQUIRE(loader.cursor() == first + steps * o.global_batch);
  }
  return rows;
}

}  // namespace

TEST_CASE("loader: rows are consecutive tokens and their targets", "[data]") {
  TempFolder f;
  counting_dataset(f / "a", 1000);
  for (const auto& [index, row] : collect(loader_options(f / "a"), 0, 3)) {
    CHECK(row.tokens[0] % 8 == 0);
    for (int i = 0; i < 8; ++i) {
      REQUIRE(row.tokens[i] == row.tokens[0] + i);
      REQUIRE(row.targets[i] == row.tokens[i] + 1);
    }
  }
}

TEST_CASE("loader: tokens beyond the next end with the sample, and with the document where it is alone",
          "[data]") {
  TempFolder f;
  counting_dataset(f / "a", 1000);
  LoaderOptions o = loader_options(f / "a");
  o.mtp_tokens = 2;
  int crossing = 0, ends = 0;
  for (const bool apart : {false, true})
    for (const bool mask : {false, true}) {
      o.packing.attention_mask = apart;
      o.packing.mask_loss = mask;
      BatchLoader loader(o, 0);
      Batch b;
      for (int64_t m = 0; m < 2 * loader.micro_steps(); ++m) {
        loader.next(b);
        const size_t rows = b.tokens.size();
        REQUIRE(b.mtp_tokens.size() == 2 * rows);
        REQUIRE(b.mtp_targets.size() == 2 * rows);
        for (size_t row = 0; row < rows; ++row)
          for (size_t k = 1; k <= 2; ++k) {
            const size_t t = row % 8, i = (k - 1) * rows + row;
            const int32_t token = b.tokens[row] + static_cast<int32_t>(k);
            CHECK(b.mtp_tokens[i] == (t + k <= 8 ? token : 0));
            bool counted = t + k < 8;
            ends += !counted;
            if (counted && apart && b.documents[row + k] != b.documents[row]) counted = false, ++crossing;
            // Masked targets may not appear: each is the first token of another document.
            for (size_t on = 0; counted && mask && on <= k; ++on) counted = b.targets[row + on] >= 0;
            CHECK(b.mtp_targets[i] == (counted ? token + 1 : -1));
          }
      }
      CHECK(loader_buffer_bytes(o) > loader_buffer_bytes(loader_options(f / "a")));
    }
  CHECK(crossing > 50);
  CHECK(ends > 50);
}

TEST_CASE("loader: every data-parallel size sees the same global batches", "[data]") {
  TempFolder f;
  counting_dataset(f / "a", 1000);
  LoaderOptions o = loader_options(f / "a");
  const auto one = collect(o, 0, 5);
  CHECK(one.size() == 40);
  CHECK(one.begin()->first == 0);
  CHECK(one.rbegin()->first == 39);
  for (int dp : {2, 4}) {
    o.dp_size = dp;
    CHECK(collect(o, 0, 5) == one);
  }
  o.micro_batch = 1;
  o.prefetch = 1;
  o.dp_size = 8;
  CHECK(collect(o, 0, 5) == one);
  o.seed = 6;
  CHECK_FALSE(collect(o, 0, 5) == one);
}

TEST_CASE("loader: the row rule", "[data]") {
  TempFolder f;
  counting_dataset(f / "a", 1000);
  LoaderOptions o = loader_options(f / "a");
  o.dp_size = 2;
  o.dp_rank = 1;
  BatchLoader loader(o, 80);
  Batch batch;
  CHECK(loader.micro_steps() == 2);
  for (int64_t step = 0; step < 3; ++step)
    for (int64_t k = 0; k < 2; ++k) {
      CHECK(loader.cursor() == 80 + step * 8);
      loader.next(batch);
      for (int64_t b = 0; b < 2; ++b) CHECK(batch.sample_index[b] == 80 + step * 8 + (k * 2 + 1) * 2 + b);
    }
  CHECK(loader.cursor() == 104);
}

TEST_CASE("loader: each sample once an epoch", "[data]") {
  TempFolder f;
  counting_dataset(f / "a", 8 * 32 + 5);  // 32 samples: 4 steps an epoch
  const LoaderOptions o = loader_options(f / "a");
  CHECK(BatchLoader(o, 0).total_samples_per_epoch() == 32);
  const auto rows = collect(o, 0, 12);
  for (int epoch = 0; epoch < 3; ++epoch) {
    std::set<int32_t> starts;
    for (int64_t g = epoch * 32; g < epoch * 32 + 32; ++g) starts.insert(rows.at(g).tokens[0]);
    CHECK(starts.size() == 32);
    CHECK(*starts.begin() == 0);
    CHECK(*starts.rbegin() == 31 * 8);
  }
}

TEST_CASE("loader: going on at the cursor equals not having stopped", "[data]") {
  TempFolder f;
  counting_dataset(f / "a", 500);
  counting_dataset(f / "b", 300, 50000);
  LoaderOptions o = loader_options(f / "a");
  o.sources = {{f / "a", 0.7}, {f / "b", 0.3}};
  const auto whole = collect(o, 0, 30);
  auto first = collect(o, 0, 11);
  o.dp_size = 2;  // and on other ranks
  first.merge(collect(o, 11 * 8, 19));
  CHECK(first == whole);
  int64_t from_b = 0;
  for (const auto& [g, row] : whole) from_b += row.tokens[0] >= 50000;
  CHECK(from_b == 72);  // 240 samples, 24 periods of 3 in 10
}

TEST_CASE("loader: evaluation walks the samples in order, each once", "[data]") {
  TempFolder f;
  counting_dataset(f / "a", 8 * 13 + 1);
  LoaderOptions o = loader_options(f / "a");
  o.eval = true;
  for (int64_t limit : {0, 10, 99}) {
    o.eval_samples = limit;
    const int64_t expected = limit == 10 ? 10 : 13;
    for (o.dp_size = 1; o.dp_size <= 4; o.dp_size *= 2) {
      std::map<int64_t, int32_t> starts;
      int64_t padding = 0;
      for (o.dp_rank = 0; o.dp_rank < o.dp_size; ++o.dp_rank) {
        BatchLoader loader(o, 0);
        CHECK(loader.eval_samples() == expected);
        Batch batch;
        for (int64_t m = 0; m < 2 * loader.micro_steps(); ++m) {
          loader.next(batch);
          for (int b = 0; b < 2; ++b) {
            if (batch.sample_index[b] >= 0) {
              starts[batch.sample_index[b]] = batch.tokens[b * 8];
              continue;
            }
            ++padding;
            for (int i = 0; i < 8; ++i) REQUIRE(batch.targets[b * 8 + i] == -1);
          }
        }
      }
      o.dp_rank = 0;
      CHECK(static_cast<int64_t>(starts.size()) == expected);
      CHECK(padding == 16 - expected);
      for (const auto& [g, start] : starts) CHECK(start == 8 * g);
    }
  }
}

TEST_CASE("loader: what cannot be trained on is refused before the first batch", "[data]") {
  TempFolder f;
  counting_dataset(f / "a", 100);
  write_dataset(f / "empty", {});
  const LoaderOptions good = loader_options(f / "a");
  auto error = [&](auto change, int64_t first = 0) {
    LoaderOptions o = good;
    change(o);
    return error_of([&] { BatchLoader loader(o, first); });
  };
  CHECK(error([](LoaderOptions&) {}) == "");
  CHECK_THAT(error([](auto& o) { o.seq_length = 100; }),
             Contains("65: ") && Contains("seq_length of at most 99"));
  CHECK(error([](auto& o) { o.seq_length = 99; }) == "");
  CHECK_THAT(error([&](auto& o) { o.sources = {{f / "empty", 1}}; }), Contains("0 tokens are shorter"));
  CHECK_THAT(error([&](auto& o) { o.sources = {{f / "no", 1}}; }), Contains("no.idx: not found"));
  CHECK_THAT(error([&](auto& o) { o.sources.clear(); }), Contains("64: "));
  CHECK_THAT(error([](auto& o) { o.global_batch = 9; }), Contains("the next that is: 10"));
  CHECK_THAT(error([](auto& o) { o.sources[0].weight = 0; }), Contains("64: ") && Contains("weight 0"));
  CHECK_THAT(error([](auto& o) { o.dp_rank = 1; }), Contains("dp_rank 1 of 1"));
  CHECK_THAT(error([](auto& o) { o.micro_batch = 0; }), Contains("micro_batch is 0"));
  CHECK_THAT(error([](auto&) {}, -1), Contains("first sample is -1"));
}

TEST_CASE("loader: a token outside the vocabulary is an error of next", "[data]") {
  TempFolder f;
  std::vector<int32_t> tokens(1000, 1);
  tokens[500] = 60000;
  write_dataset(f / "a", {tokens});
  LoaderOptions o = loader_options(f / "a");
  o.vocab_size = 50257;
  BatchLoader loader(o, 0);
  Batch batch;
  const std::string error = error_of([&] {
    for (int i = 0; i < 1000; ++i) loader.next(batch);
  });
  CHECK_THAT(
      error,
      Contains("65: " + (f / "a.bin: byte offset 2000: token 60000 is outside the vocabulary of 50257")));
  CHECK(error_of([&] { loader.next(batch); }) == error);  // it stays
}

TEST_CASE("loader: a file cut short during the run is an error with file and offset", "[data]") {
  TempFolder f;
  counting_dataset(f / "a", 50000);
  BatchLoader loader(loader_options(f / "a"), 0);
  Batch batch;
  loader.next(batch);
  REQUIRE(truncate((f / "a.bin").c_str(), 1000) == 0);
  const std::string error = error_of([&] {
    for (int i = 0; i < 1000; ++i) loader.next(batch);
  });
  CHECK_THAT(error,
             Contains("65: " + (f / "a.bin")) && Contains("truncated") && Contains("byte offset 1000"));
}

TEST_CASE("loader: it reads ahead, reuses buffers, and counts its waiting", "[data]") {
  TempFolder f;
  counting_dataset(f / "a", 5000);
  LoaderOptions o = loader_options(f / "a");
  o.prefetch = 3;
  BatchLoader loader(o, 0);
  std::set<const int32_t*> buffers;
  Batch batch;
  for (int i = 0; i < 50; ++i) {
    loader.next(batch);
    if (i > 5) buffers.insert(batch.tokens.data());
  }
  CHECK(buffers.size() <= 4);
  double waited = 1;  // for a batch that had time to get ready; on a crowded machine not each time
  for (int i = 0; i < 20 && waited >= 0.01; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const double before = loader.wait_seconds();
    loader.next(batch);
    waited = loader.wait_seconds() - before;
  }
  CHECK(waited < 0.01);
  CHECK(loader.buffer_bytes() >= 4 * 2 * (2 * 8 * 4 + 8));
  CHECK(loader_buffer_bytes(o) <= loader.buffer_bytes());
}

TEST_CASE("loader: sites with shares divide each global batch in an order that no layout changes", "[data]") {
  TempFolder f;
  counting_dataset(f / "a", 2000);
  LoaderOptions o = loader_options(f / "a");
  o.global_batch = 32;  // 16 micro-batches, four for each site's data ranks of a layout of four
  const auto whole = collect(o, 64, 2);
  const DilocoSettings sites{.sites = 2, .shares = {3, 1}};
  for (const int ranks : {1, 2, 4}) {
    std::map<int64_t, Row> all;
    for (const int site : {0, 1}) {
      LoaderOptions mine = o;
      mine.share = sites.share(site), mine.dp_size = ranks;
      const auto rows = collect(mine, 64, 2);
      CHECK(rows.size() == (site == 0 ? 48 : 16));
      // Micro-batches of two samples: three of the first site, one of the second.
      for (const auto& [sample, row] : rows) CHECK((sample / 2 % 4 == 3) == (site == 1));
      all.insert(rows.begin(), rows.end());
    }
    CHECK(all == whole);
  }
  o.share = sites.share(1);
  o.global_batch = 12;
  CHECK_THROWS_WITH(BatchLoader(o, 0), Contains("global_batch 12 is not a multiple of micro_batch 2 x 4"));
}
