#include "runtime/weights/frozen_model.h"

#include "base/printable.h"
#include "kernels/tensor/device.h"
#include "parallel/mesh/groups.h"
#include "runtime/checkpoint/data_identity.h"
#include "runtime/checkpoint/files.h"
#include "runtime/checkpoint/reader.h"
#include "runtime/checkpoint/tensor_reader.h"
#include "runtime/recipe/diagnostics.h"
#include "runtime/weights/hf_folder.h"
#include "runtime/weights/load.h"

namespace ltrain {
namespace {

/// A frozen model that a recipe names.
struct NamedModel {
  const char* key;   // recipe key
  const char* role;  // word for messages
  std::string path;
};

std::optional<NamedModel> named_model(const Recipe& r) {
  if (r.distillation.teacher) return NamedModel{"distillation.teacher", "teacher", *r.distillation.teacher};
  if (r.preference.reference_model)
    return NamedModel{"preference.reference_model", "reference", *r.preference.reference_model};
  return {};
}

[[noreturn]] void refuse(const Recipe& r, const NamedModel& named, const std::string& rule) {
  const std::string place = r.origins ? r.origins->place(named.key).text() + ": " : "";
  fail(ExitCode::usage, "{}{} = {}: {}", place, named.key, printable(named.path), rule);
}

/// Settings under which the model is checked: the layout and the sequences of the run.
std::vector<std::string> run_settings(const Recipe& r) {
  const Parallel& p = r.parallel;
  return {fmt::format("data.seq_length={}", r.data.seq_length),
          fmt::format("parallel.tensor={}", p.tensor),
          fmt::format("parallel.sequence_parallel={}", p.sequence_parallel),
          fmt::format("parallel.context={}", p.context),
          fmt::format("parallel.context_comm={}", p.context_comm),
          fmt::format("parallel.context_inner={}", p.context_inner)};
}

/// A recipe with the model of a checkpoint.
Recipe checkpoint_model(const Recipe& r, const NamedModel& named, std::vector<std::string> settings) {
  const GroupSet alone;
  const auto stream = make_inline_stream(named.role);
  std::vector<std::string> notes;  // load_frozen_model returns them
  const auto reader = CheckpointReader::open_at(named.path, named.key, false,
                                                alone.groups().world.communicator(), *stream, notes);
  const Recipe there = parse_recipe(reader->info().recipe, reader->path() + " (recipe)");
  if (there.model.lora.on())
    refuse(r, named,
           "has adapters beside its weights; merge them with ltrain export --merge, and name that folder");
  if (there.model.scores_texts) refuse(r, named, "is a reward model, which has a score instead of logits");
  for (const auto& [key, value] : model_settings(there.model))
    settings.push_back(fmt::format("model.{}={}", key, value));
  return parse_recipe("{}", reader->path(), settings);
}

/// Tokenizer of the model's tokens, if it is known.
std::optional<data::TokenizerIdentity> model_tokenizer(const std::string& path,
                                                       const CheckpointReader* checkpoint) {
  if (checkpoint)
    return checkpoint->info().data ? std::optional(checkpoint->info().data->tokenizer) : std::nullopt;
  const Recipe folder = hf_recipe(path);
  if (!folder.data.tokenizer.kind->takes_file()) return {};
  const auto tokenizer = load_tokenizer(folder);
  return data::TokenizerIdentity{.kind = tokenizer->name(),
                                 .hash = tokenizer->hash(),
                                 .vocab_size = tokenizer->vocab_size(),
                                 .eod = tokenizer->eot(),
                                 .bos = -1};
}

/// Tells if the data's tokens are those of another tokenizer than the model's; "": they are not, or it is not
/// known. Tokenizers of one family may differ in what they add, so this is not an error.
std::string tokenizer_note(const Recipe& r, const NamedModel& named, const CheckpointReader* checkpoint) {
  std::optional<data::TokenizerIdentity> theirs;
  try {
    theirs = model_tokenizer(named.path, checkpoint);
  } catch (const Error& e) {
    return fmt::format("note: the {}'s tokenizer was not compared with that of data.train: {}", named.role,
                       e.what());
  }
  const data::TokenizerIdentity own = data_identity(r).tokenizer;
  if (!theirs || theirs->hash.empty() || own.hash.empty()) return "";
  if (theirs->kind == own.kind && theirs->hash == own.hash) return "";
  return fmt::format(
      "note: the {}'s tokenizer is {} (hash {}), and that of data.train is {} (hash {}): an id must stand "
      "for the same text in both",
      named.role, theirs->kind, theirs->hash, own.kind, own.hash);
}

/// The model of the folder or checkpoint that a recipe names.
ModelConfig stored_model(const Recipe& r, const NamedModel& named) try {
  std::vector<std::string> settings = run_settings(r);
  if (!is_hf_folder(named.path)) return checkpoint_model(r, named, std::move(settings)).model;
  settings.push_back("model.from=" + named.path);
  return parse_recipe("{}", std::string(named.key) + " = " + named.path, settings).model;
} catch (const Error& e) {
  const std::string text = e.what();  // a rule that the model breaks has the place of the run's settings
  constexpr std::string_view kSettings = "command line: ";
  if (!text.starts_with(kSettings)) throw;
  refuse(r, named, fmt::format("its model breaks a rule: {}", text.substr(kSettings.size())));
}

/// The model that a recipe names, if the run can have it beside its own.
ModelConfig checked_model(const Recipe& r, const NamedModel& named) {
  if (!path_exists(named.path))
    fail(ExitCode::storage, "{} = {}: there is no such folder", named.key, printable(named.path));
  ModelConfig model = stored_model(r, named);
  model.num_nextn_predict_layers = 0;  // it gives the distribution of the next token alone
  if (model.moe.num_experts > 0)
    refuse(r, named,
           fmt::format("has {} experts in a layer, and a {} with experts is not built; nearest valid "
                       "value: a dense model",
                       model.moe.num_experts, named.role));
  if (r.parallel.pipeline > 1 && model.num_hidden_layers != r.model.num_hidden_layers)
    refuse(r, named,
           fmt::format("has {} layers, and model.num_hidden_layers is {}: with parallel.pipeline = {} both "
                       "models run in the same stages; nearest valid value: parallel.pipeline: 1",
                       model.num_hidden_layers, r.model.num_hidden_layers, r.parallel.pipeline));
  if (model.vocab_size != r.model.vocab_size)
    refuse(r, named,
           fmt::format("has a distribution over {} tokens, and model.vocab_size is {}; both models need "
                       "one tokenizer and vocabulary",
                       model.vocab_size, r.model.vocab_size));
  return model;
}

/// Fills the parameters with the model that a fresh start of the run begins with.
std::vector<std::string> load_initial(Recipe r, ParameterStore& parameters, Communicator& control,
                                      Stream& stream) {
  r.model.lora = {};
  parameters.initialize(static_cast<uint64_t>(r.seed));
  std::vector<std::string> notes = {"reference: the weights that the run begins with"};
  if (r.checkpoint.load_path) {
    load_weights(r, parameters, control, stream);
    notes.front() = fmt::format("reference: {}", printable(*r.checkpoint.load_path));
  }
  return notes;
}

}  // namespace

void read_frozen_model(Recipe& r) {
  const std::optional<NamedModel> named = named_model(r);
  if (!named) return;
  auto& model = r.distillation.teacher ? r.distillation.model : r.preference.model;
  model = std::make_shared<const ModelConfig>(checked_model(r, *named));
}

std::vector<std::string> load_frozen_model(const Recipe& r, ParameterStore& parameters, Communicator& control,
                                           Stream& stream) {
  const std::optional<NamedModel> named = named_model(r);
  if (!named) return load_initial(r, parameters, control, stream);
  std::vector<std::string> notes;
  std::unique_ptr<PieceReader> reader;
  const CheckpointReader* checkpoint = nullptr;
  if (is_hf_folder(named->path)) {
    const ModelConfig& model = r.distillation.teacher ? *r.distillation.model : *r.preference.model;
    reader = hf_weights(open_hf_folder(named->path, named->key), model, notes);
  } else {
    auto opened = CheckpointReader::open_at(named->path, named->key, true, control, stream, notes);
    checkpoint = opened.get();
    reader = std::move(opened);
  }
  notes.push_back(fmt::format("{}: {}", named->role, printable(reader->path())));
  if (control.rank() == 0)
    if (std::string note = tokenizer_note(r, *named, checkpoint); !note.empty())
      notes.push_back(std::move(note));
  reader->take_any_float();
  TensorReader tensors(*reader, parameters.stream());
  parameters.clear();
  for (const OwnedPiece& piece : parameters.stored_pieces())
    tensors.read(parameters.spec(piece.id).name, piece.slice, piece.master);
  // Optimizer states and modules of multi-token prediction are not part of it.
  reader->finish(control, stream, [&](const std::string& name) { return parameters.find(name) >= 0; });
  parameters.publish_loaded();
  return notes;
}

}  // namespace ltrain
