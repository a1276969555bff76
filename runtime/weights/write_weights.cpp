#include "runtime/weights/write_weights.h"

#include <algorithm>

#include "base/version.h"
#include "runtime/checkpoint/files.h"
#include "runtime/checkpoint/store.h"
#include "runtime/weights/hf_folder.h"
#include "runtime/weights/new_folder.h"

namespace ltrain {
namespace {

constexpr int64_t kShardBytes = int64_t{10} << 30;

}  // namespace

OldCheckpoint::OldCheckpoint(const std::string& path, std::vector<std::string>& notes)
    : stream_(make_inline_stream("checkpoint")),
      reader_(CheckpointReader::open_at(path, "the checkpoint", true, alone_.groups().world.communicator(),
                                        *stream_, notes)),
      recipe_(parse_recipe(reader_->info().recipe, reader_->path() + " (recipe)")) {
  reader_->take_any_float();
}

WrittenTensor copied_tensor(PieceReader& reader, const std::string& from, std::string name) {
  const TensorParts& t = reader.tensors().at(from);
  return {.name = std::move(name),
          .dtype = t.dtype,
          .shape = t.shape,
          .elements = [&reader, &t, from](const WriteBytes& write) {
            stream_tensor(reads_of(reader), from, t.dtype, Slice::whole(t.shape), false, write);
          }};
}

CheckpointInfo info_of_weights(const Recipe& recipe, int64_t seed, const std::string& made) {
  CheckpointInfo info;
  info.model = model_settings(recipe.model);
  info.recipe = dump_yaml(recipe);
  info.seed = seed;
  parse_recipe(info.recipe, made + " (recipe)");
  return info;
}

std::vector<std::string> changed_settings(const ModelConfig& before, const ModelConfig& after) {
  const auto was = model_settings(before);
  std::vector<std::string> changed;
  for (const auto& setting : model_settings(after))
    if (std::find(was.begin(), was.end(), setting) == was.end())
      changed.push_back(fmt::format("model.{}={}", setting.first, setting.second));
  return changed;
}

int64_t write_weights(const std::string& checkpoint, const std::vector<WrittenTensor>& tensors,
                      CheckpointInfo info, const CopyProgress& progress) {
  int64_t all = 0, written = 0, in_shard = 0;
  for (const WrittenTensor& t : tensors) all += t.shape.elements() * dtype_size(t.dtype);
  NewFolder made(checkpoint);
  made.need(all);
  std::vector<std::vector<SafetensorsItem>> shards(1);
  for (const WrittenTensor& t : tensors) {
    SafetensorsItem item{.name = t.name, .dtype = t.dtype, .shape = dims_of(t.shape), .data = nullptr};
    if (!shards.back().empty() && in_shard + item.bytes() > kShardBytes) {
      shards.emplace_back();
      in_shard = 0;
    }
    in_shard += item.bytes();
    shards.back().push_back(std::move(item));
  }
  Manifest manifest;
  manifest.info = std::move(info);
  manifest.info.written_by = version();
  std::map<std::string, const WrittenTensor*> by_name;
  for (const WrittenTensor& t : tensors) by_name[t.name] = &t;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = shard_name(static_cast<int>(i), static_cast<int>(shards.size()));
    NewFile file(made.work() + "/" + name);
    SafetensorsWriter writer(file, shards[i]);
    for (const SafetensorsItem& item : writer.items()) {
      const WrittenTensor& t = *by_name.at(item.name);
      t.elements([&](const void* data, int64_t bytes) {
        writer.write(data, bytes);
        written += bytes;
        if (progress) progress(written, all);
      });
      manifest.tensors[t.name] = {t.dtype, t.shape, {{static_cast<int>(i), t.name, Slice::whole(t.shape)}}};
    }
    writer.finish();
    manifest.files.push_back({name, file.bytes(), file.hash()});
  }
  const std::string text = manifest_to_json(manifest);
  write_text_file(made.work() + "/" + kManifestFile, text);
  sync_folder(made.work());
  write_text_file(made.work() + "/" + kCommitFile, commit_record(text));
  made.commit();
  return written;
}

}  // namespace ltrain
