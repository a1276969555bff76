// Byte counts as text for people.
#pragma once
#include <cstdint>
#include <string>

namespace ltrain {

inline constexpr double kMiB = 0x1p20, kGiB = 0x1p30;  ///< bytes

/// "512 B", "1.5 MiB", "209.3 GiB"; TiB from 9,999.95 GiB on, so that numbers compared with a card's memory
/// share its unit.
std::string bytes_text(int64_t bytes);

}  // namespace ltrain
