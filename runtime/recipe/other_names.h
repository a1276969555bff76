// What settings of other trainers are called here, by the tables of docs/coming-from.md.
#pragma once
#include <string>

namespace ltrain::recipe {

/// Contents of docs/coming-from.md, which CMake puts into the program.
extern const char* const kComingFrom;

/// "the Hugging Face Trainer's `bf16` is precision: bf16 here" for a name of another trainer, as its command
/// line, file or arguments have it; with what differs. "" for a name that no table has.
std::string in_other_trainers(const std::string& name);

}  // namespace ltrain::recipe
