#include "app/data/data_inspect.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "app/data/inspect_records.h"
#include "app/data/shown_lengths.h"
#include "app/input_options.h"
#include "app/tokenizer_option.h"
#include "base/error.h"
#include "base/printable.h"
#include "runtime/tokenizer/tokenizer.h"
#include "runtime/tokenizer/tokenizer_kinds.h"

namespace ltrain::app {

using namespace ltrain::data;

nlohmann::ordered_json source_json(const SourceInfo& s) {
  nlohmann::ordered_json j;
  j["prefix"] = s.prefix;
  j["type"] = token_type_name(s.type);
  j["documents"] = s.documents;
  j["sequences"] = s.sequences;
  j["tokens"] = s.tokens;
  if (!s.has_sidecar) return j;
  j["max_token"] = s.max_token;
  j["tokenizer"] = s.tokenizer;
  j["tokenizer_hash"] = s.tokenizer_hash;
  j["vocab_size"] = s.vocab_size;
  j["eot"] = s.eot;
  j["bos"] = s.bos;
  j["split_special_tokens"] = s.split_special_tokens;
  return j;
}

namespace {

struct InspectCommand {
  std::string prefix;
  TokenizerOption tokenizer{"", "", {}};
  int64_t document = -1, show = 200;
  bool json = false, verify = false, all = false, tokens = false;
  RecordOptions records;

  std::unique_ptr<data::Tokenizer> tokenizer_for(const SourceInfo& info) const {
    const bool asked = !tokenizer.name.empty();
    TokenizerOption option = tokenizer;
    if (!asked) option.name = info.tokenizer;
    const std::string name = option.name;
    // If the tokenizer was not requested and is not available, show only ids.
    const data::TokenizerKind* kind = data::find_tokenizer_kind(name);
    if (!asked && (!kind || (kind->takes_file() && option.path().empty()))) return nullptr;
    auto t = option.make();
    if (!asked && info.tokenizer_hash != t->hash()) return nullptr;
    if (info.has_sidecar && info.tokenizer_hash != t->hash())
      fail(ExitCode::data,
           "{}: built with tokenizer {} of hash {}, but {} here has hash {}: the text would be wrong. Give "
           "the --tokenizer and --ranks of the build",
           info.prefix, info.tokenizer, info.tokenizer_hash, name, t->hash());
    return t;
  }

  /// Text in which the tokens that count in the loss are green on a terminal, else between brackets.
  static std::string marked_text(const data::Tokenizer& t, const std::vector<int32_t>& ids,
                                 const std::vector<uint8_t>& counted) {
    const bool colour = ::isatty(STDOUT_FILENO) != 0;
    std::string out;
    for (size_t i = 0, end = 0; i < ids.size(); i = end) {
      while (end < ids.size() && counted[end] == counted[i]) ++end;
      std::string part;
      t.decode(ids.data() + i, static_cast<int64_t>(end - i), part, i == 0);
      out += !counted[i] ? part : colour ? "\033[32m" + part + "\033[0m" : "⟦" + part + "⟧";
    }
    return out;
  }

  void run() {
    const std::string index = dataset_prefix(prefix) + ".idx";
    if (objects::is_url(prefix) || (std::filesystem::exists(prefix) && !file_exists(index)))
      return of_records();
    if (all || records.field || records.format != InputFormat::automatic || records.record_format)
      fail(ExitCode::usage, "{}: is a PREFIX of token files, which have no --all, --field and --input-format",
           printable(prefix));
    IndexedDataset data(prefix);
    const SourceInfo& info = data.info();
    TokenScan scan;
    if (verify || !info.has_sidecar) scan = data.scan();
    if (info.has_sidecar && verify && (scan.bin_hash != info.bin_hash || scan.max_token != info.max_token))
      fail(ExitCode::data,
           "{}.bin: has hash {} and largest token {}, but {}.json says {} and {}: damaged, or of another "
           "build",
           info.prefix, scan.bin_hash, scan.max_token, info.prefix, info.bin_hash, info.max_token);
    const int64_t max_token = info.has_sidecar ? info.max_token : scan.max_token;
    const LengthStats lengths = data.document_lengths();

    const int64_t shown = document >= 0 ? document : 0;
    std::vector<int32_t> ids;
    std::vector<uint8_t> counted;
    std::string text;
    bool cut = false;
    const auto t = tokenizer_for(info);
    if (info.documents > 0 || document >= 0) {
      const IndexedDataset::Range r = data.document(shown);
      cut = document < 0 && r.count > show;
      ids.resize(cut ? show : r.count);
      data.read(r.first, static_cast<int64_t>(ids.size()), int64_t{1} << 31, ids.data());
      counted.resize(info.loss_mask ? ids.size() : 0);
      if (info.loss_mask) data.read_mask(r.first, static_cast<int64_t>(ids.size()), counted.data());
      if (info.unpaired && !counted.empty()) counted[0] = 0;  // the label of an example
      if (t)
        text = json || (counted.empty() && !tokens) ? t->decode(ids)
               : tokens                             ? tokens_with_text(*t, ids)
                                                    : marked_text(*t, ids, counted);
    }
    if (!json && info.loss_mask)
      std::printf("loss mask: %lld of the %zu tokens shown of document %lld count\n",
                  static_cast<long long>(std::count(counted.begin(), counted.end(), 1)), ids.size(),
                  static_cast<long long>(shown));
    json ? print_json(info, max_token, lengths, shown, ids, t ? &text : nullptr, cut)
         : print(info, max_token, lengths, shown, ids, t ? &text : nullptr, cut);
  }

  void of_records() const {
    if (document >= 0 || verify)
      fail(ExitCode::usage, "{}: is not a PREFIX of token files, and {} is for them", printable(prefix),
           verify ? "--verify" : "--document");
    std::unique_ptr<data::Tokenizer> t = tokenizer.name.empty() ? nullptr : tokenizer.make();
    if (tokens && !t)
      fail(ExitCode::usage, "--tokens: files of text and records have no tokenizer; add --tokenizer");
    inspect_records({.path = prefix,
                     .records = records,
                     .tokenizer = t.get(),
                     .all = all,
                     .tokens = tokens,
                     .json = json});
  }

  void print(const SourceInfo& s, int64_t max_token, const LengthStats& lengths, int64_t shown,
             const std::vector<int32_t>& ids, const std::string* text, bool cut) const {
    auto n = [](int64_t v) { return static_cast<long long>(v); };
    std::printf("%s\n  tokens     %lld (%s, %.1f MB)\n  documents  %lld (%lld sequences)\n", s.prefix.c_str(),
                n(s.tokens), token_type_name(s.type).c_str(), s.tokens * token_bytes(s.type) * 1e-6,
                n(s.documents), n(s.sequences));
    std::printf("  max token  %lld\n", n(max_token));
    if (s.has_sidecar)
      std::printf("  tokenizer  %s, vocabulary %lld, end of text %lld, hash %s\n", s.tokenizer.c_str(),
                  n(s.vocab_size), n(s.eot), s.tokenizer_hash.c_str());
    if (s.split_special_tokens) std::printf("  special tokens in text were read as text\n");
    if (!s.has_sidecar) std::printf("  tokenizer  unknown (no %s.json)\n", s.prefix.c_str());
    if (verify)
      std::printf("  verified   %s\n", s.has_sidecar ? "index, hash of .bin, max token" : "index, token ids");
    print_lengths(lengths, "tokens a document");
    std::printf("document %lld, %zu tokens%s:\n", n(shown), ids.size(), cut ? " of its beginning" : "");
    if (text) {
      std::fwrite(text->data(), 1, text->size(), stdout);
      std::printf("\n");
      return;
    }
    for (size_t i = 0; i < ids.size(); ++i) std::printf("%s%d", i ? " " : "", ids[i]);
    const data::TokenizerKind* kind = data::find_tokenizer_kind(s.tokenizer);
    const std::string option = !kind || !kind->takes_file() ? ""
                               : kind->folder               ? " FOLDER"
                                                            : " " + kind->name + " --ranks FILE";
    std::printf("\n(ids; for text give --tokenizer%s)\n", option.c_str());
  }

  void print_json(const SourceInfo& s, int64_t max_token, const LengthStats& lengths, int64_t shown,
                  const std::vector<int32_t>& ids, const std::string* text, bool cut) const {
    nlohmann::ordered_json j = source_json(s);
    j["schema"] = 1;
    j["max_token"] = max_token;
    j["sidecar"] = s.has_sidecar;
    j["verified"] = verify;
    j["shortest"] = lengths.shortest;
    j["longest"] = lengths.longest;
    j["lengths"] = histogram_json(lengths, "documents");
    j["document"] = {{"index", shown}, {"tokens", ids}, {"beginning_only", cut}};
    if (text) j["document"]["text"] = *text;
    std::printf("%s\n", j.dump(2, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  }
};

}  // namespace

void add_inspect(CLI::App& data) {
  auto c = std::make_shared<InspectCommand>();
  CLI::App* s = data.add_subcommand("inspect",
                                    "what is in token files, or in files of text and records\n"
                                    "Example: ltrain data inspect data/corpus-train");
  s->add_option("path", c->prefix,
                "PREFIX of PREFIX.bin and PREFIX.idx, or a file, a folder or a URL of records")
      ->required();
  add_record_options(*s, c->records);
  s->add_flag("--all", c->all, "Records: read all of them, not only the first 10,000");
  s->add_option("--document", c->document, "show this whole document (counted from 0)")
      ->check(CLI::NonNegativeNumber);
  s->add_option(
      "--tokenizer", c->tokenizer.name,
      "byte, gpt2, or a tokenizer.json or its folder; default: the one of the build. Records: lengths are "
      "in its tokens");
  s->add_option("--ranks", c->tokenizer.ranks, "gpt2: merge ranks, a tiktoken file; else $LTRAIN_GPT2_RANKS");
  s->add_flag("--tokens", c->tokens, "show each token of the document or of the first records with its text");
  s->add_flag("--verify", c->verify,
              "read all tokens; compare with the hash and the largest token of the build");
  s->add_flag("--json", c->json, "as JSON");
  s->callback([c] { c->run(); });
}

}  // namespace ltrain::app
