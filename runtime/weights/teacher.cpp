#include "runtime/weights/teacher.h"

#include "base/printable.h"
#include "kernels/tensor/device.h"
#include "parallel/mesh/groups.h"
#include "runtime/checkpoint/data_identity.h"
#include "runtime/checkpoint/files.h"
#include "runtime/checkpoint/reader.h"
#include "runtime/checkpoint/tensor_reader.h"
#include "runtime/recipe/diagnostics.h"
#include "runtime/weights/hf_folder.h"

namespace ltrain {
namespace {

constexpr const char* kTeacherKey = "distillation.teacher";

[[noreturn]] void refuse(const Recipe& r, const std::string& rule) {
  const std::string place = r.origins ? r.origins->place(kTeacherKey).text() + ": " : "";
  fail(ExitCode::usage, "{}{} = {}: {}", place, kTeacherKey, printable(*r.distillation.teacher), rule);
}

/// Settings under which the teacher's model is checked: the layout and the sequences of the student.
std::vector<std::string> student_settings(const Recipe& r) {
  const Parallel& p = r.parallel;
  return {fmt::format("data.seq_length={}", r.data.seq_length),
          fmt::format("parallel.tensor={}", p.tensor),
          fmt::format("parallel.sequence_parallel={}", p.sequence_parallel),
          fmt::format("parallel.context={}", p.context),
          fmt::format("parallel.context_comm={}", p.context_comm),
          fmt::format("parallel.context_inner={}", p.context_inner)};
}

/// A recipe with the model of the checkpoint at `path`.
Recipe checkpoint_model(const Recipe& r, const std::string& path, std::vector<std::string> settings) {
  const GroupSet alone;
  const auto stream = make_inline_stream("teacher");
  std::vector<std::string> notes;  // load_teacher returns them
  const auto reader = CheckpointReader::open_at(path, kTeacherKey, false, alone.groups().world.communicator(),
                                                *stream, notes);
  const Recipe there = parse_recipe(reader->info().recipe, reader->path() + " (recipe)");
  if (there.model.lora.on())
    refuse(r, "has adapters beside its weights; merge them with ltrain export --merge, and name that folder");
  if (there.model.scores_texts) refuse(r, "is a reward model, which has a score instead of logits");
  for (const auto& [key, value] : model_settings(there.model))
    settings.push_back(fmt::format("model.{}={}", key, value));
  return parse_recipe("{}", reader->path(), settings);
}

/// Tokenizer of the teacher's tokens, if it is known.
std::optional<data::TokenizerIdentity> teacher_tokenizer(const std::string& path,
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

/// Tells if the data's tokens are those of another tokenizer than the teacher's; "": they are not, or it is
/// not known. Tokenizers of one family may differ in what they add, so this is not an error.
std::string tokenizer_note(const Recipe& r, const std::string& path, const CheckpointReader* checkpoint) {
  std::optional<data::TokenizerIdentity> theirs;
  try {
    theirs = teacher_tokenizer(path, checkpoint);
  } catch (const Error& e) {
    return fmt::format("note: the teacher's tokenizer was not compared with that of data.train: {}",
                       e.what());
  }
  const data::TokenizerIdentity own = data_identity(r).tokenizer;
  if (!theirs || theirs->hash.empty() || own.hash.empty()) return "";
  if (theirs->kind == own.kind && theirs->hash == own.hash) return "";
  return fmt::format(
      "note: the teacher's tokenizer is {} (hash {}), and that of data.train is {} (hash {}): an id must "
      "stand "
      "for the same text in both",
      theirs->kind, theirs->hash, own.kind, own.hash);
}

}  // namespace

void read_teacher(Recipe& r) {
  if (!r.distillation.teacher) return;
  const std::string& path = *r.distillation.teacher;
  if (!path_exists(path))
    fail(ExitCode::storage, "{} = {}: there is no such folder", kTeacherKey, printable(path));
  std::vector<std::string> settings = student_settings(r);
  Recipe teacher;
  if (is_hf_folder(path)) {
    settings.push_back("model.from=" + path);
    teacher = parse_recipe("{}", std::string(kTeacherKey) + " = " + path, settings);
  } else {
    teacher = checkpoint_model(r, path, std::move(settings));
  }
  ModelConfig& model = teacher.model;
  model.num_nextn_predict_layers = 0;  // a teacher gives the distribution of the next token alone
  if (model.moe.num_experts > 0)
    refuse(r, fmt::format("has {} experts in a layer, and a teacher with experts is not built; nearest valid "
                          "value: a dense model",
                          model.moe.num_experts));
  if (model.vocab_size != r.model.vocab_size)
    refuse(r, fmt::format("has a distribution over {} tokens, and model.vocab_size is {}; both models need "
                          "one tokenizer and vocabulary",
                          model.vocab_size, r.model.vocab_size));
  r.distillation.model = std::make_shared<const ModelConfig>(model);
}

std::vector<std::string> load_teacher(const Recipe& r, ParameterStore& parameters, Communicator& control,
                                      Stream& stream) {
  const std::string& path = *r.distillation.teacher;
  std::vector<std::string> notes;
  std::unique_ptr<PieceReader> reader;
  const CheckpointReader* checkpoint = nullptr;
  if (is_hf_folder(path)) {
    reader = hf_weights(open_hf_folder(path, kTeacherKey), *r.distillation.model, notes);
  } else {
    auto opened = CheckpointReader::open_at(path, kTeacherKey, true, control, stream, notes);
    checkpoint = opened.get();
    reader = std::move(opened);
  }
  notes.push_back(fmt::format("teacher: {}", printable(reader->path())));
  if (control.rank() == 0)
    if (std::string note = tokenizer_note(r, path, checkpoint); !note.empty())
      notes.push_back(std::move(note));
  reader->take_any_float();
  TensorReader tensors(*reader, parameters.stream());
  parameters.clear();
  for (const OwnedPiece& piece : parameters.stored_pieces())
    tensors.read(parameters.spec(piece.id).name, piece.slice, piece.master);
  // Optimizer states and modules of multi-token prediction are not part of a teacher.
  reader->finish(control, stream, [&](const std::string& name) { return parameters.find(name) >= 0; });
  parameters.publish_loaded();
  return notes;
}

}  // namespace ltrain
