// Documents that a build leaves out: copies, and those with n-grams of evaluation data.
#include "runtime/data/document_choice.h"
#include "base/json/json.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <random>
#include <set>
#include <sstream>
#include <thread>

#include "runtime/data/shards.h"
#include "tests/runtime/data/support.h"

using namespace ltrain;
using namespace ltrain::data;
using namespace ltrain::data::test;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

namespace {

std::string line_of(const std::string& text) { return nlohmann::json{{"text", text}}.dump() + "\n"; }

/// Texts of all documents of token files of bytes.
std::vector<std::string> texts_of(const std::string& prefix) {
  const IndexedDataset data(prefix);
  std::vector<std::string> texts;
  for (int64_t d = 0; d < data.info().documents; ++d) {
    const IndexedDataset::Range r = data.document(d);
    std::vector<int32_t> ids(static_cast<size_t>(r.count));
    data.read(r.first, r.count, 257, ids.data());
    texts.emplace_back(ids.begin(), ids.end() - 1);  // the last one ends the document
  }
  return texts;
}

BuildOptions options_of_small_shards(const std::string& input, const std::string& output) {
  BuildOptions o;
  o.inputs = {input};
  o.output = output;
  o.workers = 1;
  o.shard_bytes = 1;
  return o;
}

/// Six files of documents that repeat in a file and across files, and their first occurrences.
std::vector<std::string> write_repeated(const TempFolder& f) {
  std::mt19937 random(2);
  std::vector<std::string> first;
  std::set<std::string> seen;
  for (int file = 0; file < 6; ++file) {
    std::string lines;
    for (int i = 0; i < 60; ++i) {
      const std::string text = "document " + std::to_string(random() % 150);
      lines += line_of(text);
      if (seen.insert(text).second) first.push_back(text);
    }
    write_file(f / ("in/" + std::to_string(file) + ".jsonl"), lines);
  }
  return first;
}

std::string words(int first, int last, const char* between = " ") {
  std::string text;
  for (int i = first; i <= last; ++i)
    text += (text.empty() ? "w" : std::string(between) + "w") + std::to_string(i);
  return text;
}

}  // namespace

TEST_CASE("choice: the n-grams of a text do not depend on where it is cut", "[data]") {
  const std::string text =
      "The Quick, brown fox; jumped\nover 13 lazy dogs \xc3\xa9t\xc3\xa9 \xe2\x80\x94 na\xc3\xafve? \xff end";
  const auto grams = [&](const std::vector<size_t>& cuts, int64_t n) {
    std::vector<uint64_t> all;
    const auto put = [&](uint64_t gram) { all.push_back(gram); };
    NgramScanner scanner(n);
    size_t at = 0;
    for (const size_t cut : cuts) scanner.add(std::string_view(text).substr(at, cut - at), put), at = cut;
    scanner.add(std::string_view(text).substr(at), put);
    scanner.finish(put);
    return all;
  };
  for (const int64_t n : {1, 3, 12}) {
    const std::vector<uint64_t> whole = grams({}, n);
    CHECK(static_cast<int64_t>(whole.size()) == 12 - n + 1);  // 12 words
    for (size_t cut = 0; cut <= text.size(); ++cut)
      CHECK(grams({cut, std::min(text.size(), cut + 2)}, n) == whole);
  }
  CHECK(grams({}, 13).empty());
}

TEST_CASE("choice: the set of n-grams has those that were inserted, and no others", "[data]") {
  NgramSet set(3);
  std::mt19937_64 random(1);
  std::set<uint64_t> inserted{0};
  set.insert(0);
  for (int i = 0; i < 5000; ++i) {
    const uint64_t gram = random() % 20000 + 2;
    set.insert(gram), inserted.insert(gram);
  }
  CHECK(set.size() == static_cast<int64_t>(inserted.size()));
  int64_t wrong = 0;
  for (uint64_t gram = 2; gram < 20010; ++gram) wrong += set.contains(gram) != inserted.contains(gram);
  CHECK(wrong == 0);
}

TEST_CASE("choice: a build keeps the first of the documents with a text, for any workers and chunks",
          "[data]") {
  TempFolder f;
  const std::vector<std::string> first = write_repeated(f);
  std::string bin;
  for (const int workers : {1, 3})
    for (const int64_t chunk : {int64_t{64}, int64_t{1} << 20}) {
      BuildOptions o = options_of_small_shards(
          f / "in", f / ("out-" + std::to_string(workers) + "-" + std::to_string(chunk)));
      o.workers = workers, o.chunk_bytes = chunk, o.choice.deduplicate = true;
      std::vector<std::string> names;
      o.left_out = [&](const std::string& name, DocumentState state) {
        CHECK(state == DocumentState::duplicate);
        names.push_back(name);
      };
      const BuildResult r = build_dataset(o);
      CHECK(texts_of(o.output) == first);
      CHECK(r.filtered.duplicates == 360 - static_cast<int64_t>(first.size()));
      CHECK(static_cast<int64_t>(names.size()) == r.filtered.duplicates);
      CHECK_THAT(names.back(), Contains("in/5.jsonl:60"));
      CHECK(inspect_source(o.output).filtered.duplicates == r.filtered.duplicates);
      if (bin.empty()) bin = read_file(o.output + ".bin");
      CHECK(read_file(o.output + ".bin") == bin);
    }
}

TEST_CASE("choice: shards repeat no document of an earlier one, whoever builds them", "[data]") {
  TempFolder f;
  const std::vector<std::string> first = write_repeated(f);
  BuildOptions o = options_of_small_shards(f / "in", f / "cache");
  o.choice.deduplicate = true;
  const auto tokenizer = make_byte_tokenizer();
  const std::vector<Shard> shards = shards_of(o, *tokenizer);
  REQUIRE(shards.size() == 6);
  // Four builders at once, as processes and nodes are.
  std::vector<std::thread> builders;
  std::vector<std::string> errors(4);
  for (size_t i = 0; i < errors.size(); ++i)
    builders.emplace_back([&, i] { errors[i] = error_of([&] { build_shards(shards, o, {}); }); });
  for (std::thread& t : builders) t.join();
  CHECK(errors == std::vector<std::string>(4));
  std::vector<std::string> texts, bins;
  for (const Shard& s : shards) {
    for (const std::string& text : texts_of(s.prefix)) texts.push_back(text);
    bins.push_back(read_file(s.prefix + ".bin"));
  }
  CHECK(texts == first);
  // A shard that is made again, without the marks of the others, is the same.
  for (const Shard& s : shards) fs::remove(s.marks);
  for (const char* end : {".idx", ".bin"}) fs::remove(shards[3].prefix + end);
  build_shards(shards, o, {});
  CHECK(read_file(shards[3].prefix + ".bin") == bins[3]);
  // The names of the shards from a changed file on change, since they may keep other documents.
  write_file(f / "in/2.jsonl", line_of("another text"));
  const std::vector<Shard> changed = shards_of(o, *tokenizer);
  REQUIRE(changed.size() == 6);
  for (size_t i = 0; i < 6; ++i) CHECK((changed[i].prefix == shards[i].prefix) == (i < 2));
  BuildOptions plain = o;
  plain.choice.deduplicate = false;
  CHECK(shards_of(plain, *tokenizer)[0].prefix != shards[0].prefix);
}

TEST_CASE("choice: documents that share an n-gram with a text of the evaluation data are left out",
          "[data]") {
  TempFolder f;
  // Fields at any depth, each a text of its own; and a text file.
  write_file(f / "eval/a.jsonl",
             nlohmann::json{{"id", 1}, {"choices", {{{"text", words(1, 20)}}, words(21, 30)}}}.dump() + "\n" +
                 nlohmann::json{{"q", words(100, 104)}}.dump() + "\n");
  write_file(f / "eval/b.txt", words(200, 220));
  struct Case {
    std::string text;
    bool kept;
  };
  std::string capitals = words(3, 15);
  for (char& c : capitals) c = static_cast<char>(std::toupper(c));
  const Case cases[] = {{"none of these", true},
                        {"before " + words(5, 17) + " after", false},
                        {"before " + words(5, 16) + " after", true},  // 12 words
                        {capitals, false},
                        {words(1, 13, ", "), false},
                        {words(15, 27), true},  // across two texts
                        {words(100, 104), true},
                        {words(205, 217, "\n"), false}};
  std::string lines;
  std::vector<std::string> kept;
  for (const Case& c : cases) {
    lines += line_of(c.text);
    if (c.kept) kept.push_back(c.text);
  }
  write_file(f / "in/0.jsonl", lines);
  BuildOptions o = options_of_small_shards(f / "in", f / "out");
  o.choice.against = {f / "eval"};
  const BuildResult r = build_dataset(o);
  CHECK(texts_of(o.output) == kept);
  CHECK(r.filtered.contaminated == 4);
  // One more document shares 12 words. The evaluation data are part of the names.
  const auto tokenizer = make_byte_tokenizer();
  const std::string name = shards_of(o, *tokenizer)[0].prefix;
  o.choice.ngram = 12;
  o.force = true;
  CHECK(build_dataset(o).filtered.contaminated == 5);
  CHECK(shards_of(o, *tokenizer)[0].prefix != name);
  o.choice.ngram = 13;
  CHECK(shards_of(o, *tokenizer)[0].prefix == name);
  write_file(f / "eval/b.txt", words(200, 221));
  CHECK(shards_of(o, *tokenizer)[0].prefix != name);
  o.choice.ngram = 40;
  CHECK_THAT(error_of([&] { build_dataset(o); }), Contains("expected texts of at least 40 words, got none"));
}

TEST_CASE("choice: a text file longer than a chunk is one document", "[data]") {
  TempFolder f;
  std::string text;
  for (int i = 0; i < 400; ++i) text += "line " + std::to_string(i) + "\n";
  write_file(f / "in/0.txt", text);
  write_file(f / "in/1.txt", text);
  write_file(f / "in/2.txt", text + words(1, 14));
  write_file(f / "eval.txt", words(1, 13));
  BuildOptions o = options_of_small_shards(f / "in", f / "out");
  o.chunk_bytes = 64;
  o.choice.deduplicate = true;
  o.choice.against = {f / "eval.txt"};
  const BuildResult r = build_dataset(o);
  CHECK(texts_of(o.output) == std::vector<std::string>{text});
  CHECK(r.filtered.duplicates == 1);
  CHECK(r.filtered.contaminated == 1);
}

TEST_CASE("cli: data build: --deduplicate and --decontaminate count and name what they leave out", "[data]") {
  TempFolder f;
  write_file(f / "in.jsonl", line_of("one") + line_of("two") + line_of("one") + line_of(words(1, 13)));
  write_file(f / "eval.jsonl", line_of(words(0, 14)));
  const std::string build =
      "data build --tokenizer byte --input " + (f / "in.jsonl") + " --output " + (f / "out");
  const Ran r = run_ltrain(build + " --deduplicate --decontaminate " + (f / "eval.jsonl") + " --left-out " +
                           (f / "names"));
  INFO(r.err);
  REQUIRE(r.code == 0);
  CHECK_THAT(r.out, Contains("1 documents left out as copies of earlier ones") &&
                        Contains("1 documents left out that share 13 words with the evaluation data"));
  CHECK(texts_of(f / "out") == std::vector<std::string>{"one", "two"});
  const std::string in = f / "in.jsonl";
  CHECK(read_file(f / "names") == "{\"document\":\"" + in +
                                      ":3\",\"reason\":\"duplicate\"}\n{\"document\":\"" + in +
                                      ":4\",\"reason\":\"contaminated\"}\n");
  const Ran all = run_ltrain(build + "2 --deduplicate --decontaminate " + in + " --decontaminate-ngram 1");
  CHECK(all.code == 65);
  CHECK_THAT(all.err,
             Contains("all documents with text are left out: 0 by --deduplicate, 4 by --decontaminate"));
  CHECK(run_ltrain(build + "3 --left-out " + (f / "names")).code == 64);
}
