// Order of a source whose token files are shuffled window by window, and a loader of files that come late.
#include "runtime/data/window_order.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <map>
#include <set>
#include <thread>

#include "base/error.h"
#include "base/progress.h"
#include "parallel/mesh/mesh.h"
#include "runtime/data/batch_loader.h"
#include "runtime/data/sample_order.h"
#include "runtime/train/file_wait.h"
#include "tests/runtime/data/support.h"

using namespace ltrain;
using namespace ltrain::data;
using namespace ltrain::data::test;
using Catch::Matchers::Contains;

namespace {

const std::vector<int64_t> kSamples{7, 0, 5, 11,
                                    3, 8, 2};  // samples of each file; windows of two have 7, 16, 11, 2

WindowOrder order_of(int64_t window, size_t known = kSamples.size()) {
  WindowOrder order(3, static_cast<int64_t>(kSamples.size()), window, 42, true);
  for (size_t i = 0; i < known; ++i) order.add(kSamples[i]);
  return order;
}

bool same(const WindowOrder::Place& a, const WindowOrder::Place& b) {
  return a.file == b.file && a.sample == b.sample && a.epoch == b.epoch && a.in_source == b.in_source;
}

/// PREFIX0, PREFIX1, ... of consecutive numbers, one document each: the file of 8 * samples + rest tokens.
std::vector<std::string> write_files(const TempFolder& f, const std::vector<int64_t>& samples) {
  std::vector<std::string> files;
  int32_t next = 0;
  for (size_t i = 0; i < samples.size(); ++i) {
    std::vector<int32_t> tokens(static_cast<size_t>(8 * samples[i] + 1 + static_cast<int64_t>(i) % 8));
    for (int32_t& t : tokens) t = next++;
    files.push_back(f / ("part" + std::to_string(i)));
    write_dataset(files.back(), {tokens});
  }
  return files;
}

LoaderOptions loader_of(const std::vector<std::string>& files, int64_t window) {
  LoaderOptions o;
  o.sources = {{"part", 1, files}};
  o.seq_length = 8;
  o.micro_batch = 2;
  o.global_batch = 4;
  o.seed = 5;
  o.vocab_size = 100000;
  o.shuffle_window = window;
  return o;
}

/// First token of each row of `samples` samples, by global index, over `ranks` ranks.
std::map<int64_t, int32_t> first_tokens(LoaderOptions o, int64_t samples, int ranks = 1, int64_t begin = 0) {
  std::map<int64_t, int32_t> rows;
  o.dp_size = ranks;
  for (o.dp_rank = 0; o.dp_rank < ranks; ++o.dp_rank) {
    BatchLoader loader(o, begin);
    Batch batch;
    while (loader.cursor() < begin + samples) {
      loader.next(batch);
      for (size_t b = 0; b < batch.sample_index.size(); ++b)
        rows[batch.sample_index[b]] = batch.tokens[b * static_cast<size_t>(o.seq_length)];
    }
  }
  return rows;
}

}  // namespace

TEST_CASE("windows: each epoch has each sample once, window after window", "[data]") {
  for (const int64_t window : {1, 2, 3, 7, 100, 0}) {
    INFO("window " << window);
    const WindowOrder order = order_of(window);
    REQUIRE(order.known_samples() == 36);
    const int64_t length = window == 0 ? 7 : window;
    bool in_order = true;
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      std::map<std::pair<int64_t, int64_t>, int> seen;
      int64_t last_window = 0;
      for (int64_t draw = 0; draw < 36; ++draw) {
        const WindowOrder::Place p = order.find(36 * epoch + draw).value();
        CHECK(p.epoch == epoch);
        CHECK((p.sample >= 0 && p.sample < kSamples[static_cast<size_t>(p.file)]));
        ++seen[{p.file, p.sample}];
        CHECK(p.file / length >= last_window);
        last_window = p.file / length;
        in_order = in_order && p.in_source == draw;
      }
      CHECK(seen.size() == 36);
    }
    CHECK(!in_order);
  }
}

TEST_CASE("windows: a draw follows from the files up to the end of its window alone", "[data]") {
  const WindowOrder all = order_of(2);
  // Windows of the first epoch begin at draws 0, 7, 23 and 34.
  for (size_t known = 0; known <= kSamples.size(); ++known) {
    const WindowOrder some = order_of(2, known);
    const int64_t found = known < 2 ? 0 : known < 4 ? 7 : known < 6 ? 23 : known < 7 ? 34 : 36;
    for (int64_t draw = 0; draw < 36; ++draw) {
      INFO("draw " << draw << " with " << known << " files");
      const auto p = some.find(draw);
      REQUIRE(p.has_value() == (draw < found));
      if (p) CHECK(same(*p, *all.find(draw)));
    }
    CHECK(some.find(36).has_value() == (known == 7));  // the second epoch needs all
  }
}

TEST_CASE("windows: one window is the order of a source without windows, and later ones are other orders",
          "[data]") {
  const WindowOrder one = order_of(0), wide = order_of(7);
  for (int64_t draw = 0; draw < 100; ++draw) {
    const SampleRef r = drawn_sample(3, draw, 36, 42, true);
    CHECK((one.find(draw)->in_source == r.sample && one.find(draw)->epoch == r.epoch));
    CHECK(same(*wide.find(draw), *one.find(draw)));
  }
  // Windows of equal size are not shuffled alike.
  WindowOrder equal(0, 2, 1, 42, true);
  equal.add(50), equal.add(50);
  int alike = 0;
  for (int64_t draw = 0; draw < 50; ++draw)
    alike += equal.find(draw)->sample == equal.find(50 + draw)->sample;
  CHECK(alike < 10);
}

TEST_CASE("windows: a loader reads each sample of an epoch once, on any number of ranks and after a resume",
          "[data]") {
  TempFolder f;
  const std::vector<int64_t> samples{7, 0, 5, 11, 3, 8, 2};
  const LoaderOptions o = loader_of(write_files(f, samples), 2);
  std::set<int32_t> all;  // first tokens of all samples; the rest of each file is read by none
  int32_t at = 0;
  for (size_t i = 0; i < samples.size(); ++i) {
    for (int64_t s = 0; s < samples[i]; ++s) all.insert(at + static_cast<int32_t>(8 * s));
    at += static_cast<int32_t>(8 * samples[i] + 1 + static_cast<int64_t>(i) % 8);
  }
  REQUIRE(all.size() == 36);
  const std::map<int64_t, int32_t> rows = first_tokens(o, 72);
  for (const int64_t epoch : {0, 1}) {
    std::set<int32_t> read;
    for (int64_t g = 36 * epoch; g < 36 * epoch + 36; ++g) read.insert(rows.at(g));
    CHECK(read == all);
  }
  CHECK(first_tokens(o, 72, 2) == rows);
  std::map<int64_t, int32_t> later(rows.find(20), rows.end());
  CHECK(first_tokens(o, 52, 1, 20) == later);
  CHECK(first_tokens(loader_of(o.sources[0].files, 3), 72) != rows);
}

TEST_CASE("windows: samples of whole documents and of two mixes are those of files that were there first",
          "[data]") {
  TempFolder f;
  std::vector<std::string> files;
  for (int i = 0; i < 6; ++i) {
    std::vector<std::vector<int32_t>> documents;
    for (int d = 0; d < 30; ++d) documents.emplace_back(1 + (i + 3 * d) % 11, 1000 * i + d);
    files.push_back(f / ("f" + std::to_string(i)));
    write_dataset(files.back(), documents);
  }
  LoaderOptions o = loader_of(files, 2);
  o.packing.mode = SamplePacking::best_fit;
  o.sources.push_back({"other", 0.5, {files[1], files[0]}});
  o.stages = {{20, {o.sources[1]}}};
  const auto rows = first_tokens(o, 100);
  CHECK(first_tokens(o, 100, 2) == rows);
  // The stage goes on with the place of its source: none of its first samples was read before.
  std::filesystem::rename(files[5] + ".idx", f / "late");
  CHECK(first_tokens(o, 20) == std::map<int64_t, int32_t>(rows.begin(), rows.find(20)));
}

TEST_CASE("windows: a loader waits for a file that does not exist yet, and then reads the same", "[data]") {
  TempFolder f;
  const LoaderOptions o = loader_of(write_files(f, {7, 0, 5, 11, 3, 8, 2}), 2);
  const auto rows = first_tokens(o, 72);
  const std::string late = o.sources[0].files[3];
  std::filesystem::rename(late + ".idx", f / "late");
  BatchLoader loader(o, 0);
  std::map<int64_t, int32_t> read;
  Batch batch;
  const auto take = [&] {
    loader.next(batch);
    for (size_t b = 0; b < batch.sample_index.size(); ++b)
      read[batch.sample_index[b]] = batch.tokens[b * static_cast<size_t>(o.seq_length)];
  };
  for (int i = 0; i < 3; ++i) take();  // 6 of the 7 samples of the first window
  CHECK(loader.missing_file(0, 7).empty());
  CHECK(loader.missing_file(4, 8) == late);
  CHECK((loader.file_counts().made == 3 && loader.file_counts().all == 7));
  std::thread maker([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    std::filesystem::rename(f / "late", late + ".idx");
  });
  while (loader.cursor() < 72) take();
  maker.join();
  CHECK(read == rows);
  CHECK(loader.wait_seconds() > 0.04);
  CHECK(loader.file_counts().made == 7);
  // A loader that waits can be ended.
  std::filesystem::rename(late + ".idx", f / "late");
  BatchLoader(o, 8);
}

TEST_CASE("windows: a run that waits for files makes progress, says so, and ends when it is asked to",
          "[data]") {
  TempFolder f;
  const LoaderOptions o = loader_of(write_files(f, {7, 5, 6}), 1);
  const std::string late = o.sources[0].files[1];
  std::filesystem::rename(late + ".idx", f / "late");
  const BatchLoader loader(o, 0);
  FileWait wait(make_single_group("all", kAllAxes));
  uint64_t before = 0, made = 0;
  int looks = 0;
  std::vector<std::string> lines;
  const auto say = [&](std::string line) {
    // The file comes after the first line, so that the wait alone was the progress.
    if (lines.empty()) made = progress_made - before, std::filesystem::rename(f / "late", late + ".idx");
    lines.push_back(std::move(line));
  };
  const auto go_on = [&] {
    if (++looks == 3) before = progress_made;  // the loader's thread has read what it can, and waits too
    return false;
  };
  CHECK(wait.wait(loader, 0, 4, go_on, say));
  CHECK(lines.empty());
  CHECK(wait.wait(loader, 4, 8, go_on, say));
  REQUIRE(lines.size() == 2);
  CHECK(lines[0] == "waiting for token files: " + late + " (1 of 3 made)");
  CHECK_THAT(lines[1], Contains("waited ") && Contains(" s for token files"));
  CHECK(made >= 2);
  CHECK(wait.seconds() >= 1);
  // No file is missing now, so that nothing is asked for any more.
  CHECK(wait.wait(
      loader, 8, 12, [] { return true; }, say));
  std::filesystem::rename(late + ".idx", f / "late");
  const BatchLoader stopped(o, 0);
  FileWait again(make_single_group("all", kAllAxes));
  CHECK(!again.wait(
      stopped, 4, 8, [] { return true; }, say));
}

TEST_CASE("windows: sources without a sample, and missing files without a window, are refused", "[data]") {
  TempFolder f;
  const std::vector<std::string> none = write_files(f, {0, 0});
  CHECK_THAT(error_of([&] {
               BatchLoader loader(loader_of(none, 1), 0);
               Batch batch;
               loader.next(batch);
             }),
             Contains("less than one sample of seq_length + 1 = 9 tokens in each"));
  const std::vector<std::string> files = write_files(f, {3, 3});
  std::filesystem::remove(files[1] + ".idx");
  CHECK_THAT(error_of([&] { BatchLoader(loader_of(files, 0), 0); }), Contains("part1.idx: not found"));
}
