#include "runtime/data/input/record_filter.h"

#include <catch2/catch.hpp>

#include "runtime/data/build.h"
#include "runtime/data/shards.h"
#include "tests/runtime/data/support.h"

using namespace ltrain;
using namespace ltrain::data;
using namespace ltrain::data::test;
using Catch::Contains;

namespace {

RecordFilter one_of(std::string field, std::vector<std::string> values) {
  return {{std::move(field), std::move(values), {}, {}}};
}

RecordFilter bounds(std::string field, std::optional<double> min, std::optional<double> max) {
  return {{std::move(field), {}, min, max}};
}

bool keeps(const RecordFilter& filter, const std::string& record) {
  return keeps_record(filter, record, "f:1");
}

BuildOptions build_options(const TempFolder& f, const std::string& input, RecordFilter where) {
  BuildOptions o;
  o.inputs = {f / input};
  o.output = f / "out";
  o.records.where = std::move(where);
  o.force = true;
  o.workers = 2;
  return o;
}

/// Bytes of the tokens of a build, where a document ends with a line end.
std::string built_text(const BuildOptions& o) {
  IndexedDataset d(o.output);
  std::vector<int32_t> ids(static_cast<size_t>(d.tokens()));
  d.read(0, d.tokens(), 257, ids.data());
  std::string text;
  for (const int32_t id : ids) text += id == 256 ? '\n' : static_cast<char>(id);
  return text;
}

}  // namespace

TEST_CASE("filter: a record is kept if its field has one of the values", "[data]") {
  const RecordFilter en_or_de = one_of("language", {"en", "de"});
  CHECK(keeps(en_or_de, R"({"language": "en"})"));
  CHECK(keeps(en_or_de, R"({"text": "x", "language": "de"})"));
  CHECK_FALSE(keeps(en_or_de, R"({"language": "fr"})"));
  CHECK_FALSE(keeps(en_or_de, R"({"language": "EN"})"));
  CHECK_FALSE(keeps(en_or_de, R"({"language": null})"));
  CHECK(keeps(one_of("n", {"3"}), R"({"n": 3})"));
  CHECK(keeps(one_of("n", {"3"}), R"({"n": 3.0})"));
  CHECK_FALSE(keeps(one_of("n", {"9007199254740993"}), R"({"n": 9007199254740992})"));
  CHECK(keeps(one_of("ok", {"true"}), R"({"ok": true})"));
  CHECK_FALSE(keeps(one_of("ok", {"true"}), R"({"ok": false})"));
}

TEST_CASE("filter: bounds of a number are included, and NaN is within none", "[data]") {
  const RecordFilter good = bounds("score", 0.5, 2);
  for (const char* kept : {"0.5", "2", "1e0", "\"0.75\""})
    CHECK(keeps(good, fmt::format(R"({{"score": {}}})", kept)));
  for (const char* left_out : {"0.4999", "2.0001", "NaN", "null", "\"3\"", "Infinity"})
    CHECK_FALSE(keeps(good, fmt::format(R"({{"score": {}}})", left_out)));
  CHECK(keeps(bounds("score", 0.5, {}), R"({"score": Infinity})"));
  CHECK_FALSE(keeps(bounds("score", {}, 0.5), R"({"score": NaN})"));
}

TEST_CASE("filter: all conditions hold, and a dot names a field of an object", "[data]") {
  RecordFilter both = one_of("meta.set", {"Wiki"});
  both.push_back({"meta.score", {}, 1.0, {}});
  CHECK(keeps(both, R"({"meta": {"set": "Wiki", "score": 2}, "set": "x"})"));
  CHECK_FALSE(keeps(both, R"({"meta": {"set": "Wiki", "score": 0}})"));
  CHECK_FALSE(keeps(both, R"({"meta": {"set": "Books", "score": 2}})"));
  CHECK(keeps(both, R"({"meta.set": "Wiki", "meta.score": 2})"));
  // Fields of objects in lists have no name.
  CHECK_THROWS_WITH(keeps(both, R"({"meta": [{"set": "Wiki", "score": 2}]})"),
                    Contains("no field \"meta.set\""));
}

TEST_CASE("filter: a missing field and one of another type are refused with the record", "[data]") {
  CHECK_THROWS_WITH(keeps(one_of("lang", {"en"}), R"({"language": "en"})"),
                    Contains("f:1: where: no field \"lang\""));
  CHECK_THROWS_WITH(keeps(one_of("lang", {"en"}), R"({"lang": 3})"),
                    Contains("field \"lang\" is the number 3, expected a value to compare with en"));
  CHECK_THROWS_WITH(keeps(bounds("score", 1, {}), R"({"score": "high"})"),
                    Contains("field \"score\" is the text \"high\", expected a number"));
  CHECK_THROWS_WITH(keeps(bounds("score", 1, {}), R"({"score": [1]})"), Contains("a list or an object"));
  CHECK_THROWS_WITH(keeps(bounds("score", 1, {}), R"({"score": 1, "score": 2})"), Contains("2 times"));
  CHECK_THROWS_WITH(keeps(bounds("score", 1, {}), "[1]"), Contains("expected a JSON object"));
  CHECK_THROWS_WITH(keeps(bounds("score", 1, {}), "{\"score\": "), Contains("not JSON"));
}

TEST_CASE("filter: deep nesting and long names are read in bounded memory", "[data]") {
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += R"({"a":)";
  deep += "1" + std::string(100'000, '}');
  CHECK_THROWS_WITH(keeps(one_of("b", {"1"}), deep), Contains("no field"));
}

TEST_CASE("build: JSONL and CSV keep the records that meet the filter, and count them", "[data]") {
  TempFolder f;
  write_file(f / "a.jsonl", R"({"text": "one", "lang": "en", "score": 0.9}
{"text": "two", "lang": "de", "score": 0.9}
{"text": "three", "lang": "en", "score": 0.1}
{"text": "four", "lang": "en", "score": 0.5}
)");
  write_file(f / "b.csv", "text,lang,score\none,en,0.9\ntwo,de,0.9\nthree,en,0.1\nfour,en,0.5\n");
  RecordFilter where = one_of("lang", {"en"});
  where.push_back({"score", {}, 0.5, {}});
  for (const char* input : {"a.jsonl", "b.csv"}) {
    const BuildOptions o = build_options(f, input, where);
    const BuildResult result = build_dataset(o);
    CHECK(built_text(o) == "one\nfour\n");
    CHECK(result.filtered.read == 4);
    CHECK(result.filtered.kept == 2);
    CHECK(inspect_source(o.output).filtered.kept == 2);
  }
  CHECK_THAT(error_of([&] { build_dataset(build_options(f, "b.csv", one_of("tongue", {"en"}))); }),
             Contains("b.csv: no field \"tongue\"; the fields are text, lang, score") && Contains("--where"));
  CHECK_THAT(error_of([&] { build_dataset(build_options(f, "a.jsonl", one_of("score", {"en"}))); }),
             Contains("a.jsonl:1: where: field \"score\" is the number 0.9"));
  CHECK_THAT(error_of([&] { build_dataset(build_options(f, "a.jsonl", one_of("lang", {"fr"}))); }),
             Contains("0 of 4 records kept"));
  write_file(f / "c.txt", "plain text");
  CHECK_THAT(error_of([&] { build_dataset(build_options(f, "c.txt", one_of("lang", {"fr"}))); }),
             Contains("where (or --where) says that inputs hold records"));
}

TEST_CASE("build: MDS, TFRecord and tar keep the records that meet the filter", "[data]") {
  // Six records each; the fields that a filter can compare (scripts/golden/make-record-files.py).
  const std::string golden = std::string(LTRAIN_SOURCE_DIR) + "/tests/golden/records/";
  const auto built = [&](const TempFolder& f, const char* name, const char* field, RecordFilter where) {
    BuildOptions o = build_options(f, "", std::move(where));
    o.inputs = {golden + name};
    if (field) o.records.field = field;
    const BuildResult result = build_dataset(o);
    CHECK(result.filtered.read == 6);
    return std::pair(built_text(o), result.filtered.kept);
  };
  TempFolder f;
  const std::pair<std::string, int64_t> first{"first\n", 1};
  for (const char* name : {"shard.mds", "shard.mds.zstd"}) {
    CHECK(built(f, name, nullptr, bounds("n", 5, 5)) == first);
    CHECK(built(f, name, nullptr, one_of("text", {"first"})) == first);
    CHECK(built(f, name, nullptr, bounds("n", 1, 12)).second == 3);
  }
  CHECK(built(f, "examples.tfrecord", "text", one_of("text", {"first", "\u65e5\u672c\u8a9e"})).second == 2);
  CHECK(built(f, "examples.tfrecord", "text", one_of("text", {"first"})) == first);
  CHECK(built(f, "samples.tar.gz", "txt", one_of("json.body", {"first"})) == first);
  CHECK(built(f, "samples.tar.gz", "json.body", one_of("txt", {"first"})) == first);
  CHECK_THAT(error_of([&] { built(f, "shard.mds", nullptr, bounds("m", 1, 2)); }),
             Contains("no field \"m\"; the fields are any (ndarray)") && Contains("--where"));
  CHECK_THAT(error_of([&] { built(f, "examples.tfrecord", "text", one_of("ids", {"1"})); }),
             Contains("where: field \"ids\" is a list or an object"));
  CHECK_THAT(error_of([&] { built(f, "samples.tar.gz", "txt", one_of("cls", {"1"})); }),
             Contains("where: no field \"cls\" in the record"));
}

TEST_CASE("shards: a filter is part of their names, and one that keeps nothing makes an empty shard",
          "[data]") {
  TempFolder f;
  write_file(f / "in/a.jsonl", "{\"text\": \"one\", \"lang\": \"en\"}\n");
  write_file(f / "in/b.jsonl", "{\"text\": \"two\", \"lang\": \"de\"}\n");
  BuildOptions o = build_options(f, "in", {});
  o.output = f / "cache";
  o.shard_bytes = 1;
  const auto tokenizer = make_build_tokenizer(o);
  const std::string plain = shards_of(o, *tokenizer).at(0).prefix;
  o.records.where = one_of("lang", {"en"});
  const std::vector<Shard> shards = shards_of(o, *tokenizer);
  CHECK(shards.at(0).prefix != plain);
  build_shards(shards, o, {});
  CHECK(inspect_source(shards.at(0).prefix).documents == 1);
  REQUIRE(shards.size() == 2);
  CHECK(inspect_source(shards.at(1).prefix).documents == 0);
  CHECK(inspect_source(shards.at(1).prefix).filtered.read == 1);
  o.records.where = one_of("lang", {"en", "de"});
  CHECK(shards_of(o, *tokenizer).at(0).prefix != shards.at(0).prefix);
}
