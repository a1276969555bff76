// One part of a build's split: its documents as token files, packed into samples where the build packs.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/data/build.h"
#include "runtime/data/dataset_writer.h"
#include "runtime/data/packer.h"

namespace ltrain::data {

class PartWriter {
 public:
  PartWriter(const std::string& prefix, const BuildOptions& options, const Tokenizer& tokenizer);

  /// Adds tokens to the current document. `counted`: 1 for a token that counts in the loss, else 0; null
  /// without a loss mask.
  void add(const int32_t* tokens, int64_t count, const uint8_t* counted);
  /// Ends a document, or with `chosen` above 0 a preference pair, whose first `chosen` tokens are the chosen
  /// text and the others the rejected one. `margin`: that of the pair.
  void end_document(int64_t chosen = 0, double margin = 0);
  /// Ends a labelled example. The completion of the one before it follows its prompt as a second text, and
  /// that of the last one the prompt of the first (trl's rotation, over the whole part). A second text that
  /// does not fit into a sample is cut at its end. finish() throws Error (data) if there is one example only.
  void end_example(bool desirable);
  SourceInfo finish(const FilterCounts& filtered);

  int64_t tokens() const { return writer_.tokens(); }
  const PackCounts& counts() const { return counts_; }

 private:
  struct Document {
    std::vector<int32_t> tokens;
    std::vector<uint8_t> counted;
    int64_t chosen = 0;  // tokens of the first text of a pair; 0: one text
    double margin = 0;   // margin of a pair
  };
  /// An example's text and the begin of its completion.
  struct Example {
    Document text;
    size_t prompt = 0;
    bool desirable = false;
  };
  void keep(Document document);
  void keep_example(const Example& example, const Example& other);
  void write_samples();
  void write_padding(int64_t count);

  DatasetWriter writer_;
  int64_t length_;   // tokens of a sample; 0: documents are not packed
  int32_t padding_;  // token
  Packer packer_;
  Document open_;
  std::vector<Document> window_;
  int64_t window_tokens_ = 0;
  PackCounts counts_;
  std::optional<Example> first_, last_;  // the first one waits for the completion of the last
};

}  // namespace ltrain::data
