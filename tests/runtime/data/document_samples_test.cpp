// data.packing best_fit and document: samples of whole documents.
#include "runtime/data/document_samples.h"

#include <catch2/catch.hpp>
#include <map>
#include <random>
#include <set>

#include "runtime/data/batch_loader.h"
#include "tests/runtime/data/support.h"

using namespace ltrain;
using namespace ltrain::data;
using namespace ltrain::data::test;
using Catch::Matchers::Contains;

namespace {

constexpr int64_t kLength = 32;

/// Documents of 0 to 3 samples, most of them short, in more windows than one. A token is its own position in
/// the stream, counted from 1.
std::vector<std::vector<int32_t>> random_documents(int64_t count) {
  std::mt19937 random(11);
  std::vector<std::vector<int32_t>> documents;
  int32_t token = 0;
  for (int64_t d = 0; d < count; ++d) {
    const bool longer = random() % 20 == 0;
    const int64_t size = static_cast<int64_t>(random() % (longer ? 3 * kLength : kLength));
    std::vector<int32_t>& document = documents.emplace_back();
    for (int64_t i = 0; i < size; ++i) document.push_back(++token);
  }
  documents.push_back({});  // exact multiples of the length have no rest
  for (int64_t i = 0; i < 2 * kLength; ++i) documents.back().push_back(++token);
  return documents;
}

LoaderOptions document_options(const std::string& prefix, SamplePacking packing) {
  LoaderOptions o;
  o.sources = {{prefix, 1}};
  o.seq_length = kLength;
  o.micro_batch = 1;
  o.global_batch = 4;
  o.seed = 5;
  o.vocab_size = 1 << 20;
  o.packing = {.attention_mask = true, .position_ids = true, .mode = packing};
  return o;
}

/// Number of samples that hold a document whose rest is packed, without packing anything.
int64_t samples_alone(const std::vector<std::vector<int32_t>>& documents) {
  int64_t samples = 0;
  for (const auto& d : documents) samples += (static_cast<int64_t>(d.size()) + kLength - 1) / kLength;
  return samples;
}

/// First token of the document of each token, and whether it is the document's last.
struct Places {
  std::vector<int32_t> first;
  std::set<int32_t> last;
};

Places places_of(const std::vector<std::vector<int32_t>>& documents) {
  Places p{{0}, {}};
  for (const auto& d : documents) {
    for (size_t i = 0; i < d.size(); ++i) p.first.push_back(d[0]);
    if (!d.empty()) p.last.insert(d.back());
  }
  return p;
}

}  // namespace

TEST_CASE("packing: an epoch has each token of each document once, and cuts only the longer documents",
          "[data]") {
  TempFolder f;
  const auto documents = random_documents(2 * kWindowDocuments + 100);
  write_dataset(f / "a", documents);
  const Places places = places_of(documents);
  for (const SamplePacking packing : {SamplePacking::best_fit, SamplePacking::document}) {
    INFO(to_string(packing));
    const LoaderOptions o = document_options(f / "a", packing);
    BatchLoader loader(o, 0);
    const SampleCount count = count_samples(f / "a", kLength, packing);
    REQUIRE(loader.total_samples_per_epoch() == count.samples);
    std::vector<int> read(places.first.size());
    std::map<int32_t, std::set<int64_t>> samples_of;  // samples of each document, by its first token
    int64_t padding = 0, wrong = 0;
    Batch batch;
    for (int64_t sample = 0; sample < count.samples; ++sample) {
      loader.next(batch);
      const int64_t padded = std::find(batch.tokens.begin(), batch.tokens.end(), 0) - batch.tokens.begin();
      for (int64_t t = 0; t < kLength; ++t) {
        const int32_t token = batch.tokens[t], target = batch.targets[t];
        const int32_t next = t + 1 < kLength ? batch.tokens[t + 1] : 0;
        if (token == 0) {
          ++padding;
          wrong += target != -1 || batch.documents[t] != padded;
          continue;
        }
        ++read[token];
        samples_of[places.first[token]].insert(sample);
        // The next token of the document, also where it is cut; then the next document's first one.
        const bool last = places.last.contains(token);
        wrong += target != (!last ? token + 1 : next > 0 ? next : -1);
        if (!last && t + 1 < kLength) wrong += next != token + 1;
        const bool begins = t == 0 || places.first[token] != places.first[batch.tokens[t - 1]];
        wrong += batch.position_ids[t] != (begins ? 0 : batch.position_ids[t - 1] + 1);
        wrong += batch.documents[t] != t - batch.position_ids[t];
      }
    }
    CHECK(wrong == 0);
    CHECK(padding == count.padding);
    CHECK(std::count(read.begin() + 1, read.end(), 1) == static_cast<int64_t>(read.size()) - 1);
    int64_t cut = 0, pieces_wrong = 0;
    for (const auto& d : documents) {
      if (d.empty()) continue;
      const auto samples = static_cast<int64_t>(samples_of[d[0]].size());
      pieces_wrong += samples != (static_cast<int64_t>(d.size()) + kLength - 1) / kLength;
      cut += samples > 1;
    }
    CHECK(pieces_wrong == 0);
    CHECK(cut == count.cut);
    if (packing == SamplePacking::document) CHECK(count.samples == samples_alone(documents));
    if (packing == SamplePacking::best_fit) CHECK(count.padding < count.samples * kLength / 100);
    // The memory that the plan states is a bound.
    CHECK(loader.buffer_bytes() < loader_buffer_bytes(o) + 4096);
  }
}

TEST_CASE("packing: samples of whole documents are the same on any ranks, and from any sample on", "[data]") {
  TempFolder f;
  write_dataset(f / "a", random_documents(300));
  write_dataset(f / "b", random_documents(kWindowDocuments + 7));
  for (const SamplePacking packing : {SamplePacking::best_fit, SamplePacking::document}) {
    LoaderOptions o = document_options(f / "a", packing);
    o.sources.push_back({f / "b", 2});
    std::vector<std::vector<int32_t>> whole;  // tokens, targets and positions of each sample
    const auto read = [&](const LoaderOptions& options, int64_t first, int64_t samples, bool compare) {
      BatchLoader loader(options, first);
      Batch batch;
      for (int64_t i = 0; i < samples / options.dp_size; ++i) {
        loader.next(batch);
        std::vector<int32_t> all = batch.tokens;
        for (const auto* part : {&batch.targets, &batch.position_ids, &batch.documents})
          all.insert(all.end(), part->begin(), part->end());
        if (compare) {
          CHECK(all == whole.at(static_cast<size_t>(batch.sample_index[0])));
        } else {
          whole.push_back(all);
        }
      }
    };
    read(o, 0, 64, false);
    for (const int ranks : {2, 4})
      for (int r = 0; r < ranks; ++r) {
        LoaderOptions mine = o;
        mine.dp_size = ranks, mine.dp_rank = r;
        read(mine, 0, 64, true);
        read(mine, 20, 40, true);
      }
  }
}

TEST_CASE("packing: an evaluation reads whole documents in file order", "[data]") {
  TempFolder f;
  write_dataset(f / "a", {{1, 2, 3}, std::vector<int32_t>(kLength + 1, 4), {5}, {}, {6, 6}});
  LoaderOptions o = document_options(f / "a", SamplePacking::document);
  o.eval = true;
  BatchLoader loader(o, 0);
  CHECK(loader.eval_samples() == 5);
  Batch batch;
  std::vector<std::pair<int32_t, int64_t>> got;  // first token, and tokens that are not padding
  for (int64_t i = 0; i < 5; ++i) {
    loader.next(batch);
    got.emplace_back(batch.tokens[0], kLength - std::count(batch.tokens.begin(), batch.tokens.end(), 0));
  }
  CHECK(got == std::vector<std::pair<int32_t, int64_t>>{{1, 3}, {4, kLength}, {4, 1}, {5, 1}, {6, 2}});
}

TEST_CASE("cli: packing: token files without tokens, and those that a build packed, are refused", "[data]") {
  TempFolder f;
  write_dataset(f / "empty", {{}, {}});
  CHECK_THAT(error_of([&] { BatchLoader loader(document_options(f / "empty", SamplePacking::best_fit), 0); }),
             Contains("empty: expected at least 1 token, got an empty token file"));
  write_file(f / "rows.jsonl",
             R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})");
  REQUIRE(run_ltrain(
              "data build --chat --chat-template chatml --train-on all --pack 256 --tokenizer byte --input " +
              (f / "rows.jsonl") + " --output " + (f / "chat"))
              .code == 0);
  CHECK_THAT(
      error_of([&] { count_samples(f / "chat", 256, SamplePacking::best_fit); }),
      Contains("packed into samples of 256 tokens by the build; expected data.packing = concatenate, got "
               "best_fit"));
}
