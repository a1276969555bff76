#include "runtime/tokenizer/formats/sentencepiece_tokenizer.h"

#include <xxhash.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/printable.h"
#include "runtime/tokenizer/bpe.h"
#include "runtime/tokenizer/formats/metaspace_words.h"
#include "runtime/tokenizer/formats/sentencepiece_model.h"
#include "runtime/tokenizer/formats/sentencepiece_normalizer.h"
#include "runtime/tokenizer/formats/unigram.h"
#include "runtime/tokenizer/gpt2_split.h"
#include "runtime/tokenizer/piece_cache.h"
#include "runtime/tokenizer/unicode.h"

namespace ltrain::data {
namespace {

constexpr size_t kMaxMerges = size_t{1} << 22;

/// Const and shared by threads.
struct Tables {
  Tables(SentencepieceModel m, const std::string& name) : model(std::move(m)), normalizer(model, name) {
    by_words = model.escape_whitespaces &&
               std::none_of(model.pieces.begin(), model.pieces.end(),
                            [](const SentencePiece& p) { return !reserved(p) && goes_over_words(p.text); });
    if (model.algorithm == SentencepieceModel::Algorithm::unigram)
      unigram = Unigram(model);
    else
      make_bpe(name);
  }

  int32_t find(std::string_view piece) const {
    for (size_t id = 0; id < model.pieces.size(); ++id)
      if (model.pieces[id].text == piece) return static_cast<int32_t>(id);
    return -1;
  }

  const SentencepieceModel model;
  SentencepieceNormalizer normalizer;
  Unigram unigram;
  // BPE. Symbols are pieces, followed by characters that occur in pieces but are not pieces.
  BpeTable bpe{{}, {}};
  std::vector<int32_t> symbol_ids;  ///< final id of a symbol; -1: unknown
  PieceTrie user_defined;           ///< pieces that are never merged
  /// No piece spans the position before a U+2581, except within a run of them.
  bool by_words = false;
  std::string hash;
  int32_t bos = -1, eot = -1;

 private:
  static bool reserved(const SentencePiece& p) {
    return p.type == PieceType::unknown || p.type == PieceType::control || p.type == PieceType::byte;
  }

  void make_bpe(const std::string& name) {
    std::vector<std::string> symbols(model.pieces.size());
    std::map<std::string, int32_t, std::less<>> ids;  // ids of symbols
    for (size_t id = 0; id < symbols.size(); ++id) {
      const SentencePiece& p = model.pieces[id];
      symbol_ids.push_back(static_cast<int32_t>(id));
      if (reserved(p)) continue;
      if (p.type == PieceType::user_defined)
        user_defined.add(p.text, static_cast<int32_t>(id));
      else
        ids.emplace(symbols[id] = p.text, static_cast<int32_t>(id));
    }
    const auto add_character = [&](std::string_view character, int32_t id) {
      if (ids.contains(character)) return;
      ids.emplace(character, static_cast<int32_t>(symbols.size()));
      symbols.emplace_back(character);
      symbol_ids.push_back(id);
    };
    for (size_t id = 0; id < model.pieces.size(); ++id) {
      const SentencePiece& p = model.pieces[id];
      const char *const begin = p.text.data(), *const end = begin + p.text.size();
      if (reserved(p) && static_cast<size_t>(next_char(begin, end).bytes) == p.text.size())
        add_character(p.text, static_cast<int32_t>(id));
    }
    std::vector<int32_t> order;
    for (size_t id = 0; id < model.pieces.size(); ++id) {
      if (symbols[id].empty()) continue;
      const std::string& text = model.pieces[id].text;  // not symbols[id], which may be reallocated
      order.push_back(static_cast<int32_t>(id));
      for (const char *c = text.data(), *end = c + text.size(); c < end;) {
        const std::string character(c, static_cast<size_t>(next_char(c, end).bytes));
        c += character.size();
        add_character(character, -1);
      }
    }
    // Largest score first. Equal scores share a rank, and the leftmost pair merges.
    const auto score = [&](int32_t id) { return model.pieces[static_cast<size_t>(id)].score; };
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return score(a) > score(b); });
    std::vector<BpeMerge> merges;
    int32_t rank = -1;
    for (size_t i = 0; i < order.size(); ++i) {
      if (i == 0 || score(order[i]) != score(order[i - 1])) ++rank;
      const std::string& text = symbols[static_cast<size_t>(order[i])];
      const char *const begin = text.data(), *const end = begin + text.size();
      for (const char* cut = begin + next_char(begin, end).bytes; cut < end;
           cut += next_char(cut, end).bytes) {
        const auto left = ids.find(std::string_view(begin, static_cast<size_t>(cut - begin)));
        const auto right = ids.find(std::string_view(cut, static_cast<size_t>(end - cut)));
        if (left == ids.end() || right == ids.end()) continue;
        if (merges.size() == kMaxMerges)
          fail(ExitCode::data, "{}: pieces that merge in more than {} ways", name, kMaxMerges);
        merges.push_back({left->second, right->second, order[i], rank});
      }
    }
    bpe = BpeTable(std::move(symbols), merges);
  }
};

class SentencepieceTokenizer final : public Tokenizer {
 public:
  using Tokenizer::decode;
  using Tokenizer::encode;
  explicit SentencepieceTokenizer(std::shared_ptr<const Tables> tables) : t_(std::move(tables)) {}

  std::string name() const override { return "huggingface"; }
  int64_t vocab_size() const override { return static_cast<int64_t>(t_->model.pieces.size()); }
  int32_t eot() const override { return t_->eot; }
  int32_t bos() const override { return t_->bos; }
  int32_t find(std::string_view token) const override { return t_->find(token); }
  std::string hash() const override { return t_->hash; }
  std::unique_ptr<Tokenizer> clone() const override { return std::make_unique<SentencepieceTokenizer>(t_); }

  void encode(std::string_view text, std::vector<int32_t>& out) override {
    t_->normalizer.apply(text, normalized_);
    const auto first = static_cast<int64_t>(out.size());
    if (t_->model.algorithm == SentencepieceModel::Algorithm::unigram)
      encode_unigram(out);
    else if (t_->by_words)
      each_metaspace_word(normalized_, [&](std::string_view word) {
        cache_.encode(word, out, [this](std::string_view w, std::vector<int32_t>& to) { encode_bpe(w, to); });
      });
    else
      encode_bpe(normalized_, out);
    if (t_->model.byte_fallback) return;
    // A run of unknown characters is one unknown piece.
    const int32_t unk = t_->model.unk;
    out.erase(std::unique(out.begin() + first, out.end(),
                          [unk](int32_t a, int32_t b) { return a == unk && b == unk; }),
              out.end());
  }

  /// Decodes like the library, except that invalid UTF-8 bytes are kept.
  void decode(const int32_t* ids, int64_t count, std::string& out, bool begin) const override {
    const SentencepieceModel& m = t_->model;
    const size_t from = out.size();
    bool strip = begin && (m.add_dummy_prefix || m.remove_extra_whitespaces);
    for (int64_t i = 0; i < count; ++i) {
      if (ids[i] < 0 || ids[i] >= vocab_size())
        fail(ExitCode::data, "token {} at position {}: this tokenizer has no such id (0 to {})", ids[i], i,
             vocab_size() - 1);
      const SentencePiece& p = m.pieces[static_cast<size_t>(ids[i])];
      if (p.type == PieceType::control) continue;
      if (p.type == PieceType::byte) {
        const auto byte = std::find(m.byte_pieces.begin(), m.byte_pieces.end(), ids[i]);
        out += static_cast<char>(byte - m.byte_pieces.begin());
        continue;
      }
      if (out.size() > from) strip = false;
      if (p.type == PieceType::unknown) {
        out += m.unk_surface;
        continue;
      }
      std::string_view text = p.text;
      if (strip && text.starts_with(kMetaspace)) {
        text.remove_prefix(kMetaspace.size());
        strip = m.remove_extra_whitespaces;
      }
      for (size_t at; (at = text.find(kMetaspace)) != std::string_view::npos;
           text.remove_prefix(at + kMetaspace.size()))
        out.append(text.substr(0, at)) += ' ';
      out += text;
    }
  }

  int64_t text_bytes(int32_t id) const override {
    if (id < 0 || id >= vocab_size()) return 0;
    const SentencePiece& p = t_->model.pieces[static_cast<size_t>(id)];
    if (p.type == PieceType::control || p.type == PieceType::unknown) return 0;
    if (p.type == PieceType::byte) return 1;
    size_t bytes = p.text.size();  // U+2581 is a space
    for (size_t at = 0; (at = p.text.find(kMetaspace, at)) != p.text.npos; at += kMetaspace.size())
      bytes -= kMetaspace.size() - 1;
    return static_cast<int64_t>(bytes);
  }

  int64_t safe_cut(std::string_view text) const override {
    // Unigram sums restart at a cut, which may separate segmentations that are equal in single precision.
    if (!t_->normalizer.by_words() || !t_->by_words) return 0;
    for (;;) {
      const int64_t cut = word_cut(text);
      text = text.substr(0, static_cast<size_t>(cut));
      if (!text.ends_with(kMetaspace)) return cut;
    }
  }

 private:
  void put_unknown(std::string_view character, std::vector<int32_t>& out) const {
    if (!t_->model.byte_fallback) return out.push_back(t_->model.unk);
    for (const char c : character) out.push_back(t_->model.byte_pieces[static_cast<unsigned char>(c)]);
  }

  void encode_bpe(std::string_view text, std::vector<int32_t>& out) const {
    const Tables& t = *t_;
    std::vector<int32_t> run;  // symbols that may merge
    const auto flush = [&] {
      bpe_merge(t.bpe, run, 0);
      for (const int32_t symbol : run) {
        const int32_t id = t.symbol_ids[static_cast<size_t>(symbol)];
        id >= 0 ? out.push_back(id) : put_unknown(t.bpe.token(symbol), out);
      }
      run.clear();
    };
    while (!text.empty()) {
      int32_t own = -1;
      size_t bytes = t.user_defined.empty() ? 0 : t.user_defined.longest(text, own);
      if (bytes > 0) {
        flush();
        out.push_back(own);
      } else {
        bytes = static_cast<size_t>(next_char(text.data(), text.data() + text.size()).bytes);
        const std::string_view character = text.substr(0, bytes);
        if (const int32_t symbol = t.bpe.find(character); symbol >= 0) {
          run.push_back(symbol);
        } else {
          flush();
          put_unknown(character, out);
        }
      }
      text.remove_prefix(bytes);
    }
    flush();
  }

  void encode_unigram(std::vector<int32_t>& out) {
    parts_.clear();
    t_->unigram.segment(normalized_, scratch_, parts_);
    for (const Unigram::Part& p : parts_) {
      if (p.id == t_->model.unk)
        put_unknown(std::string_view(normalized_).substr(p.begin, p.end - p.begin), out);
      else
        out.push_back(p.id);
    }
  }

  std::shared_ptr<const Tables> t_;
  PieceCache cache_;
  Unigram::Scratch scratch_;
  std::vector<Unigram::Part> parts_;
  std::string normalized_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(std::string_view file, const std::string& name,
                                                        const DocumentTokens& tokens) {
  auto tables = std::make_shared<Tables>(read_sentencepiece_model(file, name), name);
  const SentencepieceModel& m = tables->model;
  const auto id_of = [&](const char* what, const std::string& given, const std::string& of_model) {
    const int32_t id = tables->find(given.empty() ? of_model : given);
    if (id < 0 && !given.empty())
      fail(ExitCode::usage, "tokenizer: {} \"{}\" is no token of {}", what, printable(given, 80), name);
    const bool is =
        id >= 0 && (!given.empty() || m.pieces[static_cast<size_t>(id)].type == PieceType::control);
    return is ? id : -1;
  };
  tables->bos = id_of("bos_token", tokens.bos, m.bos_piece);
  tables->eot = id_of("eos_token", tokens.eos, m.eos_piece);
  const std::string all = "ltrain SentencePiece 1 " + std::string(file);
  tables->hash = fmt::format("{:016x}", XXH3_64bits(all.data(), all.size()));
  return std::make_unique<SentencepieceTokenizer>(tables);
}

}  // namespace ltrain::data
