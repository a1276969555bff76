#include "base/bytes_text.h"

#include <fmt/format.h>

#include <iterator>

namespace ltrain {

std::string bytes_text(int64_t bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  constexpr size_t kGibibytes = 3;
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while ((value >= 1024 && unit < kGibibytes) || (value >= 9999.95 && unit + 1 < std::size(units))) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, units[unit]);
}

}  // namespace ltrain
