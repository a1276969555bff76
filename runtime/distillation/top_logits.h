// Files of a teacher's largest logits for all samples of a training source, one file a source, in a folder:
// FOLDER/CONTENT.logits, named by the content of the token files.
//
// File: 4096 bytes of header, a line of magic and JSON padded with spaces, the last 8 bytes XXH3-64 of the
// others; then for each sample u32 CRC-32 of its tokens, for each of its positions the sum of the others (f),
// k values (f) and k ids (i), and u32 CRC-32C of the sample's bytes before. f: 4 or 8 bytes, i: 2 bytes for
// vocabularies up to 65536, else 4.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/data/batch_loader.h"
#include "runtime/files/file.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

/// All that the logits of a file depend on.
struct TopLogitsHeader {
  std::string teacher;       ///< path, for messages
  std::string teacher_hash;  ///< hash of its weights' files
  std::string content;       ///< data::content_identity() of the source
  std::string tokenizer;     ///< hash of the source's tokenizer; "": unknown
  std::string packing;       ///< data.packing
  int64_t seq_length = 0, vocab_size = 0, eod = -1;
  bool reset_attention_mask = false, reset_position_ids = false;
  int64_t top_k = 0, value_bytes = 4, samples = 0;
  double temperature = 1;

  int64_t id_bytes() const { return vocab_size <= 65536 ? 2 : 4; }
  int64_t position_bytes() const { return value_bytes + top_k * (value_bytes + id_bytes()); }
  int64_t sample_bytes() const { return 8 + seq_length * position_bytes(); }
  int64_t file_bytes() const { return kHeaderBytes + samples * sample_bytes(); }
  static constexpr int64_t kHeaderBytes = 4096;
};

/// Loader options of all training data of a recipe, for one rank, with the token that ends documents.
data::LoaderOptions top_logits_options(const Recipe& recipe);

/// Header of the file of the source `path` as a recipe asks for it, without the teacher, the number of
/// samples and value_bytes. `options`: those of the training data.
TopLogitsHeader wanted_header(const Recipe& recipe, const data::LoaderOptions& options,
                              const std::string& path);

/// Path of a source's file.
std::string top_logits_path(const Recipe& recipe, const TopLogitsHeader& header);

/// Hash of the files of weights in a Hugging Face folder or a checkpoint.
std::string weights_hash(const std::string& folder);

/// Writes one file, sample by sample.
class TopLogitsWriter {
 public:
  TopLogitsWriter(const std::string& path, const TopLogitsHeader& header);
  /// Rows of the next sample, in order: all logits of a position. Throws Error (data) for one that is not
  /// finite.
  void position(const double* logits);
  /// Ends the sample, after seq_length positions.
  void end_sample(uint32_t crc);
  /// Gives the file its name.
  void commit();
  int64_t bytes() const { return file_.bytes(); }

 private:
  TopLogitsHeader header_;
  data::OutputFile file_;
  std::string sample_;          // bytes of the current sample, after its CRC
  std::vector<int32_t> order_;  // ids, the largest logits first
};

/// The files of all sources of a recipe's data.train. Throws Error (data) if one is missing, damaged, or made
/// for other data, another tokenizer, vocabulary or length of sequences, another temperature or number of
/// logits, or by another teacher than the others.
class TopLogitsFiles final : public data::RecordedLogits {
 public:
  TopLogitsFiles(const Recipe& recipe, const data::LoaderOptions& options);
  int64_t top_k() const override { return files_.at(0).header.top_k; }
  void read(const data::ReadSample& sample, const Positions& rows, int32_t* ids, double* values,
            double* rest) const override;
  const TopLogitsHeader& header(size_t source) const { return files_.at(source).header; }

 private:
  struct File {
    TopLogitsHeader header;
    std::unique_ptr<data::InputFile> file;
  };
  std::vector<File> files_;
};

/// With distillation.logits: opens the files, whose errors TopLogitsFiles has.
void check_top_logits(const Recipe& recipe);

/// With distillation.logits: opens the files of data.train, and notes the teacher in OUTPUT_DIR/teacher.json
/// at step 0. Null without. A later step refuses files of another teacher. Called on all ranks; `lead`: the
/// one that writes.
std::shared_ptr<const data::RecordedLogits> open_top_logits(const Recipe& recipe,
                                                            const data::LoaderOptions& options, int64_t step,
                                                            bool lead);

}  // namespace ltrain
