// Import of a Hugging Face folder as a checkpoint: `ltrain import`.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/weights/export.h"

namespace ltrain {

struct ImportReport {
  std::string checkpoint;
  std::string family;
  int64_t tensors = 0, parameters = 0, bytes = 0;
  std::vector<std::string> notes;
};

/// Writes the folder's model as a checkpoint of step 0 with weights only, in the types of the files, bit for
/// bit. `from_ignore`: keys of config.json to ignore. Throws Error if `checkpoint` exists, or if the folder
/// is not a complete model of a supported family.
ImportReport import_folder(const std::string& folder, const std::string& checkpoint,
                           const CopyProgress& progress = {},
                           const std::vector<std::string>& from_ignore = {});

}  // namespace ltrain
