#include "runtime/data/build.h"

#include <algorithm>
#include <cmath>
#include <thread>

#include "base/error.h"
#include "runtime/data/input/jsonl.h"
#include "runtime/data/ordered_pipeline.h"
#include "runtime/data/part_writer.h"
#include "runtime/data/sample_order.h"
#include "runtime/tokenizer/tokenizer_kinds.h"

namespace ltrain::data {
namespace {

constexpr const char* kPartNames[] = {"train", "val", "test"};

struct Encoded {
  struct Run {
    int64_t count;  // tokens
    bool ends_document;
    int part;
    int64_t chosen = 0;              // tokens of the chosen text of a preference pair; 0: a document
    std::optional<bool> label = {};  // label of an example
    double margin = 0;               // margin of a pair
  };
  std::vector<int32_t> tokens;
  std::vector<uint8_t> counted;  // with BuildOptions::chat: 1 for each token that counts in the loss
  std::vector<Run> runs;
  int64_t input_bytes = 0;
  BadRecords bad;
  FilterCounts filtered;
  std::vector<std::pair<std::string, DocumentState>> left_out;  // documents that the choice leaves out
};

void check_options(const BuildOptions& o) {
  if (o.inputs.empty() && !o.listed)
    fail(ExitCode::usage, "no --input: name files, folders, or - for standard input");
  if (o.workers < 0 || o.workers > 256)
    fail(ExitCode::usage, "--workers {}: 1 to 256, or 0 for one per core", o.workers);
  if (o.split.size() == 1 || o.split.size() > 3)
    fail(ExitCode::usage, "--split has {} shares; two (train,val) or three (train,val,test), as in 95,5",
         o.split.size());
  for (double s : o.split)
    if (!(s > 0) || !std::isfinite(s)) fail(ExitCode::usage, "--split: {}: each share must be above 0", s);
  check_record_options(o.records);
  if (o.chat && o.chat->preference && o.chat->unpaired)
    fail(ExitCode::usage, "--preference and --unpaired: expected one of them, the form of the inputs");
  if (o.chat && (o.chat->preference || o.chat->unpaired) && o.chat->pack < 4)
    fail(ExitCode::usage,
         "{}: expected --pack TOKENS of at least 4, the run's data.seq_length, because both texts of {} are "
         "in one sample; got {}",
         o.chat->preference ? "--preference" : "--unpaired", o.chat->preference ? "a pair" : "an example",
         o.chat->pack);
  if (o.choice.on() && o.chat)
    fail(ExitCode::usage, "--deduplicate and --decontaminate with --chat: expected text, got conversations");
  if (o.choice.ngram < 1 || o.choice.ngram > kMostNgramWords)
    fail(ExitCode::usage, "--decontaminate-ngram {}: expected 1 to {} words", o.choice.ngram,
         kMostNgramWords);
  LT_CHECK(o.chunk_bytes > 0, "expected chunks of at least 1 byte, got {}", o.chunk_bytes);
}

/// Name of a document in messages.
std::string place_of(const Piece& piece, const std::string& path) {
  if (piece.kind == Piece::text) return path;
  return piece.kind == Piece::json ? fmt::format("{}:{}", path, piece.line) : path + ": " + piece.position;
}

/// Encodes the chunks of one worker.
class Encoder {
 public:
  /// `states`: of the documents of `list`; empty: all are kept.
  Encoder(const BuildOptions& options, const InputList& list, const std::vector<DocumentState>& states,
          const Tokenizer& tokenizer, std::shared_ptr<const chat::ChatTemplate> chat_template)
      : options_(options), list_(list), states_(states), tokenizer_(tokenizer.clone()) {
    if (options.chat) chat_.emplace(*options.chat, std::move(chat_template));
  }

  Encoded operator()(const Chunk& chunk) {
    Encoded out;
    out.tokens.reserve(chunk.text.size() + chunk.tokens.size());  // at most one token a byte
    out.input_bytes = chunk.input_bytes;
    int64_t next = chunk.first_document;
    for (const Piece& piece : chunk.pieces) {
      const std::string& path = list_.files[piece.file].path;
      const int64_t document = next;
      next += piece.ends_document;
      if (!is_kept(chunk, piece, options_.records, path, out.bad, out.filtered)) continue;
      if (is_left_out(piece, document, path, out)) continue;
      if (chat_) {
        encode_chat(chunk, piece, path, out);
        continue;
      }
      if (piece.kind == Piece::text) {
        encode(std::string_view(chunk.text).substr(piece.begin, piece.end - piece.begin), piece.ends_document,
               piece.part, out);
        continue;
      }
      if (piece.kind == Piece::tokens) {
        copy_ids(chunk, piece, path, out);
        continue;
      }
      const auto text = record_text(chunk, piece, options_.records, path, out.bad);
      if (!text) continue;
      if (!piece.cut) {
        encode(*text, true, -1, out);
        continue;
      }
      const std::string_view view = *text;
      const auto cuts =
          cut_points(static_cast<int64_t>(view.size()), options_.split, path,
                     [&](int64_t begin, int64_t end) { return view.substr(begin, end - begin); });
      for (size_t i = 0; i < cuts.size(); ++i) {
        const int64_t begin = i == 0 ? 0 : cuts[i - 1];
        encode(view.substr(begin, cuts[i] - begin), true, static_cast<int>(i), out);
      }
    }
    return out;
  }

 private:
  void encode_chat(const Chunk& chunk, const Piece& piece, const std::string& path, Encoded& out) {
    const std::string where = place_of(piece, path);
    if (piece.kind == Piece::text || piece.kind == Piece::tokens)
      fail(ExitCode::data, "{}: expected records of conversations, got {}", path,
           piece.kind == Piece::text ? "text" : "token ids");
    if (!piece.problem.empty()) return skip_record(where + ": " + piece.problem, options_.records, out.bad);
    const std::string row =
        chunk.text.substr(static_cast<size_t>(piece.begin), static_cast<size_t>(piece.end - piece.begin));
    try {
      return encode_row(row, where, out);
    } catch (const Error& e) {
      if (e.code() != ExitCode::data) throw;
      if (replaced(row, where, out)) return out.bad.add(e.what());
      skip_record(e.what(), options_.records, out.bad);
    }
  }

  /// Encodes a bad record with U+FFFD in the place of invalid characters, if the options say so. Returns
  /// false if it has another defect too.
  bool replaced(const std::string& row, const std::string& where, Encoded& out) {
    if (options_.records.on_bad != OnBadRecord::replace) return false;
    const std::string repaired = repair_record(row);
    if (repaired == row) return false;
    try {
      encode_row(repaired, where, out);
    } catch (const Error& e) {
      if (e.code() != ExitCode::data) throw;
      return false;
    }
    ++out.bad.replaced;
    return true;
  }

  /// Encodes a record of conversations. Throws Error (data), with nothing added.
  void encode_row(const std::string& row, const std::string& where, Encoded& out) {
    const auto put = [&](const chat::ChatTokens& chat) {
      out.tokens.insert(out.tokens.end(), chat.ids.begin(), chat.ids.end());
      out.counted.insert(out.counted.end(), chat.trained.begin(), chat.trained.end());
      return static_cast<int64_t>(chat.ids.size());
    };
    if (options_.chat->unpaired) {
      const auto [text, desirable] = chat_->example(row, *tokenizer_, where);
      out.runs.push_back({put(text), true, -1, 0, desirable});
      return;
    }
    if (!options_.chat->preference) {
      out.runs.push_back({put((*chat_)(row, *tokenizer_, where)), true, -1});
      return;
    }
    const auto [chosen, rejected, margin] = chat_->pair(row, *tokenizer_, where);
    const int64_t first = put(chosen), all = first + put(rejected);
    out.runs.push_back(
        {.count = all, .ends_document = true, .part = -1, .chosen = first, .label = {}, .margin = margin});
  }

  void copy_ids(const Chunk& chunk, const Piece& piece, const std::string& path, Encoded& out) {
    if (piece.cut)
      fail(ExitCode::data,
           "{}: {}: the only document is token ids, which --split does not cut; leave out --split", path,
           piece.position);
    std::string problem = piece.problem;
    for (int64_t i = piece.begin; i < piece.end && problem.empty(); ++i)
      if (chunk.tokens[i] < 0 || chunk.tokens[i] >= tokenizer_->vocab_size())
        problem = fmt::format("token id {}; the tokenizer {} has {} tokens: choose the one that made the ids",
                              chunk.tokens[i], tokenizer_->name(), tokenizer_->vocab_size());
    if (!problem.empty())
      return skip_record(fmt::format("{}: {}: {}", path, piece.position, problem), options_.records, out.bad);
    int64_t count = piece.end - piece.begin;
    // The writer appends this token.
    if (options_.append_eot && count > 0 && chunk.tokens[piece.end - 1] == tokenizer_->eot()) --count;
    out.tokens.insert(out.tokens.end(), chunk.tokens.begin() + piece.begin,
                      chunk.tokens.begin() + piece.begin + count);
    out.runs.push_back({count, true, -1});
  }

  void encode(std::string_view text, bool ends_document, int part, Encoded& out) {
    const size_t before = out.tokens.size();
    tokenizer_->encode(text, out.tokens);
    out.runs.push_back({static_cast<int64_t>(out.tokens.size() - before), ends_document, part});
  }

  /// Returns whether the document of a piece is left out, and notes it at its last piece.
  bool is_left_out(const Piece& piece, int64_t document, const std::string& path, Encoded& out) const {
    if (states_.empty()) return false;
    if (document >= static_cast<int64_t>(states_.size()))
      fail(ExitCode::data, "{}: changed while it was read: expected {} documents of the inputs, got more",
           path, states_.size());
    const DocumentState state = states_[static_cast<size_t>(document)];
    if (state == DocumentState::kept) return false;
    if (!piece.ends_document) return true;
    out.filtered.duplicates += state == DocumentState::duplicate;
    out.filtered.contaminated += state == DocumentState::contaminated;
    if (options_.left_out) out.left_out.emplace_back(place_of(piece, path), state);
    return true;
  }

  const BuildOptions& options_;
  const InputList& list_;
  const std::vector<DocumentState>& states_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::optional<ChatEncoder> chat_;
};

/// Writes documents to the parts of the split, in order.
class Sink {
 public:
  Sink(const BuildOptions& options, const Tokenizer& tokenizer)
      : split_(options.split), allow_empty_(options.allow_empty) {
    for (const std::string& prefix : output_prefixes(options))
      parts_.push_back(std::make_unique<PartWriter>(prefix, options, tokenizer));
  }

  void put(const Encoded& encoded) {
    const int32_t* tokens = encoded.tokens.data();
    const uint8_t* counted = encoded.counted.empty() ? nullptr : encoded.counted.data();
    for (const Encoded::Run& run : encoded.runs) {
      if (run.count > 0) {
        if (!open_) part_ = run.part >= 0 ? run.part : part_of(documents_);
        open_ = true;
        parts_[part_]->add(tokens, run.count, counted);
      }
      tokens += run.count;
      if (counted) counted += run.count;
      if (!run.ends_document) continue;
      if (open_) {
        run.label ? parts_[part_]->end_example(*run.label)
                  : parts_[part_]->end_document(run.chosen, run.margin);
        ++documents_;
      } else {
        ++empty_;
      }
      open_ = false;
    }
  }

  std::vector<SourceInfo> finish(const BadRecords& bad, const FilterCounts& filtered) {
    if (documents_ == 0 && filtered.kept < filtered.read && !allow_empty_)
      fail(ExitCode::data, "{} of {} records kept by --where, and no text in them; nothing written",
           filtered.kept, filtered.read);
    if (documents_ == 0 && filtered.left_out() > 0 && !allow_empty_)
      fail(
          ExitCode::data,
          "all documents with text are left out: {} by --deduplicate, {} by --decontaminate; nothing written",
          filtered.duplicates, filtered.contaminated);
    if (documents_ == 0 && !(allow_empty_ && filtered.left_out() > 0))
      fail(ExitCode::data, "no text in the inputs: all {} documents are empty{}; nothing written", empty_,
           bad.skipped == 0
               ? ""
               : fmt::format(" and {} bad records are left out, the first: {}", bad.skipped, bad.first[0]));
    if (documents_ < static_cast<int64_t>(parts_.size()) && !allow_empty_)
      fail(ExitCode::data,
           "{} document that is not empty cannot fill the {} parts of --split; leave out --split", documents_,
           parts_.size());
    std::vector<SourceInfo> infos;
    for (auto& p : parts_) infos.push_back(p->finish(filtered));
    return infos;
  }

  PackCounts conversations() const {
    PackCounts all;
    for (const auto& p : parts_) all.add(p->counts());
    return all;
  }

  int64_t documents() const { return documents_; }
  int64_t empty() const { return empty_; }
  int64_t tokens() const {
    int64_t n = 0;
    for (const auto& p : parts_) n += p->tokens();
    return n;
  }

 private:
  int part_of(int64_t document) const {
    const int parts = static_cast<int>(parts_.size());
    if (document < parts) return static_cast<int>(document);
    double sum = 0, so_far = 0;
    for (double s : split_) sum += s;
    const double u = static_cast<double>(mix64(static_cast<uint64_t>(document)) >> 11) * 0x1p-53 * sum;
    for (int i = 0; i + 1 < parts; ++i)
      if (u < (so_far += split_[i])) return i;
    return parts - 1;
  }

  std::vector<double> split_;
  bool allow_empty_;
  std::vector<std::unique_ptr<PartWriter>> parts_;
  int part_ = 0;
  bool open_ = false;
  int64_t documents_ = 0, empty_ = 0;
};

}  // namespace

std::vector<std::string> output_prefixes(const BuildOptions& options) {
  if (options.split.size() < 2) return {options.output};
  std::vector<std::string> prefixes;
  for (size_t i = 0; i < options.split.size(); ++i) prefixes.push_back(options.output + "-" + kPartNames[i]);
  return prefixes;
}

std::unique_ptr<Tokenizer> make_build_tokenizer(const BuildOptions& options) {
  auto tokenizer = make_tokenizer(options.tokenizer, options.path, options.tokens);
  if (options.append_eot && !options.chat && tokenizer->eot() < 0)
    fail(ExitCode::usage,
         "{}: which token ends a document? No tokenizer_config.json beside it says eos_token. Give "
         "--eos-token TOKEN, or --no-append-eot",
         options.path);
  if (options.prepend_bos && tokenizer->bos() < 0)
    fail(ExitCode::usage,
         "--prepend-bos: which token begins a document? {}. Give --bos-token TOKEN, or leave out "
         "--prepend-bos",
         options.path.empty() || !find_tokenizer_kind(options.tokenizer)->folder
             ? "The tokenizer " + options.tokenizer + " has none"
             : options.path + " has no tokenizer_config.json beside it that says bos_token");
  tokenizer->set_split_special_tokens(options.split_special_tokens);
  return tokenizer;
}

BuildResult plan_build(const BuildOptions& options) {
  check_options(options);
  for (const std::string& prefix : output_prefixes(options)) refuse_overwrite(prefix, options.force);
  BuildResult result;
  result.inputs = options.listed
                      ? *options.listed
                      : list_inputs(options.inputs, options.include, options.exclude, options.records);
  return result;
}

namespace {

/// States of the documents that a build reads; empty without a choice.
std::vector<DocumentState> document_states(const BuildOptions& o, const InputList& inputs,
                                           const Tokenizer& tokenizer, int workers) {
  if (!o.choice.on()) return {};
  std::vector<DocumentMark> marks;
  if (!o.choice.marks.empty()) {
    marks = read_marks(o.choice.marks);
  } else {
    std::optional<NgramSet> ngrams;
    if (!o.choice.against.empty()) ngrams = evaluation_ngrams(o.choice, o.records, tokenizer);
    marks = mark_documents(inputs, o.records, tokenizer, ngrams ? &*ngrams : nullptr, o.split, workers,
                           o.chunk_bytes);
  }
  return choose_documents(marks, o.choice.deduplicate, o.choice.earlier);
}

}  // namespace

int worker_count(const BuildOptions& options) {
  return options.workers > 0 ? options.workers : std::clamp<int>(std::thread::hardware_concurrency(), 1, 256);
}

int64_t build_memory_bytes(const BuildOptions& options) {
  // In chunks, with the largest record at the end of one and the room of vectors that grow.
  constexpr int64_t kRead = 2 + 2;         // text and pieces of a chunk
  constexpr int64_t kEncoded = 4 * 2 + 2;  // tokens and runs
  constexpr int64_t kRecord = 2 + 16;      // text of a record, and what simdjson takes to parse it
  constexpr int64_t kReader = 4 + 2 + 8;   // block of the file, record, window of zstd
  const int64_t workers = worker_count(options);
  const int64_t chunks = (2 * workers + 2) * kEncoded + (workers + 1) * kRead + workers * kRecord + kReader;
  return chunks * options.chunk_bytes;
}

BuildResult build_dataset(const BuildOptions& options) {
  check_options(options);
  const std::unique_ptr<Tokenizer> tokenizer = make_build_tokenizer(options);
  BuildResult result = plan_build(options);
  const auto chat_template = options.chat ? load_template(*options.chat, options.path) : nullptr;
  Sink sink(options, *tokenizer);
  ChunkReader reader(result.inputs, options.records, *tokenizer, options.chunk_bytes, options.split);
  const int workers = worker_count(options);
  const std::vector<DocumentState> states = document_states(options, result.inputs, *tokenizer, workers);
  BuildProgress progress;
  progress.total_bytes = result.inputs.bytes;
  run_ordered<Chunk, Encoded>(
      workers, [&] { return reader.next(); },
      [&] {
        return
            [encoder = std::make_shared<Encoder>(options, result.inputs, states, *tokenizer, chat_template)](
                Chunk&& chunk) { return (*encoder)(chunk); };
      },
      [&](Encoded&& encoded) {
        sink.put(encoded);
        result.bad_records.add(encoded.bad);
        result.filtered.add(encoded.filtered);
        for (const auto& [document, state] : encoded.left_out) options.left_out(document, state);
        if (!options.progress) return;
        progress.input_bytes += encoded.input_bytes;
        progress.documents = sink.documents();
        progress.tokens = sink.tokens();
        options.progress(progress);
      });
  result.outputs = sink.finish(result.bad_records, result.filtered);
  result.empty_documents = sink.empty();
  result.conversations = sink.conversations();
  return result;
}

}  // namespace ltrain::data
