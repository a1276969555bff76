// Shards of a source that a run tokenises: what their names follow from, and who builds them.
#include "runtime/data/shards.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <set>
#include <thread>

#include "tests/runtime/data/support.h"

using namespace ltrain::data;
using namespace ltrain::data::test;
namespace fs = std::filesystem;

namespace {

/// Six files of a kilobyte, and options that make a shard of two of them.
struct Source {
  Source() {
    for (int i = 0; i < 6; ++i) write(i, "document");
    options.inputs = {f / "in"};
    options.output = f / "cache";
    options.shard_bytes = 1500;
    options.workers = 1;
  }
  void write(int file, const std::string& word) {
    std::string text;
    while (text.size() < 1000) text += word + " " + std::to_string(file) + "\n";
    write_file(f / ("in/" + std::to_string(file) + ".txt"), text.substr(0, 1000));
  }
  std::vector<Shard> shards() const { return shards_of(options, *make_byte_tokenizer()); }
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const Shard& s : shards()) all.push_back(fs::path(s.prefix).filename().string());
    return all;
  }
  /// Inode of each shard's .bin, which another build replaces.
  std::vector<ino_t> inodes() const {
    std::vector<ino_t> all;
    for (const Shard& s : shards()) {
      struct stat st {};
      REQUIRE(::stat((s.prefix + ".bin").c_str(), &st) == 0);
      all.push_back(st.st_ino);
    }
    return all;
  }
  TempFolder f;
  BuildOptions options;
};

}  // namespace

TEST_CASE("shards: all files are in one shard each, in their order, and a small rest joins the last",
          "[data]") {
  Source s;
  std::vector<size_t> files;
  for (const Shard& shard : s.shards()) files.push_back(shard.inputs.files.size());
  CHECK(files == std::vector<size_t>{2, 2, 2});
  write_file(s.f / "in/9.txt", "rest\n");
  const std::vector<Shard> shards = s.shards();
  REQUIRE(shards.size() == 3);
  CHECK(shards.back().inputs.files.size() == 3);
  CHECK(shards.back().inputs.files.back().path == s.f / "in/9.txt");
}

TEST_CASE("shards: a changed file changes the name of its shard alone, and options those of all", "[data]") {
  Source s;
  const std::vector<std::string> before = s.names();
  CHECK(std::set(before.begin(), before.end()).size() == 3);
  CHECK(s.names() == before);
  fs::rename(s.f / "in", s.f / "moved");
  s.options.inputs = {s.f / "moved"};
  CHECK(s.names() == before);
  fs::rename(s.f / "moved", s.f / "in");
  s.options.inputs = {s.f / "in"};
  s.write(3, "Document");  // has the same length
  const std::vector<std::string> after = s.names();
  CHECK(after[0] == before[0]);
  CHECK(after[1] != before[1]);
  CHECK(after[2] == before[2]);
  for (const auto& change : std::vector<std::function<void(BuildOptions&)>>{
           [](auto& o) { o.append_eot = false; }, [](auto& o) { o.records.field = "body"; },
           [](auto& o) { o.records.on_bad = OnBadRecord::skip; }, [](auto& o) { o.chat.emplace(); }}) {
    BuildOptions o = s.options;
    change(o);
    if (o.records.field) {
      o.records.format = InputFormat::automatic;
      write_file(s.f / "one.jsonl", "{\"body\": 1}\n");
      o.inputs = {s.f / "one.jsonl"};
    }
    BuildOptions plain = s.options;
    plain.inputs = o.inputs;
    CHECK(shards_of(o, *make_byte_tokenizer())[0].prefix !=
          shards_of(plain, *make_byte_tokenizer())[0].prefix);
  }
}

TEST_CASE("shards: a build goes on at the missing shard, and leaves the others as they are", "[data]") {
  Source s;
  build_shards(s.shards(), s.options, {});
  const std::vector<ino_t> before = s.inodes();
  fs::remove(s.shards()[1].prefix + ".idx");  // a build interrupted in its second shard leaves this
  int64_t last = 0;
  build_shards(s.shards(), s.options, [&](const ShardProgress& p) { last = p.input_bytes; });
  CHECK(last == 4000);  // two shards: the one that was there and this one
  const std::vector<ino_t> after = s.inodes();
  CHECK(after[0] == before[0]);
  CHECK(after[1] != before[1]);
  CHECK(after[2] == before[2]);
}

TEST_CASE("shards: builders at the same time make each shard once, and all of them see every shard",
          "[data]") {
  Source s;
  std::vector<std::thread> builders;
  std::vector<int64_t> tokens(4);
  std::vector<size_t> seen(4);
  for (size_t b = 0; b < tokens.size(); ++b)
    builders.emplace_back([&, b] {
      build_shards(s.shards(), s.options, [&](const ShardProgress& p) { tokens[b] = p.tokens; });
      for (const Shard& shard : s.shards()) seen[b] += is_built(shard);
    });
  for (std::thread& t : builders) t.join();
  int64_t all = 0, made = 0;
  for (const Shard& shard : s.shards()) all += inspect_source(shard.prefix).tokens;
  for (const int64_t n : tokens) made += n;
  CHECK(made == all);
  CHECK(seen == std::vector<size_t>(4, 3));
  for (const auto& e : fs::directory_iterator(s.f / "cache")) CHECK(e.path().extension() != ".lock");
}
