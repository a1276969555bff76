// Profiles from what other programs measured.
#pragma once
#include <string>

namespace ltrain {

/// A profile or cluster file of the output of nccl-tests (all_reduce_perf), or of a card's file of
/// `ltrain bench`. `file` stands for it in messages and in the figures' references. Throws Error (usage)
/// where it is neither, with the line.
std::string import_profile(const std::string& text, const std::string& file);

}  // namespace ltrain
