// Writes the logits of a teacher for the data.train of a student's recipe
// (runtime/distillation/top_logits.h).
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/data/batch_loader.h"
#include "runtime/distillation/top_logits.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

class TopLogitsRecorder {
 public:
  /// `teacher`: folder of its weights. `value_bytes`: 8 for a teacher in fp64, else 4. `student`: with
  /// resolved sources, whose token files exist. Throws Error (usage) without distillation.logits, or for
  /// another vocabulary than the teacher's.
  TopLogitsRecorder(Recipe student, std::string teacher, int64_t teacher_vocab, int64_t value_bytes);

  /// Token files of data.train, each once.
  const std::vector<std::string>& sources() const { return sources_; }
  /// Options of a loader that reads the samples of a source once, in the order of the file.
  data::LoaderOptions loader(size_t source, int64_t micro_batch) const;

  /// Begins the file of a source of so many samples. `write` false: on ranks that write nothing.
  void begin(size_t source, int64_t samples, bool write);
  /// Takes logits of rows from `first_row` on of a batch, in ascending order.
  void add(const data::Batch& batch, int64_t first_row, const std::vector<double>& logits);
  /// Gives the file its name. Returns a line for the user.
  std::string end();

 private:
  Recipe student_;
  std::string teacher_, teacher_hash_;
  int64_t value_bytes_;
  data::LoaderOptions options_;
  std::vector<std::string> sources_;
  std::string path_;
  TopLogitsHeader header_;
  std::optional<TopLogitsWriter> writer_;
};

}  // namespace ltrain
