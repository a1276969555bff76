// Another number of tokens for a trained model: `ltrain checkpoint resize-vocab`.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/enum_names.h"
#include "runtime/weights/export.h"

namespace ltrain {

/// Initial rows of new tokens. mean: the mean of the old rows, as transformers'
/// resize_token_embeddings(mean_resizing=True) without its noise. normal: the rows of a new model with this
/// seed. zero.
enum class NewRows : uint8_t { mean, normal, zero };
LT_ENUM_NAMES(NewRows, {NewRows::mean, "mean"}, {NewRows::normal, "normal"}, {NewRows::zero, "zero"});

struct ResizeVocabOptions {
  std::string checkpoint;  ///< a checkpoint, a folder of them, or a run's output_dir
  std::string made;        ///< the checkpoint to make
  int64_t vocab_size = 0;
  NewRows rows = NewRows::mean;
  bool force = false;  ///< rows may be lost that tokens of the run's data may have
  CopyProgress progress;
};

struct ResizeVocabReport {
  std::string checkpoint;
  int64_t step = 0, before = 0, after = 0;
  std::vector<std::string> tensors;  ///< tensors with one row per token
  int64_t states_left_out = 0;       ///< tensors of optimizer states, which the result does not have
  std::vector<std::string> notes;
};

/// Writes a checkpoint of step 0 with the weights alone. Rows that stay are the same bit for bit. The result
/// is a function of the checkpoint and the options. Error (usage) where rows would be lost without `force`
/// that the tokenizer of the run's data has tokens for, or where that tokenizer is not known.
ResizeVocabReport resize_vocab(const ResizeVocabOptions& options);

}  // namespace ltrain
