#include "runtime/distillation/top_logits_recorder.h"

#include <filesystem>

#include "base/error.h"
#include "base/printable.h"
#include "runtime/data/source_union.h"

namespace ltrain {

TopLogitsRecorder::TopLogitsRecorder(Recipe student, std::string teacher, int64_t teacher_vocab,
                                     int64_t value_bytes)
    : student_(std::move(student)),
      teacher_(std::move(teacher)),
      teacher_hash_(weights_hash(teacher_)),
      value_bytes_(value_bytes),
      options_(top_logits_options(student_)),
      sources_(data::union_of(options_.sources, {}).paths) {
  if (!student_.distillation.logits)
    fail(
        ExitCode::usage,
        "--record-logits: the recipe names no folder for the logits; write distillation: {{logits: FOLDER}}");
  if (student_.model.vocab_size != teacher_vocab)
    fail(ExitCode::usage,
         "{}: has a distribution over {} tokens, and model.vocab_size of the recipe is {}; both models need "
         "one tokenizer "
         "and vocabulary",
         printable(teacher_), teacher_vocab, student_.model.vocab_size);
}

data::LoaderOptions TopLogitsRecorder::loader(size_t source, int64_t micro_batch) const {
  data::LoaderOptions o = options_;
  o.sources = {{sources_.at(source)}};
  o.micro_batch = o.global_batch = micro_batch;
  o.eval = true;
  o.eval_samples = 0;
  o.ledger = true;
  return o;
}

void TopLogitsRecorder::begin(size_t source, int64_t samples, bool write) {
  writer_.reset();
  if (!write) return;
  header_ = wanted_header(student_, options_, sources_.at(source));
  header_.teacher = teacher_;
  header_.teacher_hash = teacher_hash_;
  header_.value_bytes = value_bytes_;
  header_.samples = samples;
  path_ = top_logits_path(student_, header_);
  std::error_code error;
  std::filesystem::create_directories(*student_.distillation.logits, error);
  if (error) fail(ExitCode::storage, "{}: {}", printable(*student_.distillation.logits), error.message());
  writer_.emplace(path_, header_);
}

void TopLogitsRecorder::add(const data::Batch& batch, int64_t first_row, const std::vector<double>& logits) {
  if (!writer_) return;
  const int64_t length = header_.seq_length, vocab = header_.vocab_size;
  const int64_t rows = static_cast<int64_t>(logits.size()) / vocab;
  for (int64_t r = 0; r < rows; ++r) {
    const auto sample = static_cast<size_t>((first_row + r) / length);
    if (batch.sample_index[sample] < 0) continue;  // padding
    writer_->position(logits.data() + r * vocab);
    if ((first_row + r) % length == length - 1) writer_->end_sample(batch.read[sample].crc);
  }
}

std::string TopLogitsRecorder::end() {
  if (!writer_) return "";
  writer_->commit();
  const std::string line =
      fmt::format("{}: {} logits of each of {} tokens, {} bytes", printable(path_), header_.top_k,
                  header_.samples * header_.seq_length, header_.file_bytes());
  writer_.reset();
  return line;
}

}  // namespace ltrain
