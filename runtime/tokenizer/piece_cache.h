// Ids of pieces that came before: words come again and again.
#pragma once
#include <xxhash.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace ltrain::data {

/// One slot per hash, the newest wins: 64 bytes a slot, 2 MiB in all. Long pieces are not kept.
class PieceCache {
 public:
  PieceCache() : slots_(kSlots) {}

  /// Appends the ids of `piece`; those it does not have it gets from `encode(piece, out)`.
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
