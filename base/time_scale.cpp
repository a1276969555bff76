#include "base/time_scale.h"

#include <charconv>
#include <cstdlib>
#include <string_view>

#include "base/error.h"

namespace ltrain {

double time_scale() {
  const char* given = std::getenv("LTRAIN_TIME_SCALE");
  if (!given || !*given) return 1;
  const std::string_view text = given;
  double scale = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), scale);
  if (error != std::errc() || end != text.data() + text.size() || !(scale > 0 && scale <= 1000))
    fail(ExitCode::usage, "LTRAIN_TIME_SCALE={}: must be a number above 0, up to 1000, e.g. 4", text);
  return scale;
}

}  // namespace ltrain
