#include "runtime/weights/import.h"

#include "base/version.h"
#include "runtime/checkpoint/files.h"
#include "runtime/checkpoint/store.h"
#include "runtime/recipe/recipe.h"
#include "runtime/weights/hf_folder.h"
#include "runtime/weights/new_folder.h"
#include "runtime/weights/stream_tensor.h"

namespace ltrain {
namespace {

constexpr int64_t kShardBytes = int64_t{10} << 30;

}  // namespace

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
  int64_t all = 0;
  for (const auto& [name, t] : reader->tensors()) {
    report.parameters += t.shape.elements();
    all += t.shape.elements() * dtype_size(t.dtype);
  }
  NewFolder made(checkpoint);
  made.need(all);
  std::vector<std::vector<SafetensorsItem>> shards(1);
  int64_t in_shard = 0;
  for (const auto& [name, t] : reader->tensors()) {
    SafetensorsItem item{name, t.dtype, dims_of(t.shape), nullptr};
    if (!shards.back().empty() && in_shard + item.bytes() > kShardBytes) {
      shards.emplace_back();
      in_shard = 0;
    }
    in_shard += item.bytes();
    shards.back().push_back(std::move(item));
  }
  Manifest manifest;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = shard_name(static_cast<int>(i), static_cast<int>(shards.size()));
    NewFile file(made.work() + "/" + name);
    SafetensorsWriter writer(file, shards[i]);
    for (const SafetensorsItem& item : writer.items()) {
      const TensorParts& t = reader->tensors().at(item.name);
      const Slice whole = Slice::whole(t.shape);
      stream_tensor(*reader, item.name, item.dtype, whole, false, [&](const void* data, int64_t bytes) {
        writer.write(data, bytes);
        report.bytes += bytes;
        if (progress) progress(report.bytes, all);
      });
      manifest.tensors[item.name] = {t.dtype, t.shape, {{static_cast<int>(i), item.name, whole}}};
      ++report.tensors;
    }
    writer.finish();
    manifest.files.push_back({name, file.bytes(), file.hash()});
  }
  manifest.info.model = model_settings(recipe.model);
  manifest.info.recipe = dump_yaml(recipe);
  manifest.info.written_by = version();
  const std::string text = manifest_to_json(manifest);
  write_text_file(made.work() + "/" + kManifestFile, text);
  sync_folder(made.work());
  write_text_file(made.work() + "/" + kCommitFile, commit_record(text));
  made.commit();
  return report;
}

}  // namespace ltrain
