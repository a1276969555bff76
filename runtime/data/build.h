// Text to token files: `ltrain data build`.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/data/indexed_dataset.h"
#include "runtime/data/text_input.h"

namespace ltrain::data {

struct BuildProgress {
  int64_t input_bytes = 0, total_bytes = 0, documents = 0, tokens = 0;
};

struct BuildOptions {
  std::vector<std::string> inputs, include, exclude;
  std::string output;                    ///< PREFIX
  std::string tokenizer = "byte", path;  ///< of make_tokenizer()
  DocumentTokens tokens;
  int workers = 0;  ///< 0: one per core
  RecordOptions records;
  bool append_eot = true, prepend_bos = false;
  bool split_special_tokens = false;  ///< special tokens in text are text
  std::vector<double> split;          ///< shares of train, val and, if three, test; empty: one dataset
  bool force = false;
  int64_t chunk_bytes = 1 << 20;
  std::function<void(const BuildProgress&)> progress;  ///< called after each chunk
};

struct BuildResult {
  InputList inputs;
  std::vector<SourceInfo> outputs;
  int64_t empty_documents = 0;  ///< had no token and were left out
  BadRecords bad_records;
};

/// PREFIX, or PREFIX-train, PREFIX-val, PREFIX-test with a split.
std::vector<std::string> output_prefixes(const BuildOptions& options);

/// The tokenizer that build_dataset() would use. Error (usage) where it has no token that documents are to
/// begin or end with.
std::unique_ptr<Tokenizer> make_build_tokenizer(const BuildOptions& options);

/// What build_dataset() would read; checks options, inputs and outputs, writes nothing.
BuildResult plan_build(const BuildOptions& options);

/// The result is the same, byte for byte, for every number of workers. With a split, the first document goes
/// to the first part, the second to the second, and so on, so that none is empty; each later one by a hash of
/// its index. A single document is cut at a line end near the shares.
BuildResult build_dataset(const BuildOptions& options);

}  // namespace ltrain::data
