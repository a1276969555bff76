#include "runtime/records/encodings/packed_integers.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace ltrain::records {
namespace {

uint64_t varint(const uint8_t*& p, const uint8_t* end) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (p == end) damaged("encoded integers end in the middle of a header");
    const uint64_t b = *p++;
    value |= (b & 0x7F) << shift;
    if (b < 0x80) return value;
  }
  damaged("encoded integers have a header of more than 64 bits");
}

int64_t zigzag(uint64_t v) { return static_cast<int64_t>(v >> 1 ^ (~(v & 1) + 1)); }

/// The value of `bits` bits (0 to 64) that starts at bit `at`, from the least significant bit on.
uint64_t unpack(const uint8_t* p, const uint8_t* end, uint64_t at, int bits) {
  if (bits == 0) return 0;
  const uint8_t* from = p + at / 8;
  const int shift = static_cast<int>(at % 8);
  uint64_t low = 0, high = 0;
  const auto have = static_cast<size_t>(end - from);
  std::memcpy(&low, from, std::min<size_t>(8, have));
  low >>= shift;
  if (shift + bits > 64 && have > 8) {
    high = from[8];
    low |= high << (64 - shift);
  }
  return bits == 64 ? low : low & ((uint64_t{1} << bits) - 1);
}

}  // namespace

static_assert(std::endian::native == std::endian::little);

int bits_for(uint32_t most) { return static_cast<int>(std::bit_width(most)); }

RunReader::RunReader(Bytes bytes, int bits) : p_(bytes.data()), end_(p_ + bytes.size()), bits_(bits) {
  if (bits < 0 || bits > 32) damaged("encoded integers have {} bits, expected 0 to 32", bits);
}

void RunReader::next_run() {
  const uint64_t head = varint(p_, end_);
  if (head >> 1 > uint64_t{1} << 32) damaged("a run has {} values", head >> 1);
  packed_ = head & 1;
  const auto have = static_cast<uint64_t>(end_ - p_);
  if (packed_) {
    // The last group may be cut short by writers that leave out its unused bytes.
    const uint64_t bytes = std::min<uint64_t>((head >> 1) * static_cast<uint64_t>(bits_), have);
    left_ = static_cast<int64_t>(head >> 1) * 8;
    if (bits_ > 0)
      left_ = std::min<int64_t>(left_, static_cast<int64_t>(bytes * 8 / static_cast<uint64_t>(bits_)));
    first_ = 0;
    run_ = p_;
    p_ += bytes;
    return;
  }
  const auto bytes = static_cast<uint64_t>(bits_ + 7) / 8;
  if (bytes > have) damaged("encoded integers end in the middle of a run");
  left_ = static_cast<int64_t>(head >> 1);
  value_ = 0;
  if (bytes > 0) std::memcpy(&value_, p_, bytes);
  p_ += bytes;
  if (bits_ < 32 && value_ >> bits_ != 0) damaged("a run has the value {} in {} bits", value_, bits_);
}

void RunReader::decode(uint32_t* to, int64_t n) {
  while (n > 0) {
    while (left_ == 0) next_run();
    const int64_t now = std::min(n, left_);
    if (!packed_) {
      std::fill(to, to + now, value_);
    } else {
      auto at = static_cast<uint64_t>(first_) * static_cast<uint64_t>(bits_);
      const uint64_t mask = bits_ == 32 ? 0xFFFFFFFFu : (uint64_t{1} << bits_) - 1;
      int64_t i = 0;
      for (; i < now && end_ - run_ - static_cast<int64_t>(at / 8) >= 8;
           ++i, at += static_cast<uint64_t>(bits_)) {
        uint64_t word = 0;
        std::memcpy(&word, run_ + at / 8, 8);
        to[i] = static_cast<uint32_t>(word >> (at % 8) & mask);
      }
      for (; i < now; ++i, at += static_cast<uint64_t>(bits_))
        to[i] = static_cast<uint32_t>(unpack(run_, end_, at, bits_));
      first_ += now;
    }
    to += now;
    n -= now;
    left_ -= now;
  }
}

void LevelBitsReader::decode(uint32_t* to, int64_t n) {
  if (n > 0 && (bit_ + static_cast<uint64_t>(n) * static_cast<uint64_t>(bits_) + 7) / 8 > bytes_.size())
    damaged("bit-packed levels end early");
  for (int64_t i = 0; i < n; ++i) {
    uint32_t value = 0;
    for (int b = 0; b < bits_; ++b, ++bit_) value = value << 1 | (bytes_[bit_ / 8] >> (7 - bit_ % 8) & 1u);
    to[i] = value;
  }
}

DeltaReader::DeltaReader(Bytes bytes) : end_(bytes.data() + bytes.size()) {
  const uint8_t* p = bytes.data();
  const uint64_t block = varint(p, end_), miniblocks = varint(p, end_), values = varint(p, end_);
  value_ = static_cast<uint64_t>(zigzag(varint(p, end_)));
  if (miniblocks == 0 || miniblocks > block_.widths.size() || block == 0 || block > uint64_t{1} << 24 ||
      block % miniblocks != 0 || block / miniblocks % 32 != 0)
    damaged("differences have blocks of {} values in {} miniblocks, expected a multiple of 32 in each", block,
            miniblocks);
  if (values > uint64_t{1} << 32) damaged("differences have {} values", values);
  miniblocks_ = static_cast<int64_t>(miniblocks);
  per_miniblock_ = static_cast<int64_t>(block / miniblocks);
  left_ = static_cast<int64_t>(values);
  block_.p = p;
  miniblock_ = miniblocks_;  // none is read
}

void DeltaReader::read_block(Block& block) const {
  block.min_delta = zigzag(varint(block.p, end_));
  const int64_t have = end_ - block.p;
  if (have < miniblocks_) damaged("differences end in the header of a block");
  std::copy(block.p, block.p + miniblocks_, block.widths.begin());
  block.p += miniblocks_;
}

void DeltaReader::next_miniblock() {
  if (cut_) damaged("differences end early");
  if (miniblock_ == miniblocks_) {
    read_block(block_);
    miniblock_ = 0;
  }
  width_ = block_.widths[static_cast<size_t>(miniblock_++)];
  if (width_ > 64) damaged("differences have {} bits, expected 0 to 64", width_);
  const int64_t bytes = per_miniblock_ * width_ / 8, have = end_ - block_.p;
  in_miniblock_ = per_miniblock_;
  // The last miniblock may be cut behind its last value.
  cut_ = bytes > have;
  if (cut_) in_miniblock_ = have * 8 / width_;
  packed_ = block_.p;
  block_.p += std::min(bytes, have);
  index_ = 0;
}

void DeltaReader::decode(int64_t* to, int64_t n) {
  if (n > left_) damaged("{} encoded integers are left, expected {}", left_, n);
  left_ -= n;
  if (n > 0 && first_) {
    *to++ = static_cast<int64_t>(value_);
    first_ = false;
    --n;
  }
  while (n > 0) {
    while (index_ == in_miniblock_) next_miniblock();
    const int64_t now = std::min(n, in_miniblock_ - index_);
    for (int64_t i = 0; i < now; ++i, ++index_) {
      const auto at = static_cast<uint64_t>(index_) * static_cast<uint64_t>(width_);
      value_ += static_cast<uint64_t>(block_.min_delta) + unpack(packed_, end_, at, width_);
      to[i] = static_cast<int64_t>(value_);
    }
    to += now;
    n -= now;
  }
}

Bytes DeltaReader::rest() const {
  Block block = block_;
  int64_t miniblock = miniblock_;
  for (int64_t left = left_ - (first_ ? 1 : 0); left > 0; left -= per_miniblock_) {
    if (miniblock == miniblocks_) {
      read_block(block);
      miniblock = 0;
    }
    const int64_t bytes = per_miniblock_ * block.widths[static_cast<size_t>(miniblock++)] / 8;
    if (bytes > end_ - block.p) damaged("differences end early");
    block.p += bytes;
  }
  return {block.p, static_cast<size_t>(end_ - block.p)};
}

}  // namespace ltrain::records
