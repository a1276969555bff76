// Profiles from what other programs measured.
#pragma once
#include <string>

namespace ltrain {

struct ImportOptions {
  std::string card;  ///< of which the file is, where it does not say: one that is built in, or ""
  std::string type;  ///< of the operands, likewise: "bf16", "fp8", ... or ""
};

struct ImportedProfile {
  std::string yaml;
  std::string report;  ///< for people: products of a trace, measured and planned; "" for other files
};

/// A profile or cluster file of the output of nccl-tests (all_reduce_perf), of a card's file of `ltrain
/// bench`, or of matrix products in a trace (traced_products.h). `file` stands for it in messages and in the
/// figures' references. Throws Error (usage) where it is none of these, with the line.
ImportedProfile import_profile(const std::string& text, const std::string& file,
                               const ImportOptions& options = {});

}  // namespace ltrain
