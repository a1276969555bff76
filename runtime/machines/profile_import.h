// Import of profiles from measurements of other programs.
#pragma once
#include <string>

namespace ltrain {

struct ImportOptions {
  std::string card;  ///< card of the file, if the file does not name it: a built-in one, or ""
  std::string type;  ///< operand type, if the file does not name it: "bf16", "fp8", ... or ""
};

struct ImportedProfile {
  std::string yaml;
  std::string report;  ///< for people: matmuls of a trace, measured and planned; "" for other files
};

/// Makes a profile or cluster file from the output of nccl-tests (all_reduce_perf), a card's file of `ltrain
/// bench`, or matmuls in a trace (traced_products.h). `file`: its name in messages and references. Throws
/// Error (usage) with the line for other files.
ImportedProfile import_profile(const std::string& text, const std::string& file,
                               const ImportOptions& options = {});

}  // namespace ltrain
