#include "runtime/data/train_tokenizer.h"

#include <algorithm>
#include <thread>

#include "base/error.h"
#include "runtime/data/input/jsonl.h"
#include "runtime/data/ordered_pipeline.h"
#include "runtime/tokenizer/bpe_trainer.h"
#include "runtime/tokenizer/byte_level_json.h"
#include "runtime/tokenizer/formats/tokenizer_json.h"

namespace ltrain::data {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMostTokens = int64_t{1} << 20;  // limit for a tokenizer.json

void check(const TrainTokenizerOptions& o) {
  if (o.inputs.empty()) fail(ExitCode::usage, "no --input: name files, folders, or - for standard input");
  if (o.workers < 0 || o.workers > 256)
    fail(ExitCode::usage, "--workers {}: 1 to 256, or 0 for one per core", o.workers);
  const auto least = static_cast<int64_t>(256 + o.special_tokens.size());
  if (o.vocab_size < least || o.vocab_size > kMostTokens)
    fail(ExitCode::usage, "--vocab-size {}: {} to {}; 256 bytes and {} special tokens are among them",
         o.vocab_size, least, kMostTokens, o.special_tokens.size());
  if (o.min_frequency < 1) fail(ExitCode::usage, "--min-frequency {}: at least 1", o.min_frequency);
  check_record_options(o.records);
}

/// The layout, and a tokenizer with this layout whose tokens are single bytes.
struct Bytes {
  explicit Bytes(const TrainTokenizerOptions& o) : layout(byte_level_layout(o.pattern)) {
    layout.specials.clear();
    layout.bos = layout.eos = "";
    Json vocab = Json::object();
    for (int b = 0; b < 256; ++b) vocab[byte_level_text(std::string(1, static_cast<char>(b)))] = b;
    const Json single = vocab;
    for (const std::string& token : o.special_tokens) {
      check_special_token(token, vocab, "the tokenizer");
      vocab[token] = static_cast<int64_t>(vocab.size());
      layout.specials.emplace_back(static_cast<int64_t>(layout.specials.size()), token);
    }
    if (!layout.specials.empty()) layout.eos = layout.specials[0].second;
    set_document_tokens(layout, o.bos_token, o.eos_token);
    const ByteLevelLayout plain{
        .name = "", .pattern = layout.pattern, .nfc = layout.nfc, .bos = "", .eos = "", .specials = {}};
    tables = read_tokenizer_json(tokenizer_json_text(plain, single, Json::array(), {}, false), "pattern");
  }
  ByteLevelLayout layout;
  std::shared_ptr<const HuggingfaceTables> tables;
};

struct Counted {
  PieceCounts counts;
  int64_t input_bytes = 0;
  BadRecords bad;
};

/// Counts the pieces of the chunks of one worker.
class Counter {
 public:
  Counter(const TrainTokenizerOptions& options, const InputList& list, const HuggingfaceTables& tables)
      : options_(options),
        list_(list),
        normalizer_(tables.normalizer),
        pre_tokenizer_(tables.pre_tokenizer) {}

  Counted operator()(const Chunk& chunk) {
    Counted counted;
    counted.input_bytes = chunk.input_bytes;
    for (const Piece& piece : chunk.pieces) {
      const std::string& path = list_.files[static_cast<size_t>(piece.file)].path;
      if (piece.kind == Piece::tokens)
        fail(ExitCode::data, "{}: {}: token ids; a tokenizer is trained on text", path, piece.position);
      if (piece.kind == Piece::text) {
        text_.assign(chunk.text, static_cast<size_t>(piece.begin),
                     static_cast<size_t>(piece.end - piece.begin));
      } else {
        auto text = record_text(chunk, piece, options_.records, path, counted.bad);
        if (!text) continue;
        text_ = std::move(*text);
      }
      normalizer_.apply(text_);
      pre_tokenizer_.split(text_, true, pieces_);
      for (const PreTokenizer::Piece& p : pieces_)
        counted.counts.add(std::string_view(text_).substr(p.begin, p.end - p.begin), 1);
    }
    return counted;
  }

 private:
  const TrainTokenizerOptions& options_;
  const InputList& list_;
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  std::string text_;
  std::vector<PreTokenizer::Piece> pieces_;
};

}  // namespace

TrainedTokenizer train_tokenizer(const TrainTokenizerOptions& options) {
  check(options);
  const Bytes bytes(options);
  TrainedTokenizer trained;
  trained.inputs = list_inputs(options.inputs, options.include, options.exclude, options.records);
  const HuggingfaceTokenizer splitter(bytes.tables);
  ChunkReader reader(trained.inputs, options.records, splitter, options.chunk_bytes, {});
  const int workers = options.workers > 0
                          ? options.workers
                          : std::clamp<int>(static_cast<int>(std::thread::hardware_concurrency()), 1, 256);
  PieceCounts all;
  int64_t done = 0;
  run_ordered<Chunk, Counted>(
      workers, [&] { return reader.next(); },
      [&] {
        return [counter = std::make_shared<Counter>(options, trained.inputs, *bytes.tables)](Chunk&& chunk) {
          return (*counter)(chunk);
        };
      },
      [&](Counted&& counted) {
        all.add(counted.counts);
        trained.bad_records.add(counted.bad);
        if (all.bytes() > options.most_bytes) trained.left_out += all.keep(options.most_bytes / 2);
        done += counted.input_bytes;
        if (options.read) options.read(done, trained.inputs.bytes);
      });
  trained.pieces = static_cast<int64_t>(all.size());
  const BpeTraining made =
      train_bpe(all, options.special_tokens, options.vocab_size, options.min_frequency, [&](int64_t tokens) {
        if (options.made) options.made(tokens, options.vocab_size);
      });
  trained.merges = static_cast<int64_t>(made.merges.size());
  Json vocab = Json::object(), merges = Json::array();
  for (size_t id = 0; id < made.tokens.size(); ++id) vocab[made.tokens[id]] = id;
  for (const auto& [left, right] : made.merges)
    merges.push_back({made.tokens[static_cast<size_t>(left)], made.tokens[static_cast<size_t>(right)]});
  trained.tokenizer_json = tokenizer_json_text(bytes.layout, vocab, merges, bytes.layout.specials, false);
  trained.tokenizer_config_json = tokenizer_config_text(bytes.layout);
  trained.ids =
      static_cast<int64_t>(read_tokenizer_json(trained.tokenizer_json, "the tokenizer")->contents.size());
  return trained;
}

}  // namespace ltrain::data
