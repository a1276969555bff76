// Cache for the ids of pieces, because most words occur many times.
#pragma once
#include <xxhash.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace ltrain::data {

/// Hash table with one 64-byte slot per hash, 2 MiB in total. A new piece replaces the old one. Long pieces
/// are not cached.
class PieceCache {
 public:
  PieceCache() : slots_(kSlots) {}

  /// Appends the ids of `piece`. If it is not cached, calls `encode(piece, out)`.
  template <class Encode>
  void encode(std::string_view piece, std::vector<int32_t>& out, Encode&& encode) {
    if (piece.size() > kBytes || piece.empty()) return encode(piece, out);
    Slot& slot = slots_[XXH3_64bits(piece.data(), piece.size()) & (kSlots - 1)];
    if (slot.bytes == piece.size() && std::memcmp(slot.text, piece.data(), piece.size()) == 0) {
      out.insert(out.end(), slot.id, slot.id + slot.ids);
      return;
    }
    const size_t first = out.size();
    encode(piece, out);
    if (out.size() - first > kIds) return;
    slot.bytes = static_cast<uint8_t>(piece.size());
    slot.ids = static_cast<uint8_t>(out.size() - first);
    std::memcpy(slot.text, piece.data(), piece.size());
    std::copy(out.begin() + static_cast<int64_t>(first), out.end(), slot.id);
  }

 private:
  static constexpr size_t kSlots = 1 << 15, kBytes = 30, kIds = 8;
  struct Slot {
    uint8_t bytes = 0, ids = 0;
    char text[kBytes];
    int32_t id[kIds];
  };
  std::vector<Slot> slots_;
};

}  // namespace ltrain::data
