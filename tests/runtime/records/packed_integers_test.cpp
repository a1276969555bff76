// Bit-packed integers, from encoders of this test, and damaged.
#include "runtime/records/encodings/packed_integers.h"

#include "tests/runtime/records/support.h"

using namespace ltrain::records;
using namespace ltrain::records::test;

namespace {

using Raw = std::vector<uint8_t>;

/// Values with `bits` bits each, from the least significant bit on.
Raw packed(const std::vector<uint64_t>& values, int bits) {
  Raw bytes((values.size() * static_cast<size_t>(bits) + 7) / 8);
  for (size_t i = 0; i < values.size(); ++i)
    for (int b = 0; b < bits; ++b) {
      const size_t at = i * static_cast<size_t>(bits) + static_cast<size_t>(b);
      bytes[at / 8] = static_cast<uint8_t>(bytes[at / 8] | (values[i] >> b & 1) << at % 8);
    }
  return bytes;
}

void append(Raw& to, const Raw& more) { to.insert(to.end(), more.begin(), more.end()); }

std::vector<uint32_t> decoded(RunReader reader, int64_t n) {
  std::vector<uint32_t> values(static_cast<size_t>(n));
  reader.decode(values.data(), n);
  return values;
}

}  // namespace

TEST_CASE("runs and bit-packed groups of each width are decoded across calls") {
  for (int bits = 1; bits <= 32; ++bits) {
    const uint64_t mask = (uint64_t{1} << bits) - 1;
    std::vector<uint64_t> values;
    for (uint64_t i = 0; i < 24; ++i) values.push_back((i * 0x9E3779B97F4A7C15u >> 7) & mask);
    Raw raw{3 << 1 | 1};  // three groups of eight
    append(raw, packed(values, bits));
    raw.push_back((100 << 1 & 0x7F) | 0x80), raw.push_back(100 << 1 >> 7);  // a run of 100
    append(raw, packed({mask}, (bits + 7) / 8 * 8));
    RunReader reader(raw, bits);
    std::vector<uint32_t> got(124);
    for (size_t at = 0; at < 124; at += 31) reader.decode(got.data() + at, 31);
    for (size_t i = 0; i < 124; ++i) CHECK(got[i] == (i < 24 ? values[i] : mask));
    uint32_t more = 0;
    CHECK_THROWS_AS(reader.decode(&more, 1), Damage);
  }
}

TEST_CASE("runs with false sizes and values are damage") {
  CHECK_THROWS_AS(decoded(RunReader(Raw{}, 1), 1), Damage);
  CHECK_THROWS_AS(decoded(RunReader(Raw{16, 4}, 2), 8), Damage);    // the value 4 in two bits
  CHECK_THROWS_AS(decoded(RunReader(Raw{16}, 2), 8), Damage);       // no value
  CHECK_THROWS_AS(decoded(RunReader(Raw{3, 255}, 8), 2), Damage);   // one byte of eight
  CHECK_THROWS_AS(decoded(RunReader(Raw(12, 255), 8), 1), Damage);  // a header of more than 64 bits
  CHECK_THROWS_AS(RunReader(Raw{1}, 33), Damage);
  CHECK(decoded(RunReader(Raw{200, 1}, 0), 100) == std::vector<uint32_t>(100, 0));
}

TEST_CASE("old levels are packed from the most significant bit on") {
  const Raw raw{0b00'01'10'11, 0b11'00'00'00};
  LevelBitsReader reader(raw, 2);
  std::vector<uint32_t> got(5);
  reader.decode(got.data(), 5);
  CHECK(got == std::vector<uint32_t>{0, 1, 2, 3, 3});
  CHECK_THROWS_AS(reader.decode(got.data(), 4), Damage);
}

TEST_CASE("differences of each width are decoded, and the bytes behind them are found") {
  for (int bits = 0; bits <= 64; ++bits) {
    const uint64_t mask = bits == 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1;
    std::vector<uint64_t> deltas;
    for (uint64_t i = 0; i < 32; ++i) deltas.push_back(bits == 0 ? 0 : (i * 0x9E3779B97F4A7C15u) & mask);
    // Blocks of 128 in four miniblocks, 33 values, the first is 5, the smallest difference -1.
    Raw raw{0x80, 1, 4, 33, 10, 1, static_cast<uint8_t>(bits), 0, 0, 0};
    append(raw, packed(deltas, bits));
    raw.push_back(77);
    DeltaReader reader(raw);
    REQUIRE(reader.rest().size() == 1);
    std::vector<int64_t> got(33);
    reader.decode(got.data(), 10);
    reader.decode(got.data() + 10, 23);
    uint64_t value = 5;
    for (size_t i = 0; i < 33; ++i) {
      CHECK(got[i] == static_cast<int64_t>(value));
      if (i < 32) value += deltas[i] - 1;
    }
    CHECK(reader.left() == 0);
    CHECK_THROWS_AS(reader.decode(got.data(), 1), Damage);
  }
}

TEST_CASE("differences with false headers are damage") {
  const auto refused = [](Raw raw) {
    int64_t values[40];
    CHECK_THROWS_AS(DeltaReader(raw).decode(values, 33), Damage);
  };
  refused({});
  refused({0x80, 1, 0, 33, 10});                          // no miniblock
  refused({0x80, 1, 3, 33, 10});                          // 128 values in 3
  refused({0x80, 1, 8, 33, 10});                          // 16 in each
  refused({0x80, 1, 4, 33, 10, 1, 65, 0, 0, 0});          // 65 bits
  refused({0x80, 1, 4, 33, 10, 1, 1, 0, 0, 0, 1, 1, 1});  // 24 of 32 values
  refused({0x80, 1, 4, 32, 10, 1, 0, 0, 0, 0});           // 32 of 33 values
}
