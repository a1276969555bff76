#include "runtime/data/build.h"

#include <malloc.h>

#include <catch2/catch.hpp>
#include <random>
#include <set>

#include "base/error.h"
#include "runtime/data/input/jsonl.h"
#include "runtime/data/ordered_pipeline.h"
#include "tests/runtime/data/support.h"
#include "tests/support/outcome.h"

using namespace ltrain;
using namespace ltrain::data;
using namespace ltrain::data::test;
using Catch::Matchers::Contains;

namespace {

std::string document_text(const IndexedDataset& data, int64_t index, const Tokenizer& tokenizer) {
  const auto range = data.document(index);
  std::vector<int32_t> ids(range.count);
  data.read(range.first, range.count, tokenizer.vocab_size(), ids.data());
  return tokenizer.decode(ids);
}

BuildOptions options_without_eot(const TempFolder& f, std::vector<std::string> inputs) {
  BuildOptions o;
  for (const std::string& i : inputs) o.inputs.push_back(f / i);
  o.output = f / "out";
  o.append_eot = false;
  o.workers = 2;
  return o;
}

std::string files_of(const std::string& prefix) {
  return read_file(prefix + ".idx") + read_file(prefix + ".bin") + read_file(prefix + ".json");
}

std::string random_text(std::mt19937& rng, int words) {
  static const char* parts[] = {"the ", "mother ", "aaaa", "it's", "\n",   "\n\n  ",
                                " ",    "é日本 ",  "111",  "...",  "\xff", "\xc2\xa0"};
  std::string text;
  for (int i = 0; i < words; ++i) text += parts[rng() % 12];
  return text;
}

}  // namespace

TEST_CASE("build: a text file is one document byte for byte", "[data]") {
  TempFolder f;
  const std::string text = "first line\nsecond\r\n\n\tlast without end";
  write_file(f / "a.txt", text);
  BuildOptions o = options_without_eot(f, {"a.txt"});
  o.append_eot = true;
  const BuildResult r = build_dataset(o);
  CHECK(r.outputs.at(0).tokens == static_cast<int64_t>(text.size()) + 1);
  CHECK(r.outputs[0].eot == 256);
  CHECK(document_text(IndexedDataset(f / "out"), 0, *make_byte_tokenizer()) == text + "<|endoftext|>");
}

TEST_CASE("build: the result does not depend on workers or chunks", "[data]") {
  TempFolder f;
  std::mt19937 rng(3);
  for (int i = 0; i < 40; ++i)
    write_file(f / ("in/" + std::to_string(i) + ".txt"), random_text(rng, rng() % 200));
  write_file(f / "in/big.txt", random_text(rng, 60000));
  write_file(f / "in/run.txt", std::string(30000, 'a') + std::string(20000, ' ') + "x");
  std::string lines;
  for (int i = 0; i < 300; ++i)
    lines += "{\"text\": \"" + std::string(rng() % 40, 'a') + " the\\n other\", \"id\": 1}\n";
  write_file(f / "in/records.jsonl", lines);
  for (const std::string name : {"byte", "gpt2"}) {
    std::string expected[2];
    for (const auto& [workers, chunk] :
         {std::pair{1, 1 << 20}, {2, 1 << 20}, {8, 1 << 20}, {1, 100}, {4, 1000}, {3, 65536}}) {
      BuildOptions o = options_without_eot(f, {"in"});
      o.tokenizer = name;
      o.path = name == "gpt2" ? kRanks : "";
      o.workers = workers;
      o.chunk_bytes = chunk;
      o.split = {80, 20};
      o.force = true;
      build_dataset(o);
      const std::string now[2] = {files_of(f / "out-train"), files_of(f / "out-val")};
      if (expected[0].empty()) {
        expected[0] = now[0];
        expected[1] = now[1];
      }
      INFO(name << " " << workers << " workers, chunks of " << chunk);
      CHECK((now[0] == expected[0]));
      CHECK((now[1] == expected[1]));
    }
  }
}

TEST_CASE("build: its own output among the inputs is not read", "[data]") {
  TempFolder f;
  write_file(f / "a.txt", "hello");
  BuildOptions o;
  o.inputs = {f.path()};
  o.output = f / "out";
  build_dataset(o);
  const InputList list = list_inputs({f.path()}, {}, {});
  CHECK(list.files.size() == 1);
  CHECK(list.token_files.count == 3);
}

TEST_CASE("build: JSONL records", "[data]") {
  TempFolder f;
  write_file(f / "a.jsonl",
             "\xEF\xBB\xBF{\"text\": \"one\"}\r\n\n  \n{\"x\": {\"text\": \"no\"}, \"text\": "
             "\"tw\\u00f6\\nlines\"}\n{\"text\": \"\"}\n{\"text\":\"last\"}");
  const BuildResult r = build_dataset(options_without_eot(f, {"a.jsonl"}));
  IndexedDataset d(f / "out");
  const auto t = make_byte_tokenizer();
  REQUIRE(d.info().documents == 3);
  CHECK(r.empty_documents == 1);
  CHECK(document_text(d, 0, *t) == "one");
  CHECK(document_text(d, 1, *t) == "twö\nlines");
  CHECK(document_text(d, 2, *t) == "last");
}

TEST_CASE("build: bad JSON is named by file and line whatever the number of workers", "[data]") {
  struct Case {
    const char *line, *rule;
  };
  const std::vector<Case> cases = {
      {"{\"text\": \"a\"", "not JSON"},
      {"{\"text\": \"a\"} x", "not JSON"},
      {"[1]", "not a JSON object"},
      {"\"text\"", "not a JSON object"},
      {"{\"body\": \"a\", \"id\": 2}", "no key \"text\"; the record has: body, id"},
      {"{\"text\": 3}", "\"text\" is not a string"},
      {"{\"text\": {\"text\": \"a\"}}", "\"text\" is not a string"},
      {"{\"text\": [\"a\"]}", "\"text\" is not a string"},
      {"{\"text\": null}", "\"text\" is not a string"},
      {"{\"text\": \"a\", \"text\": \"b\"}", "2 times"},
      {"{\"text\": \"\\ud800\"}", "not JSON"},
      {"{\"text\": \"\xff\"}", "not JSON"},
      {"{\"text\": \"a\tb\"}", "not JSON"},
  };
  for (const Case& c : cases)
    for (int workers : {1, 8}) {
      INFO(c.line);
      TempFolder f;
      std::string lines;
      for (int i = 1; i < 500; ++i)
        lines += i == 123 || i == 456 ? std::string(c.line) + "\n" : "{\"text\": \"aaaaaaaaaaaaaaaaaaaa\"}\n";
      write_file(f / "a.jsonl", lines);
      BuildOptions o = options_without_eot(f, {"a.jsonl"});
      o.workers = workers;
      o.chunk_bytes = 100;
      CHECK_THAT(error_of([&] { build_dataset(o); }),
                 Contains("65: " + (f / "a.jsonl:123: ")) && Contains(c.rule));
      CHECK_FALSE(file_exists(f / "out.idx"));
    }
  // Nesting does not eat the stack.
  CHECK_THAT(error_of([] { json_text(std::string(5000000, '['), "text", "f", 1); }),
             Contains("f:1: not JSON"));
  const std::string deep =
      "{\"a\": " + std::string(1000000, '[') + std::string(1000000, ']') + ", \"text\": \"x\"}";
  CHECK(json_text(deep, "text", "f", 1) == "x");
}

TEST_CASE("build: a split by document", "[data]") {
  TempFolder f;
  std::string lines;
  for (int i = 0; i < 2000; ++i) lines += "{\"text\": \"document " + std::to_string(i) + ";\"}\n";
  write_file(f / "a.jsonl", lines);
  BuildOptions o = options_without_eot(f, {"a.jsonl"});
  o.split = {90, 5, 5};
  const BuildResult r = build_dataset(o);
  REQUIRE(r.outputs.size() == 3);
  CHECK(r.outputs[0].documents + r.outputs[1].documents + r.outputs[2].documents == 2000);
  CHECK(std::abs(r.outputs[0].documents - 1800) < 60);
  CHECK(std::abs(r.outputs[1].documents - 100) < 40);
  std::set<std::string> all;
  for (const char* part : {"-train", "-val", "-test"}) {
    IndexedDataset d((f / "out") + part);
    int64_t before = -1;
    for (int64_t i = 0; i < d.info().documents; ++i) {
      const std::string text = document_text(d, i, *make_byte_tokenizer());
      CHECK(all.insert(text).second);
      const int64_t number = std::stoll(text.substr(9));
      CHECK(number > before);  // in order
      before = number;
    }
  }
  CHECK(all.size() == 2000);

  // Two documents fill two parts, however the hash falls.
  write_file(f / "b.jsonl", "{\"text\": \"a\"}\n{\"text\": \"\"}\n{\"text\": \"b\"}\n");
  o.inputs = {f / "b.jsonl"};
  o.split = {99, 1};
  o.force = true;
  const auto built = build_dataset(o);
  for (const SourceInfo& s : built.outputs) CHECK(s.documents == 1);
}

TEST_CASE("build: a split that cuts a single document at a line end", "[data]") {
  TempFolder f;
  std::string text;
  for (int i = 0; i < 5000; ++i) text += "line " + std::to_string(i) + "\n";
  std::string record = "{\"text\": \"";
  for (char c : text) record += c == '\n' ? "\\n" : std::string(1, c);
  write_file(f / "a.txt", text);
  write_file(f / "one.jsonl", record + "\"}\n\n");
  const auto t = make_byte_tokenizer();
  for (const char* name : {"a.txt", "one.jsonl"})
    for (int chunk : {100, 1 << 20}) {
      BuildOptions o = options_without_eot(f, {name});
      o.split = {0.9, 0.05, 0.05};
      o.force = true;
      o.chunk_bytes = chunk;
      build_dataset(o);
      std::string whole;
      for (const char* part : {"-train", "-val", "-test"}) {
        IndexedDataset d((f / "out") + part);
        REQUIRE(d.info().documents == 1);
        const std::string piece = document_text(d, 0, *t);
        CHECK(piece.back() == '\n');
        whole += piece;
        if (std::string(part) == "-train") CHECK(std::abs(piece.size() / double(text.size()) - 0.9) < 0.01);
      }
      CHECK((whole == text));
    }
  // No line end: between characters. Too little: refused.
  write_file(f / "b.txt", "日本語日本語日本語日本語");
  BuildOptions o = options_without_eot(f, {"b.txt"});
  o.split = {50, 50};
  o.force = true;
  build_dataset(o);
  CHECK(document_text(IndexedDataset(f / "out-train"), 0, *t) == "日本語日本語");
  write_file(f / "c.txt", "x");
  o.inputs = {f / "c.txt"};
  CHECK_THAT(error_of([&] { build_dataset(o); }), Contains("65: " + (f / "c.txt")) && Contains("too short"));
  write_file(f / "d.jsonl", "{\"text\": \"a\"}\n{\"text\": \"\"}\n");
  o.inputs = {f / "d.jsonl"};
  CHECK_THAT(error_of([&] { build_dataset(o); }), Contains("65: 1 document"));
}

TEST_CASE("build: nothing is overwritten or left behind", "[data]") {
  TempFolder f;
  write_file(f / "a.txt", "hello");
  write_file(f / "empty.jsonl", "{\"text\": \"\"}\n");
  BuildOptions o = options_without_eot(f, {"a.txt"});
  o.output = f / "new/folder/out";
  build_dataset(o);
  const std::string before = files_of(o.output);
  CHECK_THAT(error_of([&] { build_dataset(o); }),
             Contains("65: " + o.output + ".bin: exists") && Contains("--force"));
  CHECK(files_of(o.output) == before);
  o.force = true;
  build_dataset(o);
  CHECK(files_of(o.output) == before);
  o.inputs = {f / "empty.jsonl"};
  CHECK_THAT(error_of([&] { build_dataset(o); }), Contains("65: ") && Contains("empty"));
  CHECK(files_of(o.output) == before);  // the old one is still there
  o.output = f / "new/";
  CHECK_THAT(error_of([&] { build_dataset(o); }), Contains("64: ") && Contains("prefix"));
}

TEST_CASE("build: options", "[data]") {
  TempFolder f;
  write_file(f / "a.txt", "hello");
  auto error = [&](auto change) {
    BuildOptions o = options_without_eot(f, {"a.txt"});
    change(o);
    return error_of([&] { build_dataset(o); });
  };
  CHECK_THAT(error([](auto& o) { o.inputs.clear(); }), Contains("64: ") && Contains("--input"));
  CHECK_THAT(error([](auto& o) { o.split = {95}; }), Contains("64: ") && Contains("95,5"));
  CHECK_THAT(error([](auto& o) { o.split = {95, 0}; }), Contains("above 0"));
  CHECK_THAT(error([](auto& o) { o.workers = -1; }), Contains("--workers -1"));
  CHECK_THAT(error([](auto& o) { o.tokenizer = "bpe"; }), Contains("byte, gpt2, huggingface"));
  CHECK(error([](auto&) {}) == "");
}

TEST_CASE("pipeline: bounded, ordered, and the first error in order wins", "[data]") {
  for (int workers : {1, 4}) {
    int64_t made = 0, most = 0;
    std::atomic<int64_t> eaten{0};
    std::vector<int> out;
    run_ordered<int, int>(
        workers,
        [&]() -> std::optional<int> {
          most = std::max(most, made - eaten.load());
          return made < 1000 ? std::optional<int>(made++) : std::nullopt;
        },
        [] { return [](int v) { return 2 * v; }; },
        [&](int v) {
          out.push_back(v);
          ++eaten;
        });
    REQUIRE(out.size() == 1000);
    for (int i = 0; i < 1000; ++i) REQUIRE(out[i] == 2 * i);
    CHECK(most <= 2 * workers + 2);

    auto failing = [&](int read_at, int work_at) {
      int next = 0;
      return error_of([&] {
        run_ordered<int, int>(
            workers,
            [&]() -> std::optional<int> {
              if (next == read_at) fail(ExitCode::data, "read {}", next);
              return next < 100 ? std::optional<int>(next++) : std::nullopt;
            },
            [&] {
              return [&](int v) {
                if (v >= work_at) fail(ExitCode::data, "work {}", v);
                return v;
              };
            },
            [](int) {});
      });
    };
    for (int i = 0; i < 20; ++i) {
      CHECK(failing(50, 1000) == "65: read 50");
      CHECK(failing(1000, 30) == "65: work 30");
      CHECK(failing(50, 30) == "65: work 30");
      CHECK(failing(1000, 1000) == "");
    }
  }
}

TEST_CASE("build: its threads hold at most the memory that a plan has for them", "[data]") {
  TempFolder f;
  std::string small, large;
  for (int i = 0; i < 300000; ++i) small += "{\"text\":\"" + std::to_string(i) + "\"}\n";
  for (int i = 0; i < 40; ++i) large += "{\"text\":\"" + std::string(1000000, 'x') + "\"}\n";
  write_file(f / "small.jsonl", small);
  write_file(f / "large.jsonl", large);
  small = large = "";
  for (const char* file : {"small.jsonl", "large.jsonl"})
    for (const int workers : {1, 6}) {
      INFO(file << ", " << workers << " workers");
      BuildOptions o = options_without_eot(f, {file});
      o.workers = workers;
      o.force = true;
      const auto held = [] {
        const struct mallinfo2 m = ::mallinfo2();
        return static_cast<int64_t>(m.uordblks + m.hblkhd);
      };
      const int64_t before = held();
      if (before == 0)
        return ltrain::test::skip_test(
            "build: its threads hold at most the memory that a plan has for them: a sanitizer's allocator "
            "does not say what it holds");
      int64_t most = 0;
      o.progress = [&](const BuildProgress&) { most = std::max(most, held() - before); };
      build_dataset(o);
      CHECK(most < build_memory_bytes(o));
      CHECK(most > o.chunk_bytes);  // how much more depends on the threads
    }
}
