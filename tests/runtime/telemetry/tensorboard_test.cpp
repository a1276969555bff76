// TensorBoard event files, byte by byte: the version record against a recorded vector, scalars through a
// reader of the format that shares nothing with the writer, and CRC-32C against RFC 3720's vectors.
#include "runtime/telemetry/tensorboard.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <set>
#include <vector>

#include "base/error.h"
#include "base/hash/crc32c.h"
#include "tests/support/read_file.h"
#include "tests/support/temporary_folder.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

std::string from_hex(const std::string& text) {
  std::string out;
  for (size_t i = 0; i + 1 < text.size(); i += 2)
    out += static_cast<char>(std::stoi(text.substr(i, 2), nullptr, 16));
  return out;
}

/// CRC-32C bit by bit.
uint32_t slow_crc32c(const std::string& data) {
  uint32_t c = ~0u;
  for (unsigned char byte : data) {
    c ^= byte;
    for (int i = 0; i < 8; ++i) c = (c >> 1) ^ (c & 1 ? 0x82F63B78u : 0);
  }
  return ~c;
}
uint32_t slow_mask(uint32_t c) { return ((c >> 15) | (c << 17)) + 0xa282ead8u; }

template <class T>
T take(const std::string& bytes, size_t at) {
  T v;
  if (at + sizeof v > bytes.size()) throw std::runtime_error("the file ends within a record");
  std::memcpy(&v, bytes.data() + at, sizeof v);
  return v;
}

/// Records of a TFRecord file; throws when a length or a checksum is wrong.
std::vector<std::string> records(const std::string& file) {
  std::vector<std::string> out;
  for (size_t at = 0; at < file.size();) {
    const uint64_t length = take<uint64_t>(file, at);
    if (take<uint32_t>(file, at + 8) != slow_mask(slow_crc32c(file.substr(at, 8))))
      throw std::runtime_error("length crc");
    if (length > file.size() - at - 12) throw std::runtime_error("the file ends within a record");
    const std::string data = file.substr(at + 12, length);
    if (take<uint32_t>(file, at + 12 + length) != slow_mask(slow_crc32c(data)))
      throw std::runtime_error("data crc");
    out.push_back(data);
    at += 16 + length;
  }
  return out;
}

struct Field {
  int number = 0, wire = 0;
  uint64_t varint = 0;
  std::string bytes;
};

/// Fields of a protobuf message.
std::vector<Field> fields(const std::string& m) {
  std::vector<Field> out;
  size_t at = 0;
  const auto varint = [&] {
    uint64_t v = 0;
    for (int shift = 0;; shift += 7) {
      const auto b = static_cast<unsigned char>(m.at(at++));
      v |= static_cast<uint64_t>(b & 0x7f) << shift;
      if (b < 0x80) return v;
    }
  };
  while (at < m.size()) {
    const uint64_t key = varint();
    Field f{static_cast<int>(key >> 3), static_cast<int>(key & 7), 0, ""};
    const size_t fixed = f.wire == 1 ? 8 : f.wire == 5 ? 4 : 0;
    if (f.wire == 0) f.varint = varint();
    const size_t length = f.wire == 2 ? varint() : fixed;
    if (at + length > m.size()) throw std::runtime_error("a field ends after its message");
    f.bytes = m.substr(at, length);
    at += length;
    out.push_back(f);
  }
  return out;
}

std::string only_file(const std::string& folder) {
  std::vector<std::string> found;
  for (const auto& e : std::filesystem::directory_iterator(folder)) found.push_back(e.path().string());
  REQUIRE(found.size() == 1);
  return found[0];
}

}  // namespace

TEST_CASE("CRC-32C of RFC 3720's vectors", "[telemetry]") {
  const auto crc = [](const std::string& s) { return crc32c(s.data(), s.size()); };
  CHECK(crc("") == 0);
  CHECK(crc("123456789") == 0xE3069283u);
  CHECK(crc(std::string(32, '\0')) == 0x8A9136AAu);
  CHECK(crc(std::string(32, '\xff')) == 0x62A8AB43u);
  std::string rising, falling;
  for (int i = 0; i < 32; ++i) rising += static_cast<char>(i), falling += static_cast<char>(31 - i);
  CHECK(crc(rising) == 0x46DD794Eu);
  CHECK(crc(falling) == 0x113FDB5Cu);
  CHECK(crc32c("56789", 5, crc32c("1234", 4)) == 0xE3069283u);  // in two parts
  CHECK(masked_crc32c("123456789", 9) == slow_mask(0xE3069283u));
}

TEST_CASE("the version record is TensorBoard's, byte by byte", "[telemetry]") {
  CHECK(tensorboard_version_record(1.0) ==
        from_hex("1800000000000000a37f4b2209000000000000f03f1a0d627261696e2e4576656e743a3286bf577a"));
}

TEST_CASE("scalars are read back as they were written", "[telemetry]") {
  const TemporaryFolder folder;
  struct Scalar {
    std::string tag;
    int64_t step;
    double value;
  };
  const std::vector<Scalar> written{{"lm_loss", 1, 5.25},
                                    {"lr", 127, 3e-4},
                                    {"exposed_comm_ms/dp", 128, 0},
                                    {"lm_loss", 1 << 20, -1e30},
                                    {"lm_loss", int64_t{1} << 40, NAN}};
  {
    TensorBoardWriter w(folder.path());
    for (const Scalar& s : written) w.scalar(s.tag, s.step, s.value);
    // Every record is on its way to the file when it is made: nothing waits in a buffer for the end of the
    // run.
    CHECK(records(read_file(only_file(folder.path()))).size() == written.size() + 1);
  }
  const std::string path = only_file(folder.path());
  CHECK(path.find("/events.out.tfevents.") != std::string::npos);
  const std::string file = read_file(path);
  const auto all = records(file);
  REQUIRE(all.size() == written.size() + 1);
  CHECK(fields(all[0]).at(1).bytes == "brain.Event:2");
  for (size_t i = 0; i < written.size(); ++i) {
    const auto event = fields(all[i + 1]);
    REQUIRE(event.size() == 3);
    CHECK((event[0].number == 1 && event[0].wire == 1));
    CHECK(take<double>(event[0].bytes, 0) > 1.6e9);  // seconds since 1970
    CHECK((event[1].number == 2 && event[1].varint == static_cast<uint64_t>(written[i].step)));
    REQUIRE(event[2].number == 5);
    const auto summary = fields(event[2].bytes);
    REQUIRE((summary.size() == 1 && summary[0].number == 1));
    const auto value = fields(summary[0].bytes);
    REQUIRE(value.size() == 2);
    CHECK((value[0].number == 1 && value[0].bytes == written[i].tag));
    REQUIRE((value[1].number == 2 && value[1].wire == 5));
    const float got = take<float>(value[1].bytes, 0), want = static_cast<float>(written[i].value);
    CHECK((got == want || (std::isnan(got) && std::isnan(want))));
  }
  // Negative controls: the reader sees a changed bit and a missing byte.
  std::string damaged = file;
  damaged[file.size() - 10] = static_cast<char>(damaged[file.size() - 10] ^ 1);
  CHECK_THROWS(records(damaged));
  CHECK_THROWS(records(file.substr(0, file.size() - 1)));
}

TEST_CASE("a folder that is not there is an error with its path", "[telemetry]") {
  CHECK_THROWS_WITH(TensorBoardWriter("no-such-folder"),
                    Catch::Contains("no-such-folder/events.out.tfevents."));
}

TEST_CASE("events of a run that goes on begin with a restart, in a file that comes after the others",
          "[telemetry]") {
  const TemporaryFolder folder;
  std::vector<std::string> names;
  for (int64_t restart : {1, 6, 3}) {
    TensorBoardWriter w(folder.path(), restart);
    std::set<std::string> all;
    for (const auto& e : std::filesystem::directory_iterator(folder.path())) all.insert(e.path().string());
    REQUIRE(all.size() == names.size() + 1);
    for (const std::string& name : names) all.erase(name);
    names.push_back(*all.begin());
    const auto first = records(read_file(names.back()));
    REQUIRE(first.size() == 2);
    CHECK(fields(first[0]).at(1).bytes == "brain.Event:2");
    // Event { wall_time, step = 2, session_log = 7 { status = 1: START = 1 } } of TensorFlow's event.proto.
    const auto event = fields(first[1]);
    REQUIRE(event.size() == 3);
    CHECK((event[1].number == 2 && event[1].varint == static_cast<uint64_t>(restart)));
    CHECK(event[2].number == 7);
    const auto log = fields(event[2].bytes);
    REQUIRE(log.size() == 1);
    CHECK((log[0].number == 1 && log[0].varint == 1));
  }
  CHECK(std::is_sorted(names.begin(), names.end()));
}
