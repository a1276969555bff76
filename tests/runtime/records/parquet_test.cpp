// Parquet files. The oracle is pyarrow: tests/golden/records, by scripts/golden/make-records-golden.py.
#include "runtime/records/parquet.h"

#include <cstring>

#include "runtime/records/encodings/json_value.h"
#include "runtime/records/parquet_schema.h"
#include "tests/runtime/records/golden_path.h"
#include "tests/runtime/records/support.h"

using namespace ltrain;
using namespace ltrain::records;
using namespace ltrain::records::test;

namespace {

std::string golden_parquet(const std::string& name) { return read_file(golden_path(name + ".parquet")); }

std::unique_ptr<RecordSource> open_golden_parquet(const std::string& name, const Selection& selection) {
  return open_parquet(std::make_shared<data::InputFile>(golden_path(name)), name, selection);
}

/// The error of reading all records of `bytes`.
std::string parquet_refused(const std::string& bytes, const Selection& selection = as_json()) {
  MemoryFile file;
  return error_of([&] { read_all(*open_parquet(file.with(bytes), "x.parquet", selection)); });
}

parquet::SchemaElement element(const std::string& name, parquet::Repetition repetition, int children,
                               parquet::Logical logical = parquet::Logical::none) {
  parquet::SchemaElement e;
  e.name = name;
  e.repetition = repetition;
  e.children = children;
  e.logical = logical;
  if (children == 0) e.type = parquet::Physical::int32;
  return e;
}

std::string type_of(const std::vector<parquet::SchemaElement>& elements) {
  const auto schema = parquet::make_schema(elements);
  return parquet::type_name(schema, schema.fields.at(0));
}

}  // namespace

TEST_CASE(
    "Parquet records as JSON equal those that pyarrow reads, for each encoding, codec and page version") {
  for (const auto& [name, rows] : golden_files(".parquet")) {
    INFO(name);
    const auto records = read_all(*open_golden_parquet(name, as_json()));
    REQUIRE(records.size() == rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      CHECK(json::parse(records[i].text) == rows[i]);
      CHECK_FALSE(records[i].null);
    }
  }
}

TEST_CASE("Parquet text and tokens of one field keep null and empty values apart") {
  for (const auto& [name, rows] : golden_files(".parquet")) {
    if (!rows[0].contains("tokens")) continue;
    INFO(name);
    const auto texts = read_all(*open_golden_parquet(name, field("text")));
    const auto lists = read_all(*open_golden_parquet(name, field("tokens")));
    REQUIRE(texts.size() == rows.size());
    REQUIRE(lists.size() == rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      CHECK(texts[i].null == rows[i]["text"].is_null());
      if (!texts[i].null) CHECK(json(texts[i].text) == rows[i]["text"]);
      CHECK_FALSE(texts[i].has_tokens);
      CHECK(lists[i].null == rows[i]["tokens"].is_null());
      CHECK(lists[i].has_tokens != lists[i].null);
      if (!lists[i].null) CHECK(json(lists[i].tokens) == rows[i]["tokens"]);
    }
  }
}

TEST_CASE("a Parquet source tells position, progress and schema") {
  const auto source = open_golden_parquet("v2-delta-zstd.parquet", field("text"));
  const int64_t size = static_cast<int64_t>(golden_parquet("v2-delta-zstd").size());
  CHECK(source->consumed() == 0);
  Record record;
  for (int i = 0; i < 30; ++i) REQUIRE(source->next(record));
  CHECK(source->position() == "row group 1, row 4");  // the first has 25
  CHECK(source->consumed() == size * 30 / 40);
  read_all(*source);
  CHECK(source->consumed() == size);
  const FileSchema schema = parquet_schema(
      std::make_shared<data::InputFile>(golden_path("v2-delta-zstd.parquet")), "v2-delta-zstd.parquet");
  CHECK(schema.rows == 40);
  REQUIRE(schema.fields.size() == 4);
  CHECK(schema.fields[1].type == "list<int32>");
  CHECK(schema.fields[3].type == "list<struct<role: string, content: string>>");
}

TEST_CASE("Parquet fields that are missing, twice or of another type are refused with what the file has") {
  CHECK(error_of([] { open_golden_parquet("v1-plain-none.parquet", field("texts")); }) ==
        "65: v1-plain-none.parquet: no field \"texts\"; the fields are text (string), tokens (list<int32>), "
        "score "
        "(float64), messages (list<struct<role: string, content: string>>); the nearest is \"text\". Name "
        "one with --field, in a recipe: text");
  CHECK(error_of([] { open_golden_parquet("v1-plain-none.parquet", field("score")); }) ==
        "65: v1-plain-none.parquet: field \"score\" has the type float64; expected string or binary for "
        "text, or a list of "
        "integers for tokens");
  CHECK(error_of([] {
          select_fields({{"a", "int32"}, {"a", "string"}}, field("a"), "x");
        }) == "65: x: two fields have the name \"a\"");
}

TEST_CASE("Parquet files that are cut, encrypted or something else are refused") {
  const std::string good = golden_parquet("v1-plain-none");
  CHECK(parquet_refused("PAR1") == "65: x.parquet: 4 bytes are too short for a Parquet file");
  CHECK(parquet_refused(good.substr(0, good.size() - 1)) ==
        "65: x.parquet: the file does not end with PAR1: a Parquet file that is incomplete or damaged");
  CHECK(parquet_refused("x" + good.substr(1)) ==
        "65: x.parquet: the file does not start with PAR1: not a Parquet file");
  CHECK(parquet_refused(good.substr(0, good.size() - 4) + "PARE") ==
        "65: x.parquet: the footer is encrypted; write the file without encryption");
  const std::string long_footer = good.substr(0, good.size() - 8) + std::string("\xff\xff\x00\x00PAR1", 8);
  CHECK(parquet_refused(long_footer) ==
        fmt::format("65: x.parquet: the footer has 65535 bytes, expected at most {}", good.size() - 12));
}

TEST_CASE("a changed byte in a Parquet page with a checksum is found, and names row group and column") {
  std::string bytes = golden_parquet("v1-dictionary-snappy");
  const size_t at = bytes.find("prefix/one");
  REQUIRE(at != std::string::npos);
  bytes[at] ^= 1;
  const std::string error = parquet_refused(bytes, field("text"));
  CHECK_THAT(error, Catch::StartsWith(
                        "65: x.parquet: row group 0, column text, page at byte 4: the page's checksum is"));
  CHECK(parquet_refused(bytes, field("tokens")).empty());
}

TEST_CASE("a Parquet page of version 2 that is said to be uncompressed is read, as old pyarrow wrote it") {
  std::string bytes = golden_parquet("v2-split-gzip");
  // 3 bytes of definition levels, 0 of repetition levels, compressed, statistics.
  const size_t at = bytes.find(std::string("\x15\x06\x15\x00\x11\x1c", 6));
  REQUIRE(at != std::string::npos);
  bytes[at + 4] = 0x12;  // false
  MemoryFile file;
  const auto records = read_all(*open_parquet(file.with(bytes), "x.parquet", field("text")));
  const auto good = read_all(*open_golden_parquet("v2-split-gzip.parquet", field("text")));
  REQUIRE(records.size() == good.size());
  for (size_t i = 0; i < good.size(); ++i) CHECK(records[i].text == good[i].text);
}

TEST_CASE("a Parquet schema names lists of two and three levels, and lists without an annotation") {
  using parquet::Logical;
  using enum parquet::Repetition;
  const auto root = element("root", required, 1);
  const auto list = element("l", optional, 1, Logical::list);
  const auto item = element("item", optional, 0);
  CHECK(type_of({root, list, element("list", repeated, 1), item}) == "list<int32>");
  CHECK(type_of({root, list, element("element", repeated, 0)}) == "list<int32>");
  CHECK(type_of({root, list, element("array", repeated, 1), item}) == "list<struct<item: int32>>");
  CHECK(type_of({root, list, element("l_tuple", repeated, 1), item}) == "list<struct<item: int32>>");
  CHECK(type_of({root, list, element("pair", repeated, 2), item, item}) ==
        "list<struct<item: int32, item: int32>>");
  CHECK(type_of({root, element("l", repeated, 0)}) == "list<int32>");
  CHECK(type_of({root, element("l", repeated, 1), item}) == "list<struct<item: int32>>");
}

TEST_CASE("a Parquet schema that is too deep, without columns or incomplete is damage") {
  using enum parquet::Repetition;
  std::vector<parquet::SchemaElement> deep(100, element("g", optional, 1));
  deep.push_back(element("leaf", optional, 0));
  CHECK_THROWS_WITH(parquet::make_schema(deep), "the schema is nested deeper than 64 levels");
  auto group = element("g", optional, 0);
  group.type.reset();
  CHECK_THROWS_WITH(parquet::make_schema({element("root", required, 1), group}),
                    "the schema has a group without columns");
  CHECK_THROWS_WITH(parquet::make_schema({element("root", required, 2), element("a", required, 0)}),
                    "the schema ends before all children of its groups");
  CHECK_THROWS_WITH(parquet::make_schema(
                        {element("root", required, 1), element("a", required, 0), element("b", required, 0)}),
                    "the schema has 3 elements, and its root contains 2");
}

TEST_CASE("damaged Parquet files end in an error or in records, never in a crash") {
  Outcomes cut, changed;
  for (const auto& [name, rows] : golden_files(".parquet"))
    damage(open_parquet, golden_parquet(name.substr(0, name.size() - 8)), 300, cut, changed);
  CHECK(cut.read == 0);
  CHECK(changed.errors > 500);  // others change values alone
  CHECK(changed.read > 100);
}
