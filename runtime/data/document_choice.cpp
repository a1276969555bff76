#include "runtime/data/document_choice.h"

#include <xxhash.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <unordered_map>

#include "base/error.h"
#include "base/json/json.h"
#include "base/printable.h"
#include "runtime/data/input/jsonl.h"
#include "runtime/data/ordered_pipeline.h"
#include "runtime/files/file.h"
#include "runtime/files/strict_json.h"

namespace ltrain::data {
namespace {

constexpr int64_t kMarkBytes = sizeof(DocumentMark);
constexpr int64_t kMarksAtOnce = 1 << 16;
constexpr int kMostDepth = 64;  // levels of a record of evaluation data
constexpr int64_t kMostNgrams = int64_t{1} << 28;

using Hash = std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)>;

/// Marks one document, whose text may come in pieces.
class DocumentMarker {
 public:
  explicit DocumentMarker(const NgramSet* ngrams)
      : ngrams_(ngrams), hash_(XXH3_createState(), &XXH3_freeState), scanner_(ngrams ? ngrams->n() : 1) {
    XXH3_128bits_reset(hash_.get());
  }

  void add(std::string_view text) {
    XXH3_128bits_update(hash_.get(), text.data(), text.size());
    if (ngrams_) scanner_.add(text, found());
  }

  DocumentMark finish() {
    if (ngrams_) scanner_.finish(found());
    const XXH128_hash_t h = XXH3_128bits_digest(hash_.get());
    XXH3_128bits_reset(hash_.get());
    if (std::exchange(contaminated_, false)) return kContaminated;
    return h.high64 == 0 && h.low64 < 2 ? DocumentMark{1, h.low64} : DocumentMark{h.high64, h.low64};
  }

 private:
  std::function<void(uint64_t)> found() {
    return [this](uint64_t gram) { contaminated_ = contaminated_ || ngrams_->contains(gram); };
  }

  const NgramSet* ngrams_;
  Hash hash_;
  NgramScanner scanner_;
  bool contaminated_ = false;
};

/// Marks of a chunk, and the texts of documents that are not in it whole.
struct Marked {
  struct Part {
    std::optional<DocumentMark> mark;  // nothing: a part of a text
    std::string text;
    bool ends = true;
  };
  std::vector<Part> parts;
};

Marked mark_chunk(const Chunk& chunk, const InputList& list, const RecordOptions& records,
                  const NgramSet* ngrams) {
  Marked out;
  BadRecords ignored;  // the build counts them when it reads the records again
  FilterCounts counts;
  DocumentMarker marker(ngrams);
  for (const Piece& piece : chunk.pieces) {
    const std::string& path = list.files[static_cast<size_t>(piece.file)].path;
    if (piece.kind == Piece::text) {
      const auto text =
          std::string_view(chunk.text)
              .substr(static_cast<size_t>(piece.begin), static_cast<size_t>(piece.end - piece.begin));
      out.parts.push_back({std::nullopt, std::string(text), piece.ends_document});
      continue;
    }
    DocumentMark mark = kNotRead;
    if (piece.kind == Piece::tokens) {
      if (ngrams)
        fail(ExitCode::data, "{}: {}: expected text to compare with the evaluation data, got token ids", path,
             piece.position);
      const auto bytes = static_cast<size_t>(piece.end - piece.begin) * sizeof(int32_t);
      marker.add({reinterpret_cast<const char*>(chunk.tokens.data() + piece.begin), bytes});
      mark = marker.finish();
    } else if (is_kept(chunk, piece, records, path, ignored, counts)) {
      const auto text = record_text(chunk, piece, records, path, ignored);
      if (text && !text->empty()) {
        marker.add(*text);
        mark = marker.finish();
      }
    }
    out.parts.push_back({mark, "", true});
  }
  return out;
}

/// Texts of a JSON value, at any depth.
void each_text(const nlohmann::json& value, const std::function<void(const std::string&)>& each) {
  if (value.is_string()) return each(value.get_ref<const std::string&>());
  if (value.is_structured())
    for (const auto& one : value) each_text(one, each);
}

/// The record as JSON. Throws Error (data) for other text.
nlohmann::json parsed(std::string_view record, const std::string& path) {
  std::string error;
  nlohmann::json value = parse_strict(with_quoted_nan(record), kMostDepth, error);
  if (!error.empty()) fail(ExitCode::data, "{}: expected JSON: {}", path, error);
  return value;
}

}  // namespace

NgramSet evaluation_ngrams(const DocumentChoice& choice, const RecordOptions& records,
                           const Tokenizer& tokenizer) {
  NgramSet set(choice.ngram);
  RecordOptions whole;
  whole.objects = records.objects;
  const InputList list = list_inputs(choice.against, {}, {}, whole);
  whole.whole = true;
  ChunkReader reader(list, whole, tokenizer, 1 << 20, {});
  NgramScanner scanner(choice.ngram);
  const auto insert = [&](uint64_t gram) {
    set.insert(gram);
    if (set.size() > kMostNgrams)
      fail(ExitCode::usage,
           "data.decontaminate.against (--decontaminate): expected at most {} different n-grams of {} words, "
           "got "
           "more; name the evaluation data alone",
           kMostNgrams, choice.ngram);
  };
  while (const std::optional<Chunk> chunk = reader.next())
    for (const Piece& piece : chunk->pieces) {
      const std::string& path = list.files[static_cast<size_t>(piece.file)].path;
      if (piece.kind == Piece::tokens)
        fail(ExitCode::data, "{}: expected text of evaluation data, got token ids", path);
      if (!piece.problem.empty()) fail(ExitCode::data, "{}: {}: {}", path, piece.position, piece.problem);
      const auto text =
          std::string_view(chunk->text)
              .substr(static_cast<size_t>(piece.begin), static_cast<size_t>(piece.end - piece.begin));
      if (piece.kind == Piece::text) {
        scanner.add(text, insert);
        if (piece.ends_document) scanner.finish(insert);
        continue;
      }
      each_text(parsed(text, path), [&](const std::string& one) {
        scanner.add(one, insert);
        scanner.finish(insert);
      });
    }
  if (set.size() == 0)
    fail(ExitCode::usage,
         "data.decontaminate.against (--decontaminate): {}: expected texts of at least {} words, got none; "
         "lower "
         "data.decontaminate.ngram (--decontaminate-ngram)",
         printable(choice.against[0]), choice.ngram);
  return set;
}

std::vector<DocumentMark> mark_documents(const InputList& list, const RecordOptions& records,
                                         const Tokenizer& tokenizer, const NgramSet* ngrams,
                                         const std::vector<double>& shares, int workers,
                                         int64_t chunk_bytes) {
  std::vector<DocumentMark> marks;
  ChunkReader reader(list, records, tokenizer, chunk_bytes, shares);
  DocumentMarker open(ngrams);
  run_ordered<Chunk, Marked>(
      workers, [&] { return reader.next(); },
      [&] { return [&](Chunk&& chunk) { return mark_chunk(chunk, list, records, ngrams); }; },
      [&](Marked&& marked) {
        for (const Marked::Part& part : marked.parts) {
          if (part.mark) {
            marks.push_back(*part.mark);
            continue;
          }
          open.add(part.text);
          if (part.ends) marks.push_back(open.finish());
        }
      });
  return marks;
}

std::vector<DocumentState> choose_documents(const std::vector<DocumentMark>& marks, bool deduplicate,
                                            const std::vector<std::string>& earlier) {
  std::vector<DocumentState> states(marks.size(), DocumentState::kept);
  const auto hash = [](const DocumentMark& mark) { return static_cast<size_t>(mark.low ^ mark.high); };
  std::unordered_map<DocumentMark, size_t, decltype(hash)> first(deduplicate ? marks.size() : 0, hash);
  for (size_t i = 0; i < marks.size(); ++i) {
    if (marks[i] == kContaminated) states[i] = DocumentState::contaminated;
    if (!deduplicate || marks[i] == kContaminated || marks[i] == kNotRead) continue;
    if (!first.emplace(marks[i], i).second) states[i] = DocumentState::duplicate;
  }
  std::vector<DocumentMark> block(kMarksAtOnce);
  for (const std::string& path : earlier) {
    const InputFile file(path);
    for (int64_t at = 0; at < file.size();) {
      const int64_t bytes = std::min(kMarksAtOnce * kMarkBytes, file.size() - at);
      file.read(block.data(), at, bytes);
      at += bytes;
      for (int64_t i = 0; i < bytes / kMarkBytes; ++i)
        if (const auto same = first.find(block[static_cast<size_t>(i)]); same != first.end())
          states[same->second] = DocumentState::duplicate;
    }
  }
  return states;
}

void write_marks(const std::string& path, const std::vector<DocumentMark>& marks) {
  OutputFile file(path);
  file.write(marks.data(), static_cast<int64_t>(marks.size()) * kMarkBytes);
  file.commit();
}

std::vector<DocumentMark> read_marks(const std::string& path) {
  const InputFile file(path);
  std::vector<DocumentMark> marks(static_cast<size_t>(file.size() / kMarkBytes));
  file.read(marks.data(), 0, static_cast<int64_t>(marks.size()) * kMarkBytes);
  return marks;
}

}  // namespace ltrain::data
