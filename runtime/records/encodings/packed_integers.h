// Bit-packed integers: Parquet's runs, bit-packed levels, and differences. Throws Damage.
#pragma once
#include <array>

#include "runtime/records/encodings/damage.h"

namespace ltrain::records {

/// Bits of the largest value `most`.
int bits_for(uint32_t most);

/// RLE: runs of one value, and groups of eight bit-packed values.
class RunReader {
 public:
  RunReader() = default;
  /// `bits`: width of a value, 0 to 32.
  RunReader(Bytes bytes, int bits);
  /// Decodes exactly n values; Damage if fewer are left.
  void decode(uint32_t* to, int64_t n);

 private:
  void next_run();

  const uint8_t *p_ = nullptr, *end_ = nullptr;
  int bits_ = 0;
  int64_t left_ = 0;              // values of the present run
  bool packed_ = false;           // it is bit-packed
  int64_t first_ = 0;             // index of its next value, if packed
  const uint8_t* run_ = nullptr;  // its bytes, if packed
  uint32_t value_ = 0;            // otherwise its value
};

/// BIT_PACKED levels of old files, from the most significant bit on.
class LevelBitsReader {
 public:
  LevelBitsReader() = default;
  LevelBitsReader(Bytes bytes, int bits) : bytes_(bytes), bits_(bits) {}
  void decode(uint32_t* to, int64_t n);

 private:
  Bytes bytes_;
  int bits_ = 0;
  uint64_t bit_ = 0;
};

/// DELTA_BINARY_PACKED. Sums wrap at 64 bits.
class DeltaReader {
 public:
  DeltaReader() = default;
  explicit DeltaReader(Bytes bytes);
  int64_t left() const { return left_; }  ///< values that are not decoded yet
  void decode(int64_t* to, int64_t n);
  /// Bytes behind the encoded values, found without decoding. To be called before decode().
  Bytes rest() const;

 private:
  struct Block {
    const uint8_t* p;
    std::array<uint8_t, 512> widths;
    int64_t min_delta;
  };
  void read_block(Block& block) const;
  void next_miniblock();

  const uint8_t* end_ = nullptr;
  int64_t miniblocks_ = 0, per_miniblock_ = 0;  // miniblocks of a block, values of a miniblock
  int64_t left_ = 0;
  bool first_ = true;  // the first value is `value_`, without a difference
  uint64_t value_ = 0;
  Block block_{};
  int64_t miniblock_ = 0;  // the next in block_
  const uint8_t* packed_ = nullptr;
  int64_t index_ = 0, in_miniblock_ = 0;  // next value and values of the present miniblock
  int width_ = 0;
  bool cut_ = false;  // the bytes end in the present miniblock
};

}  // namespace ltrain::records
