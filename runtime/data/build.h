// Conversion of text to token files: `ltrain data build`.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/data/chat_build.h"
#include "runtime/data/document_choice.h"
#include "runtime/data/indexed_dataset.h"
#include "runtime/data/input/text_input.h"

namespace ltrain::data {

struct BuildProgress {
  int64_t input_bytes = 0, total_bytes = 0, documents = 0, tokens = 0;
};

struct BuildOptions {
  std::vector<std::string> inputs, include, exclude;
  std::optional<InputList> listed;       ///< files to read in the place of `inputs`
  std::string output;                    ///< PREFIX
  std::string tokenizer = "byte", path;  ///< arguments of make_tokenizer()
  DocumentTokens tokens;
  int workers = 0;  ///< 0: one per core
  RecordOptions records;
  DocumentChoice choice;          ///< not with `chat`
  std::optional<ChatBuild> chat;  ///< inputs are records of conversations
  bool append_eot = true, prepend_bos = false;
  bool split_special_tokens = false;  ///< special tokens in text are text
  std::vector<double> split;          ///< shares of train, val and optionally test; empty: one dataset
  bool force = false;
  bool allow_empty = false;  ///< the output may have no document if a filter or `choice` left records out
  int64_t chunk_bytes = 1 << 20;
  int64_t shard_bytes = int64_t{256} << 20;            ///< input of one shard of shards_of(); tests change it
  std::function<void(const BuildProgress&)> progress;  ///< called after each chunk
  /// Called with the name of each document that `choice` leaves out and the reason, in the order of the
  /// inputs.
  std::function<void(const std::string& document, DocumentState)> left_out;
};

/// Conversations of a build with BuildOptions::chat.
struct PackCounts {
  int64_t documents = 0, samples = 0;  ///< samples: 0 if they are not packed
  int64_t padding = 0, trained = 0;    ///< tokens
  int64_t cut = 0;                     ///< mismatched texts that were cut to fit into a sample

  void add(const PackCounts& other) {
    documents += other.documents, samples += other.samples;
    padding += other.padding, trained += other.trained;
    cut += other.cut;
  }
};

struct BuildResult {
  InputList inputs;
  std::vector<SourceInfo> outputs;
  int64_t empty_documents = 0;  ///< documents without tokens, which are omitted
  BadRecords bad_records;
  FilterCounts filtered;
  PackCounts conversations;
};

/// PREFIX, or PREFIX-train, PREFIX-val, PREFIX-test with a split.
std::vector<std::string> output_prefixes(const BuildOptions& options);

/// Tokenizer of build_dataset(). Throws Error (usage) if it lacks the token that documents must begin or end
/// with.
std::unique_ptr<Tokenizer> make_build_tokenizer(const BuildOptions& options);

/// Threads of a build.
int worker_count(const BuildOptions& options);

/// Most memory of the threads of build_dataset(), for records of at most BuildOptions::chunk_bytes, beside
/// the tokenizer's tables, the columns that a reader of Parquet or Arrow holds, and what BuildOptions::choice
/// needs.
int64_t build_memory_bytes(const BuildOptions& options);

/// Returns what build_dataset() would read. Checks options, inputs and outputs, and writes nothing.
BuildResult plan_build(const BuildOptions& options);

/// Builds the token files. The result is the same, byte for byte, for every number of workers. With a split,
/// the first documents go to one part each, so that no part is empty, and later ones by a hash of their
/// index. A single document is cut near the shares, at a line end.
BuildResult build_dataset(const BuildOptions& options);

}  // namespace ltrain::data
