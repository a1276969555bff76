// Record files by the libraries that write them (scripts/golden/make-record-files.py), and damaged ones.
#include <catch2/catch.hpp>

#include "base/error.h"
#include "base/json/json.h"
#include "tests/runtime/records/golden_path.h"
#include "tests/runtime/records/record_files_support.h"

using namespace ltrain;
using namespace ltrain::records;
using namespace ltrain::records::test;
using Catch::Contains;
using data::test::bytes_of;
using data::test::error_of;
using data::test::read_file;
using data::test::TempFolder;
using data::test::write_file;
using nlohmann::json;

namespace {

const json& expected() {
  static const json j = json::parse(read_file(golden_path("records.json")));
  return j;
}

}  // namespace

TEST_CASE("records: files of streaming, tfrecord and webdataset have the texts that were written",
          "[records]") {
  const Texts texts = expected()["texts"];
  CHECK(texts_of(golden_path("shard.mds"), "text") == texts);
  CHECK(texts_of(golden_path("shard.mds.zstd"), "text") == texts);
  CHECK(texts_of(golden_path("examples.tfrecord"), "text") == texts);
  CHECK(texts_of(golden_path("samples.tar.gz"), "txt") == texts);
  CHECK(texts_of(golden_path("samples.tar.gz"), "json.body") == texts);
}

TEST_CASE("records: integer columns and features are token ids", "[records]") {
  const std::vector<std::vector<int32_t>> ids = expected()["ids"];
  CHECK(ids_of(golden_path("shard.mds"), "ids") == ids);
  CHECK(ids_of(golden_path("shard.mds"), "any") == ids);
  CHECK(ids_of(golden_path("examples.tfrecord"), "ids") == ids);
}

TEST_CASE("records: a whole record is one JSON object", "[records]") {
  Record record;
  REQUIRE(open(golden_path("shard.mds"), {{}, true})->next(record));
  CHECK(json::parse(record.text) ==
        json::parse(R"({"any":[1,2,3],"ids":[1,2,3],"meta":{"a":[1,null]},"n":5,"text":"first"})"));
  REQUIRE(open(golden_path("examples.tfrecord"), {{"text", "weights"}, true})->next(record));
  CHECK(json::parse(record.text) == json::parse(R"({"text":"first","weights":[0.5,1.5]})"));
  REQUIRE(open(golden_path("samples.tar.gz"), {{}, true})->next(record));
  CHECK(json::parse(record.text) ==
        json::parse(R"({"__key__":"sample0","txt":"first","json":{"body":"first"}})"));
}

TEST_CASE("records: a field that does not exist is refused, or null where records have fields of their own",
          "[records]") {
  CHECK_THAT(error_of([] { texts_of(golden_path("shard.mds"), "body"); }),
             Contains("65: ") && Contains("no field \"body\"; the fields are any (ndarray), ids "
                                          "(ndarray:int32), meta (json), n (int), text (str)"));
  CHECK(texts_of(golden_path("examples.tfrecord"), "body") == Texts(6, "NULL"));
  CHECK(texts_of(golden_path("samples.tar.gz"), "cls") == Texts(6, "NULL"));
  CHECK(texts_of(golden_path("examples.tfrecord"), "weights")[0] ==
        "!expected one text or a list of token ids, got 2 floats");
}

TEST_CASE("records: CSV has quotes, line ends within them, and rows of other lengths", "[records]") {
  TempFolder f;
  write_file(f / "a.csv",
             "\xEF\xBB\xBFlang,text\r\nen,plain\r\n\r\nde,\"two\nlines, \"\"quoted\"\"\"\nfr\nit,\n");
  CHECK(texts_of(f / "a.csv", "text") ==
        Texts{"plain", "two\nlines, \"quoted\"", "!expected 2 columns as in the first line, got 1", ""});
  CHECK(texts_of(f / "a.csv", "lang")[1] == "de");
  write_file(f / "a.tsv", "text\tlang\na, b\ten\n");
  CHECK(texts_of(f / "a.tsv", "text") == Texts{"a, b"});
  const auto source = open(f / "a.csv", {{"text"}, false});
  Record r;
  for (int i = 0; i < 3; ++i) REQUIRE(source->next(r));
  CHECK(source->position() == "line 6");
  CHECK_THAT(error_of([&] { texts_of(f / "a.csv", "body"); }), Contains("the fields are lang, text"));
  write_file(f / "b.csv", "text\n\"open\n");
  CHECK_THAT(error_of([&] { texts_of(f / "b.csv", "text"); }), Contains(":2: the file ends within quotes"));
}

TEST_CASE("records: token files of llm.c and nanoGPT are documents between their separators", "[records]") {
  TempFolder f;
  std::vector<int32_t> header(256);
  header[0] = 20240520, header[1] = 1, header[2] = 6;
  const std::vector<uint16_t> tokens{50256, 1, 2, 50256, 3, 4};
  write_file(f / "llmc.bin", bytes_of(header) + bytes_of(tokens));
  write_file(f / "nanogpt.bin", bytes_of(tokens));
  const std::vector<std::vector<int32_t>> documents{{1, 2}, {3, 4}};
  CHECK(ids_of(f / "llmc.bin", "tokens") == documents);
  CHECK(ids_of(f / "nanogpt.bin", "tokens", "nanogpt") == documents);
  header[0] = 20240801, header[1] = 7, header[2] = 3;
  write_file(f / "llama.bin", bytes_of(header) + bytes_of(std::vector<int32_t>{128000, 127999, 128001}));
  CHECK(ids_of(f / "llama.bin", "tokens") == std::vector<std::vector<int32_t>>{{127999, 128001}});
  header[2] = 9;
  write_file(f / "short.bin", bytes_of(header) + bytes_of(std::vector<int32_t>{1}));
  CHECK_THAT(error_of([&] { ids_of(f / "short.bin", "tokens"); }),
             Contains("the file ends after 1 tokens; its header says 9"));
  write_file(f / "odd.bin", "abc");
  CHECK_THAT(error_of([&] { ids_of(f / "odd.bin", "tokens", "nanogpt"); }), Contains("ends within a token"));
}

TEST_CASE("records: gzip members follow one another, and a truncated file is an error", "[records]") {
  const std::string one = read_file(golden_path("samples.tar.gz"));
  TempFolder f;
  for (const size_t size : {one.size() - 1, one.size() / 2, size_t{20}}) {
    write_file(f / "cut.tar.gz", one.substr(0, size));
    CHECK_THAT(error_of([&] { texts_of(f / "cut.tar.gz", "txt"); }),
               Contains("65: ") && Contains("truncated"));
  }
  // Zeros after the last member, as tape programs leave them.
  write_file(f / "padded.tar.gz", one + std::string(1000, '\0'));
  CHECK(texts_of(f / "padded.tar.gz", "txt") == Texts(expected()["texts"]));
  const std::string zstd = read_file(golden_path("shard.mds.zstd"));
  write_file(f / "cut.mds.zstd", zstd.substr(0, zstd.size() - 3));
  CHECK_THAT(error_of([&] { texts_of(f / "cut.mds.zstd", "text"); }), Contains("truncated"));
}

TEST_CASE("records: a wrong checksum of a TFRecord or a tar header is an error with the record",
          "[records]") {
  TempFolder f;
  std::string bytes = read_file(golden_path("examples.tfrecord"));
  bytes[bytes.size() - 6] ^= 1;
  write_file(f / "a.tfrecord", bytes);
  CHECK_THAT(error_of([&] { texts_of(f / "a.tfrecord", "text"); }),
             Contains("record 6 has a wrong checksum"));
  std::string tar(1024, '\0');
  tar[0] = 'x';
  write_file(f / "a.tar", tar);
  CHECK_THAT(error_of([&] { texts_of(f / "a.tar", "txt", "tar"); }),
             Contains("a header with a wrong checksum"));
}
