// Treatment of records that cannot be read.
#pragma once
#include <cstdint>

#include "base/enum_names.h"

namespace ltrain {
namespace data {

enum class OnBadRecord : uint8_t {
  stop,     ///< the first bad record ends the command
  skip,     ///< bad records are skipped, counted and named
  replace,  ///< invalid UTF-8 and unpaired surrogates become U+FFFD; other bad records are skipped
};

}  // namespace data

LT_ENUM_NAMES(data::OnBadRecord, {data::OnBadRecord::stop, "stop"}, {data::OnBadRecord::skip, "skip"},
              {data::OnBadRecord::replace, "replace"});

}  // namespace ltrain
