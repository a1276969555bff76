// Arrow IPC files. The oracle is pyarrow: tests/golden/records, by scripts/golden/make-records-golden.py.
#include "runtime/records/arrow.h"

#include <cstring>

#include "tests/runtime/records/golden_path.h"
#include "tests/runtime/records/support.h"

using namespace ltrain;
using namespace ltrain::records;
using namespace ltrain::records::test;

namespace {

std::unique_ptr<RecordSource> open_golden_arrow(const std::string& name, const Selection& selection) {
  return open_arrow(std::make_shared<data::InputFile>(golden_path(name)), name, selection);
}

std::string arrow_refused(const std::string& bytes, const Selection& selection = as_json()) {
  MemoryFile file;
  return error_of([&] { read_all(*open_arrow(file.with(bytes), "x.arrow", selection)); });
}

}  // namespace

TEST_CASE("Arrow records as JSON equal those that pyarrow reads, from streams and files, compressed or not") {
  for (const auto& [name, rows] : golden_files(".arrow")) {
    INFO(name);
    const auto records = read_all(*open_golden_arrow(name, as_json()));
    REQUIRE(records.size() == rows.size());
    for (size_t i = 0; i < rows.size(); ++i) CHECK(json::parse(records[i].text) == rows[i]);
  }
}

TEST_CASE("Arrow text and tokens of one field keep null and empty values apart") {
  for (const auto& [name, rows] : golden_files(".arrow")) {
    if (!rows[0].contains("text")) continue;
    INFO(name);
    const auto texts = read_all(*open_golden_arrow(name, field("text")));
    REQUIRE(texts.size() == rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      CHECK(texts[i].null == rows[i]["text"].is_null());
      if (!texts[i].null) CHECK(json(texts[i].text) == rows[i]["text"]);
    }
    if (!rows[0].contains("tokens")) continue;
    const auto lists = read_all(*open_golden_arrow(name, field("tokens")));
    for (size_t i = 0; i < rows.size(); ++i) {
      CHECK(lists[i].null == rows[i]["tokens"].is_null());
      CHECK(lists[i].has_tokens != lists[i].null);
      if (!lists[i].null) CHECK(json(lists[i].tokens) == rows[i]["tokens"]);
    }
  }
}

TEST_CASE("an Arrow source tells position, progress and schema") {
  const auto source = open_golden_arrow("stream.arrow", field("text"));
  Record record;
  for (int i = 0; i < 20; ++i) REQUIRE(source->next(record));
  CHECK(source->position() == "record batch 1, row 4");  // the first has 15
  const int64_t half = source->consumed(),
                size = static_cast<int64_t>(read_file(golden_path("stream.arrow")).size());
  CHECK(half > size / 4);
  CHECK(half < size);
  CHECK(read_all(*source).size() == 20);
  CHECK(source->consumed() == size);
  for (const char* name : {"stream.arrow", "file-lz4.arrow"}) {
    const FileSchema schema = arrow_schema(std::make_shared<data::InputFile>(golden_path(name)), name);
    CHECK(schema.rows == 40);
    REQUIRE(schema.fields.size() == 4);
    CHECK(schema.fields[3].type == "list<struct<role: string, content: string>>");
  }
}

TEST_CASE("Arrow fields that are missing or of another type are refused with what the file has") {
  CHECK(error_of([] { open_golden_arrow("stream.arrow", field("token")); }) ==
        "65: stream.arrow: no field \"token\"; the fields are text (string), tokens (list<int32>), score "
        "(float64), messages "
        "(list<struct<role: string, content: string>>); the nearest is \"tokens\". Name one with --field, in "
        "a recipe: text");
  CHECK_THAT(
      error_of([] { open_golden_arrow("stream.arrow", field("score")); }),
      Catch::StartsWith("65: stream.arrow: field \"score\" has the type float64; expected string or binary"));
}

TEST_CASE("Arrow files that are cut or something else are refused") {
  const std::string stream = read_file(golden_path("stream.arrow")),
                    file = read_file(golden_path("file-lz4.arrow"));
  CHECK_THAT(arrow_refused(stream.substr(0, stream.size() - 100), field("text")),
             Catch::StartsWith("65: x.arrow: record batch 1, row 14: a message has"));
  CHECK(arrow_refused(file.substr(0, file.size() - 1)) ==
        "65: x.arrow: the file does not end with ARROW1: an Arrow file that is incomplete or damaged");
  CHECK(arrow_refused("") == "65: x.arrow: the stream does not start with a schema: not an Arrow file");
  CHECK_THAT(arrow_refused("{\"text\": \"JSON\"}"),
             Catch::StartsWith("65: x.arrow: metadata has 1702109819 bytes"));
}

TEST_CASE("an offset of Arrow text that goes back is an error with record batch and row") {
  std::string bytes = read_file(golden_path("stream.arrow"));
  const std::string offsets("\x00\x00\x00\x00\x01\x00\x00\x00\x06\x00\x00\x00",
                            12);  // end of "0", end of "user1"
  const size_t at = bytes.find(offsets);
  REQUIRE(at != std::string::npos);
  bytes[at + 8] = 0;
  CHECK(arrow_refused(bytes, field("text")) ==
        "65: x.arrow: record batch 0, row 1: a value goes from 1 to 0");
  CHECK(arrow_refused(bytes, field("tokens")).empty());
}

TEST_CASE("a position in an Arrow footer that is outside the file is an error") {
  std::string bytes = read_file(golden_path("file-lz4.arrow"));
  int32_t schema = 0;
  std::memcpy(&schema, bytes.data() + 12, 4);  // behind ARROW1 and a marker
  const int64_t first = 16 + schema;
  for (const int64_t to : {INT64_MIN, int64_t{-1}, int64_t{1} << 40}) {
    std::string damaged = bytes;
    const size_t at = bytes.rfind(std::string(reinterpret_cast<const char*>(&first), 8));
    REQUIRE(at > bytes.size() / 2);
    std::memcpy(damaged.data() + at, &to, 8);
    CHECK(arrow_refused(damaged) ==
          fmt::format("65: x.arrow: the footer points to byte {}, and the file has {}", to, bytes.size()));
  }
}

TEST_CASE("damaged Arrow files end in an error or in records, never in a crash") {
  Outcomes cut, changed;
  for (const auto& [name, rows] : golden_files(".arrow"))
    damage(open_arrow, read_file(golden_path(name)), 300, cut, changed);
  CHECK(cut.read < 100);  // at the ends of messages of streams alone
  CHECK(changed.errors > 200);
  CHECK(changed.read > 100);
}
