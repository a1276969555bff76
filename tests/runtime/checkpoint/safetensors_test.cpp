// Reader and writer of safetensors: bytes equal to the reference library's, and every reject.
#include "runtime/checkpoint/safetensors.h"

#include <catch2/catch.hpp>

#include <cstring>
#include <random>

#include "runtime/files/write_file.h"
#include "tests/runtime/checkpoint/support.h"
#include "tests/support/read_file.h"
#include "tests/support/temporary_folder.h"

using namespace ltrain;
using namespace ltrain::test;
using Catch::Contains;

namespace {

std::string with_header(const std::string& header, const std::string& data = "") {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(static_cast<uint64_t>(header.size()) >> (8 * i));
  return bytes + header + data;
}

/// The golden tensors of scripts/checks/check-safetensors.py.
struct Golden {
  std::vector<float> b{0, 1, 2, 3, 4, 5}, a{0, 0.5f, 1, 1.5f};
  int64_t count = 7;
  std::vector<uint16_t> ids{0, 1, 2, 3, 4};
  std::vector<uint8_t> bytes{0, 1, 2};
  double odd = 1.25;
  std::vector<SafetensorsItem> items() const {
    return {{"b.weight", DType::f32, {2, 3}, b.data()},
            {"a.weight", DType::f32, {4}, a.data()},
            {"count", DType::i64, {}, &count},
            {"ids", DType::u16, {5}, ids.data()},
            {"bytes", DType::u8, {3}, bytes.data()},
            {"empty", DType::f32, {0, 4}, nullptr},
            {"odd \"name\" \\ \xc3\xa9", DType::f64, {1}, &odd}};
  }
};

}  // namespace

TEST_CASE("a file equals the reference library's byte for byte", "[safetensors]") {
  const TemporaryFolder folder;
  const Golden golden;
  NewFile file(folder.path() + "/x.safetensors");
  write_safetensors(file, golden.items());
  const std::string written = read_file(file.path());
  const std::string reference =
      read_file(std::string(LTRAIN_SOURCE_DIR) + "/tests/runtime/checkpoint/golden/reference.safetensors");
  REQUIRE(reference.size() > 100);
  CHECK((written == reference));
  CHECK(file.bytes() == static_cast<int64_t>(written.size()));
  CHECK(file.bytes() == safetensors_size(golden.items(), {{"format", "pt"}}));
  CHECK(file.hash() == hash_text(written));
}

TEST_CASE("the reference library's file is read", "[safetensors]") {
  const SafetensorsFile f(std::string(LTRAIN_SOURCE_DIR) +
                          "/tests/runtime/checkpoint/golden/reference.safetensors");
  CHECK(f.entries().size() == 7);
  CHECK(f.metadata().at("format") == "pt");
  const SafetensorsEntry* b = f.find("b.weight");
  REQUIRE(b);
  CHECK(b->dtype == "F32");
  CHECK(b->shape == std::vector<int64_t>{2, 3});
  float row[3];
  f.read(*b, 12, 12, row);
  CHECK(row[0] == 3);
  CHECK(row[2] == 5);
  CHECK(f.find("odd \"name\" \\ \xc3\xa9"));
  CHECK_FALSE(f.find("c.weight"));
}

TEST_CASE("what the reference refuses is refused", "[safetensors]") {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/x.safetensors";
  const auto refusal = [&](const std::string& bytes) {
    write_file(path, bytes);
    return error_of([&] { SafetensorsFile f(path); });
  };
  const std::string good = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  CHECK(refusal(with_header(good, "1234")) == "");                  // negative control
  CHECK(refusal(with_header("  " + good + "\n  ", "1234")) == "");  // white space is allowed on purpose
  CHECK(refusal(with_header("{}")) == "");
  CHECK(refusal(with_header(R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})", "1234")) == "");
  const std::pair<std::string, std::string> table[] = {
      {"", "0 bytes; the header length alone takes 8"},
      {"1234567", "7 bytes; the header length alone takes 8"},
      {std::string("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10),
       "a header of 18446744073709551615 bytes; at most 100000000 are allowed"},
      {std::string("\x01\xe1\xf5\x05\0\0\0\0{}", 10), "a header of 100000001 bytes; at most"},
      {std::string("\x03\0\0\0\0\0\0\0{}", 10), "a header of 3 bytes in a file of 10"},
      {with_header(""), "the header is not JSON: "},
      {with_header("{\"a\xff\":1}"), "the header is not JSON: "},
      {with_header("{"), "the header is not JSON: "},
      {with_header("{}x"), "the header is not JSON: "},
      {with_header("[]"), "the header is not a JSON object"},
      {with_header("\xEF\xBB\xBF{}"), "byte-order mark"},
      {with_header(std::string("{}\0{", 4)), "NUL byte"},
      {with_header(std::string(1000, '[')), "the header"},
      {with_header(
           R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
           "12345678"),
       "the key \"a\" stands twice"},
      {with_header(R"({"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "1234"),
       "the key \"dtype\" stands twice"},
      {with_header(R"({"__metadata__":{"a":1}})"), "__metadata__ \"a\" is not a text"},
      {with_header(R"({"__metadata__":[]})"), "__metadata__ is not an object"},
      {with_header(R"({"a":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}})", "1234"),
       "unknown dtype \"F33\""},
      {with_header(R"({"a":{"dtype":"f32","shape":[1],"data_offsets":[0,4]}})", "1234"),
       "unknown dtype \"f32\""},
      {with_header(R"({"a":{"shape":[1],"data_offsets":[0,4]}})", "1234"),
       "lacks dtype, shape or data_offsets"},
      {with_header(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", "1234"), "a dim is -1"},
      {with_header(R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", "1234"), "a dim is 1.0"},
      {with_header(R"({"a":{"dtype":"F32","shape":1,"data_offsets":[0,4]}})", "1234"), "shape is not a list"},
      {with_header(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}})", "1234"),
       "overflows"},
      {with_header(R"({"a":{"dtype":"F64","shape":[4611686018427387904],"data_offsets":[0,4]}})", "1234"),
       "overflows"},
      {with_header(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", "1234"),
       "do not hold the 8 bytes"},
      {with_header(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", "1234"), "offsets 4 to 0"},
      {with_header(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}})", "1234"),
       "data_offsets is not [begin, end]"},
      {with_header(R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}})", "1"),
       "not a whole number of bytes"},
      {with_header(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", "12345678"), "a gap"},
      {with_header(
           R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})",
           "123456"),
       "an overlap"},
      {with_header(good, "12345"), "the tensors take 4 bytes and the file has 5 after the header"},
      {with_header(good, "123"), "the tensors take 4 bytes and the file has 3 after the header"}};
  for (const auto& [bytes, text] : table) {
    INFO(text);
    CHECK_THAT(refusal(bytes), Contains(path + ": not a safetensors file: ") && Contains(text));
  }
}

TEST_CASE("damaged headers never crash the reader", "[safetensors][fuzz]") {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/x.safetensors";
  const std::string good =
      read_file(std::string(LTRAIN_SOURCE_DIR) + "/tests/runtime/checkpoint/golden/reference.safetensors");
  std::mt19937_64 g(7);
  int refused = 0;
  for (int round = 0; round < 500; ++round) {
    std::string bytes = good;
    for (uint64_t k = 0; k <= g() % 3; ++k) bytes[g() % 0x1d8] = static_cast<char>(g());
    if (g() % 8 == 0) bytes.resize(g() % bytes.size());
    write_file(path, bytes);
    refused += !error_of([&] {
                  SafetensorsFile f(path);
                  std::vector<char> buffer(1024);
                  for (const SafetensorsEntry& e : f.entries())
                    f.read(e, 0, std::min<int64_t>(e.end - e.begin, 1024), buffer.data());
                }).empty();
  }
  CHECK(refused > 250);
}
