// How the documents of a token file become samples.
#pragma once
#include <cstdint>

#include "base/enum_names.h"

namespace ltrain {
namespace data {

enum class SamplePacking : uint8_t {
  concatenate,  ///< all documents are one stream, which is cut into samples
  best_fit,     ///< documents up to a sample's length are packed whole
  document,     ///< a sample has one document, or a part of a longer one
};

}  // namespace data

LT_ENUM_NAMES(data::SamplePacking, {data::SamplePacking::concatenate, "concatenate"},
              {data::SamplePacking::best_fit, "best_fit"}, {data::SamplePacking::document, "document"});

}  // namespace ltrain
