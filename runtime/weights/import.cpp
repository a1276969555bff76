#include "runtime/weights/import.h"

#include "runtime/recipe/recipe.h"
#include "runtime/weights/hf_folder.h"
#include "runtime/weights/write_weights.h"

namespace ltrain {

ImportReport import_folder(const std::string& folder, const std::string& checkpoint,
                           const CopyProgress& progress, const std::vector<std::string>& from_ignore) {
  if (!is_hf_folder(folder))
    fail(ExitCode::usage, "{}: is no folder of Hugging Face: it has no config.json", folder);
  const ModelConfig config =
      hf_recipe(folder, 0, from_ignore).model;  // reports errors of config.json before those of the files
  const HfFolder files = open_hf_folder(folder, "import");
  const Recipe recipe = hf_recipe(folder, modules_in(files, config), from_ignore);
  check_copies(files, recipe.model);
  ImportReport report;
  report.checkpoint = checkpoint;
  report.family = recipe.model.family->name;
  report.notes = recipe.notes;
  const auto reader = hf_weights(files, recipe.model, report.notes);
  std::vector<WrittenTensor> tensors;
  for (const auto& [name, t] : reader->tensors()) {
    report.parameters += t.shape.elements();
    ++report.tensors;
    tensors.push_back({name, t.dtype, t.shape, [&, name = name](const WriteBytes& write) {
                         const TensorParts& from = reader->tensors().at(name);
                         stream_tensor(reads_of(*reader), name, from.dtype, Slice::whole(from.shape), false,
                                       write);
                       }});
  }
  CheckpointInfo info;
  info.model = model_settings(recipe.model);
  info.recipe = dump_yaml(recipe);
  report.bytes = write_weights(checkpoint, tensors, std::move(info), progress);
  return report;
}

}  // namespace ltrain
