// Comparison of a ledger of samples (data.ledger) with what the recipe's order reads from the token files.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/data/batch_loader.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

/// A sample that a step was trained on.
struct LedgerEntry {
  int64_t index = 0;  ///< number in the run
  std::string file;   ///< the first token file of its source
  int64_t in_source = 0;
  uint32_t crc = 0;
};

/// How often a run has read the samples of a source.
struct LedgerSource {
  std::string file;             ///< its first token file
  int64_t samples = 0;          ///< number of its samples
  int64_t read = 0;             ///< reads of all of them
  int64_t least = 0, most = 0;  ///< reads of one sample
};

struct LedgerReport {
  int64_t first_step = 0, last_step = 0;
  int64_t first_sample = 0, samples = 0;
  std::vector<LedgerSource> sources;  ///< in the order of the recipe
};

/// Reads all steps of the ledger of a resolved recipe, and reads their samples again with one process. Throws
/// Error (data) if a step is missing, if a sample comes again or not at all, or if it is another than the
/// recipe's order has or has other tokens. `on_step`: gets the samples of each step, in ascending order.
LedgerReport check_ledger(const Recipe& recipe,
                          const std::function<void(int64_t step, const std::vector<LedgerEntry>&)>& on_step);

}  // namespace ltrain
