#include "runtime/weights/resize_vocab.h"

#include <algorithm>

#include "kernels/elementwise/tensor_ops.h"
#include "kernels/tensor/rng.h"
#include "runtime/checkpoint/convert_elements.h"
#include "runtime/recipe/recipe.h"
#include "runtime/weights/write_weights.h"

namespace ltrain {
namespace {

constexpr int64_t kBlockRows = 4096;

/// Means of the columns of a matrix, added up in double in the order of its rows.
std::vector<double> column_means(PieceReader& reader, const std::string& name, int64_t rows,
                                 int64_t columns) {
  std::vector<double> sums(static_cast<size_t>(columns)), block;
  const Slice whole = Slice::whole(reader.tensors().at(name).shape);
  for (int64_t first = 0; first < rows; first += kBlockRows) {
    const int64_t n = std::min(kBlockRows, rows - first);
    block.resize(static_cast<size_t>(n * columns));
    reader.read(name, DType::f64, whole.range(first * columns, (first + n) * columns), block.data());
    for (int64_t i = 0; i < n * columns; ++i)
      sums[static_cast<size_t>(i % columns)] += block[static_cast<size_t>(i)];
  }
  for (double& sum : sums) sum /= static_cast<double>(rows);
  return sums;
}

/// Writes rows [first, first + count) that are new, as `dtype`.
void write_new_rows(const Recipe& recipe, NewRows kind, const std::string& name,
                    const std::vector<double>& means, DType dtype, int64_t first, int64_t count,
                    const WriteBytes& write) {
  const auto stream = make_inline_stream("new rows");
  const int64_t columns = static_cast<int64_t>(means.size());
  std::vector<double> values;
  std::vector<char> bytes;
  for (int64_t at = 0; at < count; at += kBlockRows) {
    const int64_t n = std::min(kBlockRows, count - at);
    values.assign(static_cast<size_t>(n * columns), 0.0);
    Tensor wide;
    wide.data = values.data();
    wide.dtype = DType::f64;
    wide.shape = {n * columns};
    if (kind == NewRows::normal)
      fill_normal(*stream, wide, static_cast<uint64_t>(recipe.seed), hash_name(name), (first + at) * columns,
                  0.0, recipe.model.initializer_range);
    if (kind == NewRows::mean)
      for (size_t i = 0; i < values.size(); ++i) values[i] = means[i % means.size()];
    bytes.resize(values.size() * static_cast<size_t>(dtype_size(dtype)));
    convert_elements(DType::f64, values.data(), dtype, bytes.data(), n * columns);
    write(bytes.data(), static_cast<int64_t>(bytes.size()));
  }
}

/// Error (usage) where tokens would lose their rows.
void check_loss(const ResizeVocabOptions& o, const CheckpointReader& reader, int64_t before) {
  if (o.vocab_size >= before || o.force) return;
  const auto& data = reader.info().data;
  const int64_t tokens = data ? data->tokenizer.vocab_size : 0;
  if (tokens <= 0)
    fail(ExitCode::usage,
         "{}: {} rows would be lost, and the checkpoint does not record how many tokens its data have: give "
         "--force where no token from {} on is ever used",
         reader.path(), before - o.vocab_size, o.vocab_size);
  if (tokens > o.vocab_size)
    fail(ExitCode::usage,
         "{}: the tokenizer of its data has {} tokens, and those from {} on would lose their rows; nearest "
         "valid value: {}, or --force where none of them is used",
         reader.path(), tokens, o.vocab_size, tokens);
}

}  // namespace

ResizeVocabReport resize_vocab(const ResizeVocabOptions& o) {
  ResizeVocabReport report;
  OldCheckpoint old(o.checkpoint, report.notes);
  CheckpointReader* const reader = &old.reader();
  Recipe recipe = old.recipe();
  const int64_t before = recipe.model.vocab_size;
  report.step = reader->info().step;
  report.before = before;
  report.after = o.vocab_size;
  if (o.vocab_size == before)
    fail(ExitCode::usage, "{}: has a vocabulary of {} already", reader->path(), before);
  if (recipe.model.moe.by_token())
    fail(ExitCode::usage,
         "{}: has experts of token ids (model.moe.router.{}), which new ids would not have, and is not "
         "resized",
         reader->path(), recipe.model.moe.kind == RouterKind::hash ? "kind: hash" : "freeze_step");
  check_loss(o, *reader, before);
  recipe.model.vocab_size = o.vocab_size;
  const ParameterNames& names = recipe.model.names();
  std::vector<WrittenTensor> tensors;
  for (const auto& [name, t] : reader->tensors()) {
    if (name.starts_with("optimizer/")) {
      ++report.states_left_out;
      continue;
    }
    const bool rows = name == names.tokens + ".weight" || name == names.output + ".weight";
    if (!rows) {
      tensors.push_back(copied_tensor(*reader, name, name));
      continue;
    }
    if (t.shape.rank != 2 || t.shape[0] != before)
      fail(ExitCode::storage, "{}: {} is {}, expected {} rows, one for each token", reader->path(), name,
           to_string(t.shape), before);
    report.tensors.push_back(name);
    const int64_t columns = t.shape[1], kept = std::min(before, o.vocab_size);
    tensors.push_back(
        {name, t.dtype, {o.vocab_size, columns}, [&, name = name, columns, kept](const WriteBytes& write) {
           const TensorParts& from = reader->tensors().at(name);
           const Slice old = Slice::box(from.shape, {0, 0}, {kept, columns});
           stream_tensor(reads_of(*reader), name, from.dtype, old, false, write);
           if (o.vocab_size > before)
             write_new_rows(recipe, o.rows, name, column_means(*reader, name, before, columns), from.dtype,
                            before, o.vocab_size - before, write);
         }});
  }
  if (report.tensors.empty()) fail(ExitCode::storage, "{}: has no {}.weight", reader->path(), names.tokens);
  // before a byte is written: its tokenizer may need the rows
  CheckpointInfo info = info_of_weights(recipe, reader->info().seed, o.made);
  write_weights(o.made, tensors, std::move(info), o.progress);
  report.checkpoint = o.made;
  return report;
}

}  // namespace ltrain
