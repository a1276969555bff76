// Adapters as a folder of PEFT: adapter_config.json and adapter_model.safetensors.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "runtime/checkpoint/piece_reader.h"
#include "runtime/recipe/recipe.h"
#include "runtime/weights/export.h"

namespace ltrain {

/// Writes the adapters of a checkpoint, and the modules that train beside them, in fp32. `base`: folder or
/// name of the model that they adapt.
void write_adapter_folder(PieceReader& reader, const Recipe& recipe, const std::string& base,
                          const std::string& folder, ExportReport& report);

/// Opens a folder of PEFT for the recipe's adapters. Throws Error (storage) if a file is damaged, and Error
/// (usage) with key or tensor and rule if the folder has other adapters than the recipe, or settings that
/// ltrain does not have.
std::unique_ptr<PieceReader> open_adapter_folder(const std::string& folder, const Recipe& recipe);

}  // namespace ltrain
