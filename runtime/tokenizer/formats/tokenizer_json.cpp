#include "runtime/tokenizer/formats/tokenizer_json.h"

#include <xxhash.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include "base/error.h"
#include "base/printable.h"
#include "runtime/files/strict_json.h"
#include "runtime/tokenizer/byte_level_json.h"
#include "runtime/tokenizer/formats/json_fields.h"
#include "runtime/tokenizer/formats/metaspace_words.h"
#include "runtime/tokenizer/split_patterns.h"
#include "runtime/tokenizer/unicode.h"

namespace ltrain::data {
namespace {

using Json = nlohmann::json;

constexpr int kMaxDepth = 32;
// Limits far above real tokenizers, and small enough to make a hostile file cheap.
constexpr size_t kMaxSteps = 100, kMaxContent = 1000, kMaxAround = 1000, kMaxAddedBytes = size_t{4} << 20;

void check_steps(size_t steps, const std::string& where) {
  if (steps >= kMaxSteps) fail(ExitCode::data, "{}: more than {} steps", where, kMaxSteps);
}

[[noreturn]] void not_supported(const std::string& where, const std::string& type, const char* known) {
  fail(ExitCode::data, "{}: type \"{}\" is not supported; {} are", where, printable(type, 60), known);
}

/// Visits a component and those inside its Sequences, in order.
template <class F>
void each_component(const Json* component, const std::string& where, const char* list, F&& visit) {
  if (!component) return;
  JsonFields f(*component, where);
  const std::string type = f.text("type");
  if (type != "Sequence") return visit(type, f);
  const Json& parts = f.list(list);
  for (size_t i = 0; i < parts.size(); ++i)
    each_component(&parts[i], fmt::format("{}.{}[{}]", where, list, i), list, visit);
  f.done();
}

/// {"String": ...} or {"Regex": ...}
struct Pattern {
  std::string text;
  bool regex = false;
};

Pattern pattern_of(JsonFields& f) {
  JsonFields p(f.get("pattern"), f.where("pattern"));
  Pattern result;
  result.regex = p.find("Regex") != nullptr;
  result.text = p.text(result.regex ? "Regex" : "String");
  p.done();
  if (result.text.empty()) fail(ExitCode::data, "{}: empty", p.where());
  return result;
}

Regex regex_of(const Pattern& p, const std::string& where) {
  return p.regex ? Regex(p.text, where) : Regex::of_text(p.text, where);
}

Normalizer read_normalizer(const Json* component, const std::string& where) {
  static const std::map<std::string, UnicodeForm> kForms = {{"NFC", UnicodeForm::nfc},
                                                            {"NFD", UnicodeForm::nfd},
                                                            {"NFKC", UnicodeForm::nfkc},
                                                            {"NFKD", UnicodeForm::nfkd}};
  std::vector<Normalizer::Step> steps;
  each_component(component, where, "normalizers", [&](const std::string& type, JsonFields& f) {
    check_steps(steps.size(), f.where());
    if (const auto form = kForms.find(type); form != kForms.end()) {
      steps.emplace_back(form->second);
    } else if (type == "Lowercase") {
      steps.emplace_back(LowercaseStep{});
    } else if (type == "Prepend") {
      steps.emplace_back(PrependStep{f.text("prepend")});
    } else if (type == "Replace") {
      Pattern pattern = pattern_of(f);
      if (pattern.regex)
        steps.emplace_back(ReplaceStep{Regex(pattern.text, f.where()), f.text("content")});
      else
        steps.emplace_back(ReplaceTextStep{std::move(pattern.text), f.text("content")});
    } else if (type == "Strip") {
      const bool left = f.truth("strip_left", false);
      steps.emplace_back(StripStep{left, f.truth("strip_right", false)});
    } else {
      not_supported(f.where(), type, "NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace, Strip and Sequence");
    }
    f.done();
  });
  return Normalizer(std::move(steps));
}

SplitBehavior behavior_of(JsonFields& f, const std::string& missing) {
  static const std::map<std::string, SplitBehavior> kBehaviors = {
      {"Isolated", SplitBehavior::isolated},
      {"Removed", SplitBehavior::removed},
      {"MergedWithPrevious", SplitBehavior::merged_with_previous},
      {"MergedWithNext", SplitBehavior::merged_with_next},
      {"Contiguous", SplitBehavior::contiguous}};
  const std::string name = missing.empty() ? f.text("behavior") : f.text("behavior", missing);
  const auto it = kBehaviors.find(name);
  if (it == kBehaviors.end())
    fail(ExitCode::data,
         "{}: \"{}\" is none of Isolated, Removed, MergedWithPrevious, MergedWithNext and Contiguous",
         f.where("behavior"), printable(name, 60));
  return it->second;
}

MetaspaceSplit read_metaspace(JsonFields& f) {
  MetaspaceSplit m;
  m.replacement = f.text("replacement");
  const Char c = m.replacement.empty()
                     ? Char{}
                     : next_char(m.replacement.data(), m.replacement.data() + m.replacement.size());
  if (!c.valid || static_cast<size_t>(c.bytes) != m.replacement.size())
    fail(ExitCode::data, "{}: \"{}\" is not one character", f.where("replacement"),
         printable(m.replacement, 40));
  f.refuse("str_rep", "not the replacement", {Json(m.replacement)});
  const std::string scheme = f.text("prepend_scheme", "always");
  if (scheme != "always" && scheme != "never" && scheme != "first")
    fail(ExitCode::data, "{}: \"{}\" is none of always, never and first", f.where("prepend_scheme"),
         printable(scheme, 40));
  m.prepend = scheme == "always"  ? PrependScheme::always
              : scheme == "never" ? PrependScheme::never
                                  : PrependScheme::first;
  if (!f.truth("add_prefix_space", m.prepend != PrependScheme::never) && m.prepend != PrependScheme::never)
    fail(ExitCode::data, "{}: false contradicts prepend_scheme {}; write prepend_scheme never",
         f.where("add_prefix_space"), scheme);
  m.split = f.truth("split", true);
  return m;
}

struct PreTokenizerRead {
  PreTokenizer pre_tokenizer;
  bool byte_level = false, metaspace_first = false;
};

PreTokenizerRead read_pre_tokenizer(const Json* component, const std::string& where) {
  // Rust's word characters: \w and two joiners.
  constexpr const char* kWords = R"([\w\x{200c}\x{200d}]+|[^\w\x{200c}\x{200d}\s]+)";
  PreTokenizerRead read;
  std::vector<PreTokenizer::Step> steps;
  const auto add_split = [&](Regex pattern, SplitBehavior behavior, bool invert, bool local, bool by_words) {
    steps.emplace_back(RegexSplit{
        .pattern = pattern, .behavior = behavior, .invert = invert, .local = local, .by_words = by_words});
  };
  each_component(component, where, "pretokenizers", [&](const std::string& type, JsonFields& f) {
    check_steps(steps.size(), f.where());
    if (read.byte_level) fail(ExitCode::data, "{}: {} after ByteLevel is not supported", f.where(), type);
    if (type == "ByteLevel") {
      f.pass_over("trim_offsets");  // offsets are not used
      if (f.truth("add_prefix_space", true)) steps.emplace_back(PrefixSpace{});
      if (f.truth("use_regex", true)) steps.emplace_back(Gpt2Split{});
      read.byte_level = true;
    } else if (type == "Split") {
      const Pattern p = pattern_of(f);
      const SplitBehavior behavior = behavior_of(f, "");
      const bool invert = f.truth("invert", false);
      const bool plain = p.regex && behavior == SplitBehavior::isolated && !invert;
      if (plain && p.text == kGpt2Pattern)
        steps.emplace_back(Gpt2Split{});
      else
        add_split(regex_of(p, f.where()), behavior, invert, plain && splits_by_words(p.text),
                  plain && splits_by_words(p.text));
    } else if (type == "Digits") {
      const bool individual = f.truth("individual_digits", false);
      add_split(Regex("\\p{N}", f.where()), individual ? SplitBehavior::isolated : SplitBehavior::contiguous,
                false, true, false);
    } else if (type == "Punctuation") {
      const SplitBehavior behavior = behavior_of(f, "Isolated");
      const bool local = behavior == SplitBehavior::isolated || behavior == SplitBehavior::contiguous;
      add_split(Regex(R"([\p{P}$+<=>^`|~])", f.where()), behavior, false, local, false);
    } else if (type == "Whitespace") {
      add_split(Regex(kWords, f.where()), SplitBehavior::removed, true, true, true);
    } else if (type == "WhitespaceSplit") {
      add_split(Regex("\\s", f.where()), SplitBehavior::removed, false, true, true);
    } else if (type == "Metaspace") {
      steps.emplace_back(read_metaspace(f));
      read.metaspace_first |= std::get<MetaspaceSplit>(steps.back()).prepend == PrependScheme::first;
    } else {
      not_supported(
          f.where(), type,
          "ByteLevel, Split, Digits, Punctuation, Whitespace, WhitespaceSplit, Metaspace and Sequence");
    }
    f.done();
  });
  read.pre_tokenizer = PreTokenizer(std::move(steps));
  return read;
}

/// Decodes a token of a byte-level vocabulary; false if a character represents no byte.
bool bytes_of_token(std::string_view token, std::string& bytes) {
  static const std::unordered_map<uint32_t, char> kBytes = [] {
    std::unordered_map<uint32_t, char> m;
    for (int b = 0; b < 256; ++b) m.emplace(byte_level_alphabet()[b], static_cast<char>(b));
    return m;
  }();
  bytes.clear();
  for (const char *p = token.data(), *end = p + token.size(); p < end;) {
    const Char c = next_char(p, end);
    const auto it = c.valid ? kBytes.find(c.code) : kBytes.end();
    if (it == kBytes.end()) return false;
    bytes += it->second;
    p += c.bytes;
  }
  return true;
}

class Reader {
 public:
  Reader(const std::string& text, const std::string& name) : name_(name) {
    std::string error;
    root_ = parse_strict(text, kMaxDepth, error);
    if (!error.empty()) fail(ExitCode::data, "{}: {}", name, error);
  }

  std::shared_ptr<HuggingfaceTables> read() {
    JsonFields f(root_, name_);
    f.refuse("version", "ltrain reads version 1.0", {Json("1.0")});
    f.refuse("truncation", "would cut texts; ltrain encodes them whole. Write null");
    f.refuse("padding", "would lengthen texts; ltrain encodes them as they are. Write null");
    t_->normalizer = read_normalizer(f.find("normalizer"), f.where("normalizer"));
    PreTokenizerRead p = read_pre_tokenizer(f.find("pre_tokenizer"), f.where("pre_tokenizer"));
    t_->pre_tokenizer = std::move(p.pre_tokenizer);
    t_->byte_level = p.byte_level;
    read_model(f.get("model"), f.where("model"));
    if (const Json* added = f.find("added_tokens")) read_added(*added, f.where("added_tokens"));
    read_post_processor(f.find("post_processor"), f.where("post_processor"));
    read_decoder(f.find("decoder"), f.where("decoder"));
    f.done();
    if (p.metaspace_first && !t_->normalizer.empty())
      fail(ExitCode::data, "{}: a normalizer before a Metaspace with prepend_scheme first is not supported",
           f.where("pre_tokenizer"));
    const std::string all = "ltrain tokenizer.json 1 " + root_.dump();
    t_->hash = fmt::format("{:016x}", XXH3_64bits(all.data(), all.size()));
    return std::move(t_);
  }

 private:
  int32_t id_of(const std::string& token) const {
    const auto it = ids_.find(token);
    return it == ids_.end() ? -1 : it->second;
  }

  void read_vocabulary(const Json& vocab, const std::string& where) {
    if (!vocab.is_object() || vocab.empty())
      fail(ExitCode::data, "{}: not an object of tokens and ids", where);
    ids_.reserve(vocab.size());
    for (const auto& [token, value] : vocab.items()) {
      const std::string at = where + "." + printable(token, 80);
      if (token.empty()) fail(ExitCode::data, "{}: an empty token", where);
      const bool fits =
          value.is_number_unsigned() && value.get<uint64_t>() < static_cast<uint64_t>(kMostJsonTokens);
      if (!fits)
        fail(ExitCode::data, "{}: {}, not an id from 0 to {}", at, printable(value.dump(), 40),
             kMostJsonTokens - 1);
      put_token(value.get<int32_t>(), token, at);
    }
  }

  void put_token(int32_t id, const std::string& token, const std::string& where) {
    auto& contents = t_->contents;
    if (static_cast<size_t>(id) >= contents.size()) contents.resize(static_cast<size_t>(id) + 1);
    if (!contents[id].empty())
      fail(ExitCode::data, "{}: id {} again; \"{}\" has it", where, id, printable(contents[id], 80));
    contents[id] = token;
    ids_.emplace(token, id);
  }

  void read_model(const Json& model, const std::string& where) {
    JsonFields f(model, where);
    const std::string type = f.text("type", f.find("merges") ? "BPE" : "none");
    if (type == "Unigram")
      fail(ExitCode::data,
           "{}: type \"Unigram\" is not supported; models of type BPE are, and SentencePiece models of both "
           "types: "
           "name the folder's *.model file",
           where);
    if (type != "BPE") not_supported(where, type, "models of type BPE");
    f.refuse("dropout", "ids would be random; write null", {Json(0.0), Json(0)});
    f.refuse("continuing_subword_prefix", "not supported", {Json("")});
    f.refuse("end_of_word_suffix", "not supported", {Json("")});
    t_->fuse_unk = f.truth("fuse_unk", false);
    t_->byte_fallback = f.truth("byte_fallback", false);
    t_->ignore_merges = f.truth("ignore_merges", false);
    read_vocabulary(f.get("vocab"), f.where("vocab"));
    model_size_ = static_cast<int64_t>(ids_.size());
    const std::string unk = f.text("unk_token", "");
    if (!unk.empty() && (t_->unk = id_of(unk)) < 0)
      fail(ExitCode::data, "{}: \"{}\" is not in the vocabulary", f.where("unk_token"), printable(unk, 80));
    const std::vector<BpeMerge> merges = read_merges(f.list("merges"), f.where("merges"));
    f.done();

    std::vector<std::string> symbols(t_->contents.size());
    for (size_t id = 0; id < symbols.size(); ++id) {
      if (!t_->byte_level)
        symbols[id] = t_->contents[id];
      else if (!bytes_of_token(t_->contents[id], symbols[id]))
        symbols[id].clear();
    }
    // U+2581 must be a token, because a run of unknown characters would span it.
    t_->metaspace_words = !t_->byte_level && !t_->ignore_merges && id_of(std::string(kMetaspace)) >= 0 &&
                          std::none_of(merges.begin(), merges.end(), [&](const BpeMerge& m) {
                            return goes_over_words(t_->contents[m.id]);
                          });
    t_->table = BpeTable(std::move(symbols), merges);
    check_symbols(where);
    find_cuts(merges);
  }

  /// Refuses a vocabulary that has no ids for some text, because the text would be lost silently.
  void check_symbols(const std::string& where) {
    if (t_->byte_fallback) {
      for (int b = 0; b < 256; ++b) t_->byte_tokens.push_back(id_of(fmt::format("<0x{:02X}>", b)));
      if (t_->byte_level)
        fail(ExitCode::data, "{}.byte_fallback: true with a ByteLevel pre_tokenizer", where);
    }
    if (t_->unk >= 0) return;
    if (t_->byte_level) {
      for (int b = 0; b < 256; ++b)
        if (t_->table.byte_id(static_cast<unsigned char>(b)) < 0)
          fail(ExitCode::data, "{}.vocab: no token is the byte {}, and unk_token is null: text would be lost",
               where, b);
      return;
    }
    if (!t_->byte_fallback)
      fail(ExitCode::data,
           "{}: has neither unk_token nor byte_fallback nor a ByteLevel pre_tokenizer: characters without a "
           "token would be lost",
           where);
    for (int b = 0; b < 256; ++b)
      if (t_->byte_tokens[b] < 0)
        fail(ExitCode::data,
             "{}.vocab: byte_fallback, but no token <0x{:02X}>, and unk_token is null: text would be lost",
             where, b);
  }

  /// Finds positions that no merge spans. If all bytes have tokens, no symbol is unknown, and only merges
  /// join text.
  void find_cuts(const std::vector<BpeMerge>& merges) {
    const std::vector<int32_t>& bytes = t_->byte_tokens;
    if (bytes.empty() || t_->ignore_merges || std::find(bytes.begin(), bytes.end(), -1) != bytes.end())
      return;
    std::unordered_map<int32_t, std::string>
        byte_of;  // bytes of tokens that represent a byte: <0x0A> is not a character
    for (int b = 0; b < 256; ++b) byte_of[bytes[b]] = std::string(1, static_cast<char>(b));
    auto cuts = std::make_unique<MergeCuts>();
    for (const BpeMerge& m : merges) {
      const std::string &left = t_->contents[m.left], &right = t_->contents[m.right];
      const auto left_byte = byte_of.find(m.left), right_byte = byte_of.find(m.right);
      const std::string& other_left = left_byte == byte_of.end() ? left : left_byte->second;
      const std::string& other_right = right_byte == byte_of.end() ? right : right_byte->second;
      for (const std::string* l : {&left, &other_left})
        for (const std::string* r : {&right, &other_right}) cuts->add(*l, *r);
    }
    t_->cuts = std::move(cuts);
  }

  std::vector<BpeMerge> read_merges(const Json& list, const std::string& where) const {
    std::vector<BpeMerge> merges;
    merges.reserve(list.size());
    for (size_t i = 0; i < list.size(); ++i) {
      const Json& m = list[i];
      std::string left, right;
      if (m.is_array() && m.size() == 2 && m[0].is_string() && m[1].is_string()) {
        left = m[0].get<std::string>();
        right = m[1].get<std::string>();
      } else if (m.is_string()) {
        const std::string both = m.get<std::string>();
        const size_t space = both.find(' ');
        if (space != std::string::npos) {
          left = both.substr(0, space);
          right = both.substr(space + 1);
        }
      }
      if (left.empty() || right.empty() || (m.is_string() && right.find(' ') != std::string::npos))
        fail(ExitCode::data, "{}[{}]: {} is neither two tokens nor \"A B\"", where, i,
             printable(m.dump(), 80));
      const BpeMerge merge{.left = id_of(left),
                           .right = id_of(right),
                           .id = id_of(left + right),
                           .rank = static_cast<int32_t>(i)};
      for (const auto& [id, token] :
           {std::pair(merge.left, left), std::pair(merge.right, right), std::pair(merge.id, left + right)})
        if (id < 0)
          fail(ExitCode::data, "{}[{}]: \"{}\" is not in the vocabulary", where, i, printable(token, 80));
      merges.push_back(merge);
    }
    return merges;
  }

  void read_added(const Json& list, const std::string& where) {
    if (!list.is_array()) fail(ExitCode::data, "{}: not a list", where);
    int64_t next = model_size_;
    std::map<std::string, size_t> seen;
    for (size_t i = 0; i < list.size(); ++i) {
      JsonFields f(list[i], fmt::format("{}[{}]", where, i));
      AddedToken a;
      a.content = f.text("content");
      a.id = static_cast<int32_t>(f.integer("id", 0, kMostJsonTokens - 1));
      a.single_word = f.truth("single_word", false);
      a.lstrip = f.truth("lstrip", false);
      a.rstrip = f.truth("rstrip", false);
      a.special = f.truth("special", false);
      a.normalized = f.truth("normalized", !a.special);
      f.done();
      if (a.content.empty()) fail(ExitCode::data, "{}: empty", f.where("content"));
      if (a.content.size() > kMaxContent || (added_bytes_ += a.content.size()) > kMaxAddedBytes)
        fail(ExitCode::data, "{}: {} bytes; an added token has at most {}, all together {}",
             f.where("content"), a.content.size(), kMaxContent, kMaxAddedBytes);
      if (const auto [it, fresh] = seen.emplace(a.content, i); !fresh)
        fail(ExitCode::data, "{}: \"{}\" again; {}[{}] has it", f.where("content"), printable(a.content, 80),
             where, it->second);
      const int32_t in_vocabulary = id_of(a.content);
      if (in_vocabulary < 0) {
        put_token(a.id, a.content, f.where("id"));
      } else if (in_vocabulary != a.id) {
        fail(ExitCode::data, "{}: {}, but model.vocab says {}", f.where("id"), a.id, in_vocabulary);
      }
      // A reader that assigns the next free id, like `tokenizers`, must get the same ids.
      if (in_vocabulary < 0 && a.id != next)
        fail(ExitCode::data, "{}: {} where {} is the next id: ids of added tokens follow each other",
             f.where("id"), a.id, next);
      next = std::max<int64_t>(next, int64_t{a.id} + 1);
      t_->added.push_back(a);
    }
  }

  int32_t special_id(const Json& ids, const std::string& where) const {
    const bool fits = ids.is_number_unsigned() && ids.get<uint64_t>() < t_->contents.size() &&
                      !t_->contents[ids.get<size_t>()].empty();
    if (!fits) fail(ExitCode::data, "{}: {} is no id of this tokenizer", where, printable(ids.dump(), 40));
    return ids.get<int32_t>();
  }

  void read_post_processor(const Json* component, const std::string& where) {
    each_component(component, where, "processors", [&](const std::string& type, JsonFields& f) {
      if (t_->before.size() + t_->after.size() > kMaxAround)
        fail(ExitCode::data, "{}: more than {} tokens around a text", f.where(), kMaxAround);
      if (type == "ByteLevel") {  // changes only offsets
        for (const char* key : {"add_prefix_space", "trim_offsets", "use_regex"}) f.pass_over(key);
      } else if (type == "TemplateProcessing") {
        read_template(f);
      } else if (type == "BertProcessing" || type == "RobertaProcessing") {
        for (const char* key : {"add_prefix_space", "trim_offsets"}) f.pass_over(key);
        for (const char* key : {"cls", "sep"}) {
          const Json& pair = f.list(key);
          if (pair.size() != 2) fail(ExitCode::data, "{}: not a token and its id", f.where(key));
          const int32_t id = special_id(pair[1], f.where(key));
          if (key == std::string_view("cls"))
            t_->before.insert(t_->before.begin(), id);
          else
            t_->after.push_back(id);
        }
      } else {
        not_supported(f.where(), type,
                      "ByteLevel, TemplateProcessing, BertProcessing, RobertaProcessing and Sequence");
      }
      f.done();
    });
  }

  void read_template(JsonFields& f) {
    f.pass_over("pair");  // ltrain encodes single texts
    const Json& specials = f.get("special_tokens");
    const Json& single = f.list("single");
    std::vector<int32_t> parts[2];
    int texts = 0;
    if (single.size() > kMaxAround)
      fail(ExitCode::data, "{}: more than {} parts", f.where("single"), kMaxAround);
    for (size_t i = 0; i < single.size(); ++i) {
      JsonFields item(single[i], fmt::format("{}.single[{}]", f.where(), i));
      if (const Json* sequence = item.find("Sequence")) {
        JsonFields s(*sequence, item.where("Sequence"));
        s.pass_over("type_id");
        if (s.text("id") != "A") fail(ExitCode::data, "{}: not \"A\"", s.where("id"));
        s.done();
        ++texts;
      } else {
        JsonFields s(item.get("SpecialToken"), item.where("SpecialToken"));
        s.pass_over("type_id");
        const std::string id = s.text("id");
        s.done();
        JsonFields all(specials, f.where("special_tokens"));
        JsonFields token(all.get(id), all.where(printable(id, 60)));
        for (const char* key : {"id", "tokens"}) token.pass_over(key);
        if (token.list("ids").size() > kMaxAround)
          fail(ExitCode::data, "{}: more than {} ids", token.where("ids"), kMaxAround);
        for (const Json& one : token.list("ids"))
          parts[texts ? 1 : 0].push_back(special_id(one, token.where("ids")));
        token.done();
      }
      item.done();
    }
    if (texts != 1)
      fail(ExitCode::data, "{}: the text stands {} times in it, not once", f.where("single"), texts);
    t_->before.insert(t_->before.begin(), parts[0].begin(), parts[0].end());
    t_->after.insert(t_->after.end(), parts[1].begin(), parts[1].end());
  }

  /// Fills `shown` with the text of each id. `kind`: the first step; `replaced` and `by`: those of Replace.
  void show_tokens(const std::string& kind, const MetaspaceSplit& metaspace, const std::string& replaced,
                   const std::string& by, bool byte_fallback) {
    t_->shown = t_->contents;
    std::string bytes;
    for (size_t id = 0; id < t_->shown.size(); ++id) {
      std::string& s = t_->shown[id];
      if (kind == "ByteLevel") {
        if (bytes_of_token(s, bytes)) s = bytes;
      } else if (kind == "Metaspace") {
        const std::string written = s;
        s = replace_all(written, metaspace.replacement, " ");
        if (metaspace.prepend != PrependScheme::never && s != written)
          t_->shown_first.emplace_back(static_cast<int32_t>(id),
                                       replace_all(written, metaspace.replacement, ""));
      } else {
        if (!replaced.empty()) s = replace_all(s, replaced, by);
        unsigned value = 0;
        if (byte_fallback && s.size() == 6 && s.starts_with("<0x") && s[5] == '>' &&
            std::sscanf(s.c_str() + 3, "%2X", &value) == 1)
          s = std::string(1, static_cast<char>(value));
      }
    }
  }

  /// Reads the steps by which tokens become text.
  void read_decoder(const Json* component, const std::string& where) {
    std::vector<std::string> types;  // types of the steps
    std::string replaced, by;
    bool byte_fallback = false, fused = false;
    MetaspaceSplit metaspace;
    each_component(component, where, "decoders", [&](const std::string& type, JsonFields& f) {
      if (type == "ByteLevel") {
        for (const char* key : {"add_prefix_space", "trim_offsets", "use_regex"}) f.pass_over(key);
      } else if (type == "Replace") {
        const Pattern p = pattern_of(f);
        if (p.regex || byte_fallback || fused || !replaced.empty())
          fail(ExitCode::data, "{}: supported are one String, and before ByteFallback and Fuse", f.where());
        replaced = p.text;
        by = f.text("content");
        if (by.size() > 16)
          fail(ExitCode::data, "{}: {} bytes; at most 16 are supported", f.where("content"), by.size());
      } else if (type == "ByteFallback") {
        byte_fallback = true;
      } else if (type == "Fuse") {
        fused = true;
      } else if (type == "Strip") {
        const bool known = fused && f.text("content") == " " && f.integer("stop", 0, 1 << 20) == 0 &&
                           f.integer("start", 0, 1 << 20) == 1;
        if (!known)
          fail(ExitCode::data, "{}: supported is content \" \", start 1, stop 0 after Fuse", f.where());
        t_->strip_first_space = true;
      } else if (type == "Metaspace") {
        metaspace = read_metaspace(f);
      } else {
        not_supported(f.where(), type,
                      "ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace and Sequence");
      }
      f.done();
      check_steps(types.size(), f.where());
      types.push_back(type);
    });
    for (const char* alone : {"ByteLevel", "Metaspace"})
      if (types.size() > 1 && std::count(types.begin(), types.end(), alone))
        fail(ExitCode::data, "{}: {} together with other decoders is not supported", where, alone);
    t_->joined_by_spaces = types.empty();
    show_tokens(types.empty() ? "" : types[0], metaspace, replaced, by, byte_fallback);
  }

  static std::string replace_all(const std::string& text, const std::string& what, const std::string& by) {
    std::string out;
    size_t from = 0;
    for (size_t at; (at = text.find(what, from)) != std::string::npos; from = at + what.size())
      out.append(text, from, at - from).append(by);
    return out.append(text, from);
  }

  const std::string& name_;
  Json root_;
  std::shared_ptr<HuggingfaceTables> t_ = std::make_shared<HuggingfaceTables>();
  std::unordered_map<std::string, int32_t> ids_;  // ids of the vocabulary and of added tokens
  int64_t model_size_ = 0;
  size_t added_bytes_ = 0;
};

}  // namespace

std::shared_ptr<HuggingfaceTables> read_tokenizer_json(const std::string& text, const std::string& name) {
  return Reader(text, name).read();
}

}  // namespace ltrain::data
