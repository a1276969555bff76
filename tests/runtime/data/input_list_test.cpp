// Files that are read, their formats, and messages about the others.
#include "runtime/data/input/input_list.h"
#include "base/json/json.h"

#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "runtime/data/build.h"
#include "tests/runtime/data/support.h"

using namespace ltrain::data;
using namespace ltrain::data::test;
using Catch::Matchers::Contains;

namespace {

std::vector<std::string> names_of(const InputList& list, const TempFolder& f) {
  std::vector<std::string> names;
  for (const TextFile& t : list.files) names.push_back(t.path.substr(f.path().size() + 1));
  return names;
}

/// The documents that `data build` makes of `inputs`, by the bytes of their texts.
std::vector<std::string> documents(const TempFolder& f, const std::vector<std::string>& inputs,
                                   const RecordOptions& records = {}, BadRecords* bad = nullptr,
                                   int64_t chunk_bytes = 1 << 20) {
  BuildOptions o;
  for (const std::string& i : inputs) o.inputs.push_back(f / i);
  o.output = f / "built/out";
  o.append_eot = false;
  o.force = true;
  o.workers = 3;
  o.records = records;
  o.chunk_bytes = chunk_bytes;
  const BuildResult r = build_dataset(o);
  if (bad) *bad = r.bad_records;
  const IndexedDataset data(o.output);
  std::vector<std::string> texts;
  for (int64_t i = 0; i < data.info().documents; ++i) {
    const auto range = data.document(i);
    std::vector<int32_t> ids(static_cast<size_t>(range.count));
    data.read(range.first, range.count, 257, ids.data());
    texts.emplace_back(ids.begin(), ids.end());
  }
  return texts;
}

const std::string kLines = "{\"text\": \"one\", \"id\": 1}\n{\"text\": \"two\", \"id\": 2}\n";
const std::string kArray = "[\n  {\"text\": \"one\", \"tags\": [\"]\", \"{\"]},\n  {\"text\": \"two\"}\n]\n";
using Texts = std::vector<std::string>;
const Texts kTwo = {"one", "two"};

}  // namespace

TEST_CASE("inputs: a folder is taken whole, and what is left out is counted and named", "[data]") {
  TempFolder f;
  for (const char* name :
       {"in/b.txt", "in/a/z.txt", "in/a.txt", "in/.hidden", "in/.config/rc", "in/build/x.txt",
        "in/build-debug/x.txt", "in/node_modules/x.js", "in/c.md", "elsewhere/d.txt", "alone.txt"})
    write_file(f / name, std::string(name) + "\n");
  write_file(f / "in/.git/config", "x");
  write_file(f / "in/sub/.git", "gitdir: elsewhere");
  write_file(f / "in/binary", std::string("ab\0cd", 5));
  write_file(f / "in/packed.txt",
             "\xFD"
             "7zXZ");
  write_file(f / "in/empty.txt", "");
  REQUIRE(symlink((f / "in").c_str(), (f / "in/loop").c_str()) == 0);
  REQUIRE(symlink((f / "elsewhere").c_str(), (f / "in/linked").c_str()) == 0);
  REQUIRE(symlink((f / "alone.txt").c_str(), (f / "in/linked.txt").c_str()) == 0);
  REQUIRE(symlink((f / "in/a.txt").c_str(), (f / "in/0-again.txt").c_str()) == 0);
  REQUIRE(symlink((f / "nowhere").c_str(), (f / "in/dangling").c_str()) == 0);
  REQUIRE(mkfifo((f / "in/pipe").c_str(), 0600) == 0);
  const InputList list = list_inputs({f / "in"}, {}, {});
  CHECK(names_of(list, f) == Texts{"in/.config/rc", "in/.hidden", "in/a.txt", "in/a/z.txt", "in/b.txt",
                                   "in/build-debug/x.txt", "in/build/x.txt", "in/c.md", "in/linked.txt",
                                   "in/linked/d.txt", "in/node_modules/x.js"});
  std::string said;
  for (const std::string& phrase : list.left_out()) said += phrase + "\n";
  INFO(said);
  CHECK(said == "1 binary (" + (f / "in/binary") + ")\n1 compressed by programs other than gzip and zstd (" +
                    (f / "in/packed.txt") + ")\n1 empty (" + (f / "in/empty.txt") +
                    ")\n3 links that are broken or lead to what is read already (" + (f / "in/0-again.txt") +
                    ", " + (f / "in/dangling") + ", " + (f / "in/loop") +
                    ")\n1 devices, pipes and sockets (" + (f / "in/pipe") + ")\n2 of version control (" +
                    (f / "in/.git") + ", " + (f / "in/sub/.git") + ")\n");
  CHECK(names_of(list_inputs({f / "in"}, {"*.md"}, {}), f) == Texts{"in/c.md"});
  const InputList some =
      list_inputs({f / "in"}, {}, {"*.md", "a/*", "build*", "node_modules", ".*", "linked"});
  CHECK(names_of(some, f) == Texts{"in/a.txt", "in/b.txt", "in/linked.txt"});
  CHECK(some.filtered.count == 8);
  CHECK(some.filtered.first.size() == NamedCount::kNamed);
  CHECK_THAT(error_of([&] { list_inputs({f / "in"}, {"*.py"}, {}); }),
             Contains("65: no text in the inputs; left out: ") && Contains(" by --include and --exclude"));
  CHECK_THAT(error_of([&] { list_inputs({f / "in/binary"}, {}, {}); }), Contains("byte offset 2: a NUL"));
  CHECK_THAT(error_of([&] { list_inputs({f / "in/packed.txt"}, {}, {}); }),
             Contains("compressed by xz") && Contains("xz -dc " + (f / "in/packed.txt")));
  CHECK_THAT(error_of([&] { list_inputs({f / "none"}, {}, {}); }), Contains("none: not found"));
}

TEST_CASE("inputs: JSON records are found by content under any name", "[data]") {
  for (const char* name : {"a.json", "a.jl", "a.JSONL", "a.ndjson", "a.txt", "a", "a.jsonl"})
    for (const std::string& content : {kLines, "\xEF\xBB\xBF\n \n" + kLines, kArray, "\xEF\xBB\xBF" + kArray})
      for (const bool in_folder : {false, true})
        for (const int64_t chunk : {7, 1 << 20}) {
          TempFolder f;
          INFO(name << " in a folder: " << in_folder << ", of:\n" << content);
          write_file(f / (std::string("in/") + name), content);
          CHECK(documents(f, {in_folder ? "in" : std::string("in/") + name}, {}, nullptr, chunk) == kTwo);
        }
  // A record that is longer than what is looked at first.
  TempFolder f;
  const std::string text(300000, 'x');
  write_file(f / "long", "{\"text\": \"" + text + "\"}\n");
  CHECK(documents(f, {"long"}) == Texts{text});
}

TEST_CASE("inputs: text stays text, and is what --input-format text reads", "[data]") {
  const std::string code = "{\n  int x = 1;\n}\n", list = "[link](x) and [1, 2]\n";
  TempFolder f;
  write_file(f / "code.c", code);
  write_file(f / "list.md", list);
  CHECK(documents(f, {"code.c", "list.md"}) == Texts{code, list});
  RecordOptions as_text;
  as_text.format = InputFormat::text;
  write_file(f / "a.jsonl", kLines);
  write_file(f / "a.json", kArray);
  CHECK(documents(f, {"a.jsonl", "a.json"}, as_text) == Texts{kLines, kArray});
}

TEST_CASE("inputs: a .json file without records is refused, or named where a folder has it", "[data]") {
  TempFolder f;
  const std::string settings = "{\n  \"semi\": false\n}\n", one_line = "{\"semi\": false}\n";
  for (const std::string& content : {settings, std::string("[1, 2]"), std::string("[]"), std::string("\"x\""),
                                     std::string("{\"text\": ")}) {
    INFO(content);
    write_file(f / "in/a.json", content);
    CHECK_THAT(error_of([&] { list_inputs({f / "in/a.json"}, {}, {}); }),
               Contains("65: " + (f / "in/a.json") + ": a .json file holds") &&
                   Contains("--input-format text reads it as text"));
    const InputList list = list_inputs({f / "in"}, {}, {});
    CHECK(list.json_as_text.text("x") == "1 x (" + (f / "in/a.json") + ")");
    CHECK(documents(f, {"in"}) == Texts{content});
  }
  // Records without the key are never read with their braces.
  write_file(f / "in/a.json", "{\"body\": \"one\"}\n{\"body\": \"two\"}\n");
  for (const char* input : {"in", "in/a.json"})
    CHECK_THAT(error_of([&] { list_inputs({f / input}, {}, {}); }),
               Contains("in/a.json: holds JSON records without the key \"text\"; the first one has: body") &&
                   Contains("--field"));
  CHECK_THAT(error_of([&] { list_inputs({f / "in"}, {}, {}); }), Contains("; --exclude leaves it out"));
  write_file(f / "in/a.json", one_line);
  CHECK_THAT(error_of([&] { list_inputs({f / "in/a.json"}, {}, {}); }), Contains("without the key \"text\""));
  CHECK(documents(f, {"in"}) == Texts{one_line});
}

TEST_CASE("inputs: --field and --input-format json refuse what holds no records, by name", "[data]") {
  TempFolder f;
  write_file(f / "in/a.txt", "{\"body\": \"one\"}\n{\"body\": \"two\"}\n");
  RecordOptions o;
  o.field = "body";
  CHECK(documents(f, {"in"}, o) == kTwo);
  write_file(f / "in/notes.txt", "plain text\n");
  for (const char* input : {"in", "in/notes.txt"})
    CHECK_THAT(error_of([&] { list_inputs({f / input}, {}, {}, o); }),
               Contains("65: " + (f / "in/notes.txt") + ": --field body says that inputs hold records") &&
                   Contains("it begins with \"plain text"));
  RecordOptions json;
  json.format = InputFormat::json;
  CHECK_THAT(error_of([&] { list_inputs({f / "in/notes.txt"}, {}, {}, json); }),
             Contains("--input-format json says"));
  o.format = InputFormat::text;
  CHECK_THAT(error_of([&] { check_record_options(o); }),
             Contains("64: ") && Contains("leave one of the two"));
}

TEST_CASE("inputs: an array that is not one is named by file and line", "[data]") {
  const std::pair<const char*, const char*> cases[] = {
      {"[{\"text\": \"a\"},\n{\"text\": \"b\"}", ":2: the file ends inside its array"},
      {"[{\"text\": \"a\"},\n]", ":2: expected a record after the comma"},
      {"[{\"text\": \"a\"}\n{\"text\": \"b\"}]", ":2: expected a comma or ] between"},
      {"[{\"text\": \"a\"}]\n[]", ":2: expected the end of the file"},
      {"[{\"text\": \"a\"},\n 7]", ":2: not a JSON object"},
      {"[{\"text\": \"a\"},\n{\"text\":\n 7}]", ":2: \"text\" is not a string"},
      {"[{\"text\": \"a\"},\n{\"text\":\n x}]", ":2: not JSON: line 3, column"},
  };
  for (const auto& [content, error] : cases) {
    INFO(content);
    TempFolder f;
    write_file(f / "a.json", content);
    CHECK_THAT(error_of([&, f = &f] { documents(*f, {"a.json"}); }), Contains((f / "a.json") + error));
  }
}

TEST_CASE("inputs: numbers that Python's json writes and JSON has not are accepted", "[data]") {
  TempFolder f;
  // json.dumps({"text": ..., "ppl": float("nan"), "x": [float("inf"), -float("inf")]})
  write_file(f / "a.jsonl",
             "{\"text\": \"NaN, Infinity: \\\" -Infinity\", \"ppl\": NaN, \"x\": [Infinity, -Infinity]}\n");
  CHECK(documents(f, {"a.jsonl"}) == Texts{"NaN, Infinity: \" -Infinity"});
  for (const char* bad : {"{\"text\": NaN}", "{\"text\": \"a\", \"x\": nan}",
                          "{\"text\": \"a\", \"x\": 1NaN}", "{\"text\": \"a\", \"x\": NaNs}",
                          "{\"text\": \"a\", \"x\": +Infinity}", "{\"text\": \"a\", NaN: 1}", "NaN"}) {
    INFO(bad);
    CHECK_THAT(error_of([&] { json_text(bad, "text", "f", 3); }), Contains("f:3: "));
  }
}

TEST_CASE("inputs: bad records are skipped or repaired, counted and named", "[data]") {
  TempFolder f;
  const std::string bad_lines[] = {"{\"text\": \"x \\ud83d y\"}",
                                   "{\"text\": \"a\xff\xfe\"}",
                                   "{\"content\": \"b\"}",
                                   "{\"text\": null}",
                                   "{\"text\": [\"a\"]}",
                                   "{\"text\": \"a\"},",
                                   "{\"text\": \"a\", \"text\": \"b\"}",
                                   "{\"text\": \"\xff\", \"text\": 1}"};
  std::string lines;
  for (const std::string& bad : bad_lines) lines += "{\"text\": \"good\"}\n" + bad + "\n";
  write_file(f / "b.jsonl", lines + "{\"text\": \"\\ud83d\\ude00\\\\ud83d\"}\n");
  RecordOptions o;
  CHECK_THAT(error_of([&] { documents(f, {"b.jsonl"}); }), Contains("65: " + (f / "b.jsonl:2: ")));
  for (const int64_t chunk : {10, 1 << 20}) {
    BadRecords bad;
    o.on_bad = OnBadRecord::skip;
    Texts good(8, "good");
    good.push_back("\xF0\x9F\x98\x80\\ud83d");
    CHECK(documents(f, {"b.jsonl"}, o, &bad, chunk) == good);
    CHECK(bad.skipped == 8);
    CHECK(bad.replaced == 0);
    REQUIRE(bad.first.size() == BadRecords::kNamed);
    for (size_t i = 0; i < bad.first.size(); ++i)
      CHECK_THAT(bad.first[i], Catch::StartsWith((f / "b.jsonl:") + std::to_string(2 * i + 2) + ": "));
    o.on_bad = OnBadRecord::replace;
    good.insert(good.begin() + 1, "x \xEF\xBF\xBD y");
    good.insert(good.begin() + 3, "a\xEF\xBF\xBD\xEF\xBF\xBD");
    bad = {};
    CHECK(documents(f, {"b.jsonl"}, o, &bad, chunk) == good);
    CHECK(bad.skipped == 6);
    CHECK(bad.replaced == 2);
  }
  // A file of bad records alone makes no data set.
  o.on_bad = OnBadRecord::skip;
  write_file(f / "all.jsonl", "{\"text\": 1}\n{\"text\": 2}\n");
  CHECK_THAT(error_of([&] { documents(f, {"all.jsonl"}, o); }),
             Contains("65: no text in the inputs") && Contains("2 bad records") && Contains("all.jsonl:1: "));
}

TEST_CASE("cli: standard input and pipes are read as files are", "[data][cli]") {
  TempFolder f;
  const std::string out = " --json --quiet --force --tokenizer byte --output " + (f / "out");
  for (const char* input : {"-", "/dev/stdin"})
    for (const std::string& content : {kLines, kArray}) {
      const Ran r = run_ltrain("data build --input " + std::string(input) + out, content);
      INFO(r.err);
      REQUIRE(r.code == 0);
      const auto j = nlohmann::json::parse(r.out);
      CHECK(j["outputs"][0]["documents"] == 2);
      CHECK(j["outputs"][0]["tokens"] == 8);
    }
  write_file(f / "lines", kLines);
  const std::string piped = "cat " + (f / "lines") + " | '" LTRAIN_BINARY "' data build --input /dev/stdin" +
                            out + " > " + (f / "said");
  REQUIRE(std::system(piped.c_str()) == 0);
  CHECK(nlohmann::json::parse(read_file(f / "said"))["outputs"][0]["tokens"] == 8);
  const Ran text = run_ltrain("data build --split 50,50 --input -" + out, "a line\nanother line\n");
  INFO(text.err);
  CHECK(text.code == 0);
  const Ran refused = run_ltrain("data build --json-key text --input -" + out, "a line\n");
  CHECK(refused.code == 65);
  CHECK_THAT(refused.err, Contains("standard input: --field text says"));
  const Ran empty = run_ltrain("data build --input -" + out, "");
  CHECK(empty.code == 65);
  CHECK_THAT(empty.err, Contains("left out: 1 empty (standard input)"));
}

TEST_CASE("cli: data build says what it left out and which records were bad", "[data][cli]") {
  TempFolder f;
  write_file(f / "in/a.json", kLines + "{\"text\": 1}\n");
  write_file(f / "in/.git/config", "x");
  write_file(f / "in/settings.json", "{\n}\n");
  const Ran r = run_ltrain("data build --tokenizer byte --quiet --on-bad-record skip --input " + (f / "in") +
                           " --output " + (f / "out"));
  INFO(r.err);
  CHECK(r.code == 0);
  CHECK_THAT(r.out, Contains("2 files, ") &&
                        Contains("left out: 1 of version control (" + (f / "in/.git)")) &&
                        Contains("read as text: 1 .json without records (" + (f / "in/settings.json)")) &&
                        Contains("bad records: 1 skipped, 0 read with U+FFFD; the first ones:\n  " +
                                 (f / "in/a.json:3: \"text\" is not a string")));
  CHECK(run_ltrain("data build --on-bad-record drop --input x --output y").code == 64);
}
