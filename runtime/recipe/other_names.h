// Translation of other trainers' settings to recipe keys, from the tables of docs/coming-from.md.
#pragma once
#include <string>

namespace ltrain::recipe {

/// Contents of docs/coming-from.md, embedded by CMake.
extern const char* const kComingFrom;

/// "the Hugging Face Trainer's `bf16` is precision: bf16 here" for a setting of another trainer, with any
/// difference in meaning. `name`: as on its command line, in its file or in its arguments. Empty for an
/// unknown name.
std::string in_other_trainers(const std::string& name);

}  // namespace ltrain::recipe
