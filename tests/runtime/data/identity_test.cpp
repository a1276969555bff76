// The identity of data: changes that it sees, changes that it ignores, and broken files.
#include "runtime/data/identity.h"

#include <sys/mount.h>
#include <sys/stat.h>
#include <catch2/catch.hpp>

#include <chrono>
#include <filesystem>
#include <random>

#include "base/time_scale.h"
#include "runtime/data/build.h"
#include "runtime/data/input/jsonl.h"
#include "runtime/tokenizer/tokenizer_kinds.h"
#include "tests/runtime/data/support.h"
#include "tests/support/outcome.h"

using namespace ltrain;
using namespace ltrain::data;
using namespace ltrain::test;
using namespace ltrain::data::test;
using Catch::Contains;

namespace {

DataIdentity some_data() {
  DataIdentity d;
  d.sources = {{"a", 1, "aaaaaaaaaaaa", 100, 3}, {"b", 3, "bbbbbbbbbbbb", 200, 4}};
  d.tokenizer = {"byte", "0123", 257, 256};
  d.seq_length = 32;
  d.seed = 5;
  return d;
}

}  // namespace

TEST_CASE("the identity of content follows the bytes, and neither names nor places", "[data]") {
  const TempFolder f;
  std::mt19937 random(1);
  std::string small(1000, '\0'), large(3 << 20, '\0');
  for (char& c : small) c = static_cast<char>(random());
  for (char& c : large) c = static_cast<char>(random());
  const auto identity = [&](const std::string& name, const std::string& idx, const std::string& bin) {
    write_file(f / (name + ".idx"), idx);
    write_file(f / (name + ".bin"), bin);
    return content_identity(f / name);
  };
  const std::string one = identity("a", small, large);
  CHECK(one.size() == 32);
  CHECK(identity("b", small, large) == one);
  CHECK(content_identity((f / "b") + ".bin") == one);
  std::filesystem::create_directory(f / "deep");
  CHECK(identity("deep/c", small, large) == one);
  CHECK(identity("d", small, large + "x") != one);
  CHECK(identity("d", small.substr(1), large) != one);
  CHECK(identity("d", large, small) != one);  // the order of sources matters
  // Every byte of a file up to 1 MiB counts. A larger file counts by its first, last and sampled bytes.
  for (const size_t at : {size_t{0}, size_t{499}, size_t{999}}) {
    std::string changed = small;
    changed[at] ^= 1;
    CHECK(identity("d", changed, large) != one);
  }
  for (const size_t at : {size_t{0}, large.size() - 1}) {
    std::string changed = large;
    changed[at] ^= 1;
    CHECK(identity("d", small, changed) != one);
  }
  // A stretch that is longer than the gap between samples is always seen.
  for (int round = 0; round < 20; ++round) {
    std::string changed = large;
    const size_t at = random() % (large.size() - 60000);
    for (size_t i = at; i < at + 60000; ++i) changed[i] ^= 0x55;
    CHECK(identity("d", small, changed) != one);
  }
  CHECK_THAT(error_of([&] { content_identity(f / "none"); }), Contains("none.idx: cannot be opened"));
}

TEST_CASE("every difference of data is named by its key, and nothing else is one", "[data]") {
  const DataIdentity before = some_data();
  const auto differ = [&](const std::function<void(DataIdentity&)>& change) {
    DataIdentity now = before;
    change(now);
    std::string all;
    for (const std::string& d : differences(before, now)) all += d + "\n";
    return all;
  };
  CHECK(differ([](auto&) {}) == "");
  CHECK(differ([](auto& d) { d.sources[0].path = "elsewhere"; }) == "");
  CHECK(differ([](auto& d) { d.sources[0].weight = 10, d.sources[1].weight = 30; }) == "");
  CHECK(differ([](auto& d) { d.tokenizer.eod = 7; }) == "");    // nothing asks for it
  CHECK(differ([](auto& d) { d.tokenizer.hash = ""; }) == "");  // not known: not compared
  CHECK(differ([](auto& d) { d.seq_length = 64; }) == "data.seq_length 32 -> 64\n");
  CHECK(differ([](auto& d) { d.seed = 6; }) == "seed 5 -> 6\n");
  CHECK(differ([](auto& d) { d.sources[1].weight = 1; }) ==
        "data.train.0.weight 1 -> 1 (0.25 -> 0.5 of all samples)\n"
        "data.train.1.weight 3 -> 1 (0.75 -> 0.5 of all samples)\n");
  CHECK(differ([](auto& d) {
          d.sources[0] = {"c", 1, "cccccccccccc", 7, 1};
        }) == "data.train.0 a (100 tokens, content aaaaaaaa) -> c (7 tokens, content cccccccc)\n");
  CHECK_THAT(differ([](auto& d) { d.sources.pop_back(); }),
             Contains("data.train.1 b (200 tokens") && Contains("-> none"));
  CHECK_THAT(differ([](auto& d) { std::swap(d.sources[0], d.sources[1]); }),
             Contains("data.train.0 a") && Contains("data.train.1 b"));
  CHECK_THAT(differ([](auto& d) {
               d.tokenizer = {"gpt2", "4567", 50257, 50256};
             }),
             Contains("data.tokenizer byte (vocabulary 257") && Contains("-> gpt2 (vocabulary 50257"));
  for (bool DataIdentity::*flag :
       {&DataIdentity::reset_attention_mask, &DataIdentity::reset_position_ids, &DataIdentity::eod_mask_loss})
    CHECK_THAT(differ([&](auto& d) { d.*flag = true; }), Contains(" false -> true"));
}

TEST_CASE("a FIFO or a device in the place of a data file is refused at once", "[data]") {
  const TempFolder f;
  REQUIRE(mkfifo((f / "a.idx").c_str(), 0644) == 0);
  REQUIRE(mkfifo((f / "a.bin").c_str(), 0644) == 0);
  REQUIRE(mkfifo((f / "a.json").c_str(), 0644) == 0);
  const auto start = std::chrono::steady_clock::now();
  for (const char* name : {"a.idx", "a.bin", "a.json"})
    CHECK_THAT(error_of([&] { InputFile(f / name); }), Contains("not a regular file"));
  CHECK_THAT(error_of([&] { inspect_source(f / "a"); }), Contains("not a regular file"));
  CHECK_THAT(error_of([&] { InputFile("/dev/zero"); }), Contains("not a regular file"));
  CHECK_THAT(error_of([&] { make_tokenizer("gpt2", f / "a.json"); }), Contains("a.json"));
  // A build reads pipes, since shells make them of commands, but nothing that may have no end.
  BuildOptions o;
  o.inputs = {"/dev/zero"};
  o.output = f / "out";
  CHECK_THAT(error_of([&] { build_dataset(o); }), Contains("/dev/zero: a device or socket"));
  CHECK(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < 5 * time_scale());
}

TEST_CASE("keys of a JSONL record come to a terminal as text", "[data]") {
  const std::string error =
      error_of([] { json_text("{\"\\u001b]0;owned\\u0007\":1,\"b\":2}", "text", "x.jsonl", 7); });
  CHECK_THAT(error, Contains("x.jsonl:7: no key \"text\"; the record has: \\x1b]0;owned\\x07, b."));
  for (const char* record : {"{\"\x1b[2J\":1}", "{\"a\":\"\x1b[2J\"}", "\x1b[2J", "{\"text\":\x1b}"}) {
    const std::string said = error_of([&] { json_text(record, "text", "x.jsonl", 1); });
    CHECK(said != "");
    CHECK(said.find('\x1b') == std::string::npos);
  }
}

TEST_CASE("a full disk ends a build with the exit code of storage, and leaves nothing", "[data]") {
  const TempFolder mount_point;
  if (mount("tmpfs", (mount_point / "").c_str(), "tmpfs", 0, "size=2m") != 0) {
    skip_test(
        "a full disk ends a build with the exit code of storage, and leaves nothing: cannot mount a tmpfs "
        "(not root)");
    return;
  }
  const TempFolder f;
  std::string text;
  while (text.size() < 4 << 20) text += "some words that fill a disk\n";
  write_file(f / "text.txt", text);
  BuildOptions o;
  o.inputs = {f / "text.txt"};
  o.output = mount_point / "out";
  CHECK_THAT(error_of([&] { build_dataset(o); }),
             Contains("73: ") && Contains("No space left on device (errno 28); free space there"));
  CHECK(std::filesystem::is_empty(mount_point / ""));
  o.output = "/proc/none/out";
  CHECK_THAT(error_of([&] { build_dataset(o); }), Contains("73: ") && Contains("cannot be made"));
  CHECK(umount((mount_point / "").c_str()) == 0);
}
