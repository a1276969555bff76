#include "runtime/weights/load.h"

#include "runtime/checkpoint/convert_elements.h"
#include "runtime/checkpoint/files.h"
#include "runtime/checkpoint/reader.h"
#include "runtime/checkpoint/tensor_reader.h"
#include "runtime/program/train_program.h"
#include "runtime/recipe/schema/schema.h"
#include "runtime/weights/adapter_folder.h"
#include "runtime/weights/hf_folder.h"
#include "runtime/weights/pissa.h"
#include "runtime/weights/row_norms.h"

namespace ltrain {
namespace {

constexpr const char* kKey = "checkpoint.load.path";
using Settings = std::vector<std::pair<std::string, std::string>>;

bool may_differ(const std::string& key) {
  const recipe::Key* row = recipe::find_key("model." + key);
  return row && (row->on_load_any || row->on_resume != recipe::OnResume::same);
}

/// Settings of the model that differ but do not affect the weights: "model.rope_theta is 10000.0 there and
/// 500000.0 here". Throws Error (usage) for other differences.
std::vector<std::string> differences(const std::string& path, const Settings& there, const Settings& here) {
  std::vector<std::string> allowed, refused;
  const auto find = [](const Settings& all, const std::string& key) -> const std::string* {
    for (const auto& [name, value] : all)
      if (name == key) return &value;
    return nullptr;
  };
  const auto compare = [&](const std::string& key, const std::string* a, const std::string* b) {
    if (a && b ? *a == *b : says_nothing(a ? *a : *b)) return;
    (may_differ(key) ? allowed : refused)
        .push_back(
            fmt::format("model.{} is {} there and {} here", key, a ? *a : "absent", b ? *b : "absent"));
  };
  for (const auto& [key, value] : there) compare(key, &value, find(here, key));
  for (const auto& [key, value] : here)
    if (!find(there, key)) compare(key, nullptr, &value);
  if (!refused.empty())
    fail(ExitCode::usage, "{} = {}: is of another model: {}; make the recipe agree", kKey, path,
         fmt::format("{}", fmt::join(refused, "; ")));
  return allowed;
}

/// Returns whether `name` is a parameter and not an optimizer state.
bool is_weight(const std::string& name) { return !name.starts_with("optimizer/"); }

std::string existing_path(const Recipe& recipe) {
  const std::string path = recipe.checkpoint.load_path.value();
  if (!path_exists(path)) fail(ExitCode::storage, "{} = {}: there is no such folder", kKey, path);
  return path;
}

}  // namespace

std::unique_ptr<CheckpointReader> open_loaded_checkpoint(const Recipe& recipe, bool verify_hashes,
                                                         Communicator& control, Stream& stream,
                                                         std::vector<std::string>& notes) {
  const std::string path = existing_path(recipe);
  const LoadParts parts = recipe.checkpoint.load_parts;
  if (is_hf_folder(path))
    fail(ExitCode::usage,
         "checkpoint.load.parts = {}: {} is a folder of Hugging Face, which has weights alone; nearest valid "
         "value: weights",
         to_string(parts), path);
  auto reader = CheckpointReader::open_at(path, kKey, verify_hashes, control, stream, notes);
  constexpr const char* kWhat[] = {"weights", "weights and the optimizer's states", "whole state"};
  notes.push_back(fmt::format("the run begins with the {} of {}, step {}", kWhat[static_cast<size_t>(parts)],
                              reader->path(), reader->info().step));
  for (const std::string& d : differences(reader->path(), reader->info().model, model_settings(recipe.model)))
    notes.push_back("note: " + d);
  return reader;
}

std::unique_ptr<PieceReader> open_weights(const Recipe& recipe, bool verify_hashes, Communicator& control,
                                          Stream& stream, std::vector<std::string>& notes) {
  const std::string path = existing_path(recipe);
  if (!is_hf_folder(path)) return open_loaded_checkpoint(recipe, verify_hashes, control, stream, notes);
  auto reader = hf_weights(open_hf_folder(path, kKey), recipe.model, notes);
  notes.insert(notes.begin(), fmt::format("the run begins with the weights of {}, {} tensors", path,
                                          reader->tensors().size()));
  return reader;
}

/// Fills changes of magnitudes from PEFT's magnitudes, and the norms of the weights' rows.
static void load_magnitudes(PieceReader& adapters, PieceReader& weights, const OwnedPiece& piece,
                            const std::string& name, Stream& stream) {
  const std::string weight = std::string(module_of(module_of(name))) + ".weight";
  std::vector<float> values(static_cast<size_t>(piece.slice.elements()));
  adapters.read(name, DType::f32, piece.slice, values.data());
  const Shape& shape = weights.tensors().at(weight).shape;
  Runs runs(piece.slice);
  for (Run run = runs.next(); run.count > 0; run = runs.next()) {
    const auto norms = row_norms(reads_of(weights), weight, shape, run.global, run.count);
    for (size_t i = 0; i < norms.size(); ++i) {
      float& value = values[static_cast<size_t>(run.local) + i];
      value = static_cast<float>(static_cast<double>(value) - norms[i]);
    }
  }
  std::vector<char> converted(values.size() * static_cast<size_t>(dtype_size(piece.master.dtype)));
  convert_elements(DType::f32, values.data(), piece.master.dtype, converted.data(), piece.slice.elements());
  upload(stream, piece.master, converted.data());
}

/// Collective. Fills the adapters from lora.adapter. `weights`: those that the run begins with.
static void load_adapters(const Recipe& recipe, ParameterStore& parameters, PieceReader& weights,
                          Communicator& control, Stream& stream, std::vector<std::string>& notes) {
  const auto reader = open_adapter_folder(*recipe.checkpoint.adapter, recipe);
  reader->take_any_float();
  TensorReader tensors(*reader, parameters.stream(), [&] { parameters.release_offloaded(); });
  for (const OwnedPiece& piece : parameters.stored_pieces())
    if (const std::string& name = parameters.spec(piece.id).name; reader->has(name)) {
      if (name.ends_with(".lora_magnitude.weight"))
        load_magnitudes(*reader, weights, piece, name, parameters.stream());
      else
        tensors.read(name, piece.slice, piece.master);
    }
  reader->finish(control, stream);
  notes.push_back(fmt::format("the adapters begin with those of {}", reader->path()));
}

std::vector<std::string> load_weights(const Recipe& recipe, ParameterStore& parameters, Communicator& control,
                                      Stream& stream) {
  std::vector<std::string> notes;
  const auto reader = open_weights(recipe, true, control, stream, notes);
  reader->take_any_float();
  TensorReader tensors(*reader, parameters.stream(), [&] { parameters.release_offloaded(); });
  DType from = DType::f32, to = DType::f32;
  const std::set<std::string> decomposed = pissa_weights(recipe, parameters);
  bool masked = false;
  for (const OwnedPiece& piece : parameters.stored_pieces()) {
    const std::string& name = parameters.spec(piece.id).name;
    // Adapters and scores keep their initial values if the model has none.
    const bool may_lack = parameters.spec(piece.id).adapter || name == recipe.model.score_name();
    if (may_lack && !reader->has(name)) continue;
    if (decomposed.count(name)) continue;
    tensors.read_weights(name, piece.slice, piece.master, piece.nf4, parameters.precision().compute);
    if (piece.nf4.defined()) continue;
    from = reader->tensors().at(name).dtype;
    to = piece.master.dtype;
    masked = masked || reader->has(fmt::format("optimizer/{}/{}", kDenseWeights, name));
  }
  if (masked)
    notes.push_back(
        "note: its weights are those with sparsity's masks; checkpoint.load.parts: weights+optimizer begins "
        "with the "
        "dense ones");
  if (dtype_size(to) < dtype_size(from))
    notes.push_back(fmt::format("note: its weights are {}, and are rounded to the {} that this run keeps",
                                dtype_name(from), dtype_name(to)));
  if (!decomposed.empty()) load_pissa(recipe, parameters, *reader, notes);
  for (const RegisteredBuffer& k : parameters.kept(false))
    if (k.name != kProbedChoices && reader->has(k.name))
      tensors.read(k.name, Slice::whole(k.tensor.shape), k.tensor);
  const auto kept = parameters.kept(false);
  if (recipe.model.scores_texts && !reader->has(recipe.model.score_name()))
    notes.push_back(
        fmt::format("{} begins at random from the seed: the model has none", recipe.model.score_name()));
  reader->finish(control, stream, [&](const std::string& name) {
    const bool module = layer_of(recipe.model, name) >= recipe.model.all_layers();  // not part of this run
    const bool output = recipe.model.scores_texts && name == recipe.model.names().output + ".weight";
    return is_weight(name) && !output && !(recipe.model.traits().multi_token_prediction && module) &&
           std::none_of(kept.begin(), kept.end(), [&](const RegisteredBuffer& k) { return k.name == name; });
  });
  if (recipe.checkpoint.adapter) load_adapters(recipe, parameters, *reader, control, stream, notes);
  parameters.publish_loaded();
  parameters.start_average();
  return notes;
}

}  // namespace ltrain
