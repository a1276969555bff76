// ltrain data: build and inspect; stats is in data_stats.cpp.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "app/commands.h"
#include "app/data/data_ledger.h"
#include "app/data/data_stages.h"
#include "app/data/data_stats.h"
#include "app/data/inspect_records.h"
#include "app/input_options.h"
#include "app/progress_line.h"
#include "app/tokenizer_option.h"
#include "base/error.h"
#include "runtime/check/tokenized_sources.h"
#include "runtime/data/build.h"
#include "runtime/recipe/schema/where_value.h"
#include "runtime/tokenizer/tokenizer.h"
#include "runtime/tokenizer/tokenizer_kinds.h"

namespace ltrain::app {
namespace {

using namespace ltrain::data;

nlohmann::ordered_json describe(const SourceInfo& s) {
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

struct BuildCommand {
  BuildOptions options;
  TokenizerOption tokenizer;
  bool dry_run = false, json = false, quiet = false;
  bool has_chat = false;
  std::string left_out;  // file for the names of the documents that are left out
  ChatBuild chat;
  TrainOn train_on = TrainOn::assistant;

  void run() {
    if (has_chat) {
      chat.mask = mask_options(train_on);
      options.chat = chat;
      options.records.whole = true;
    } else if (chat.pack > 0 || chat.preference || chat.unpaired || !chat.chat_template.empty() ||
               train_on != TrainOn::assistant) {
      fail(ExitCode::usage,
           "--pack, --preference, --unpaired, --chat-template and --train-on are for conversations: add "
           "--chat");
    }
    options.tokenizer = tokenizer.kind();
    options.path = tokenizer.path();
    options.tokens = tokenizer.tokens;
    std::ofstream names;
    if (!left_out.empty()) open_names(names);
    BuildResult result;
    double seconds = 0;
    if (dry_run) {
      make_build_tokenizer(options);
      result = plan_build(options);
    } else {
      ProgressLine line(quiet);
      options.progress = [&](const BuildProgress& p) {
        line.update(p.input_bytes, p.total_bytes, fmt::format(", {} tokens", p.tokens));
      };
      result = build_dataset(options);
      seconds = line.elapsed();
    }
    if (names.is_open() && !names.flush())
      fail(ExitCode::storage, "--left-out {}: cannot be written", printable(left_out));
    json ? print_json(result, seconds) : print(result, seconds);
  }

  /// Opens the file that names the documents left out.
  void open_names(std::ofstream& names) {
    if (!options.choice.on())
      fail(ExitCode::usage, "--left-out {}: expected --deduplicate or --decontaminate with it", left_out);
    if (dry_run) return;
    names.open(left_out);
    if (!names) fail(ExitCode::storage, "--left-out {}: cannot be written", printable(left_out));
    options.left_out = [&names](const std::string& document, DocumentState state) {
      const char* why = state == DocumentState::duplicate ? "duplicate" : "contaminated";
      const nlohmann::ordered_json line{{"document", document}, {"reason", why}};
      names << line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
    };
  }

  void print(const BuildResult& r, double seconds) const {
    std::printf("%zu files, %.1f MB\n", r.inputs.files.size(), r.inputs.bytes * 1e-6);
    print_input_notes(r.inputs, r.bad_records);
    if (dry_run) {
      for (const TextFile& f : r.inputs.files)
        std::printf("would read %s%s\n", f.path.c_str(),
                    f.object                     ? ""
                    : f.format                   ? fmt::format(" as records of {}", f.format->name).c_str()
                    : f.form == RecordForm::none ? ""
                                                 : " as JSON records");
      for (const std::string& p : output_prefixes(options))
        std::printf("would write %s.{bin,idx,json}\n", p.c_str());
      return;
    }
    if (r.filtered.read)
      std::printf("%lld of %lld records kept by --where\n", static_cast<long long>(r.filtered.kept),
                  static_cast<long long>(r.filtered.read));
    if (options.choice.deduplicate)
      std::printf("%lld documents left out as copies of earlier ones\n",
                  static_cast<long long>(r.filtered.duplicates));
    if (!options.choice.against.empty())
      std::printf("%lld documents left out that share %lld words with the evaluation data\n",
                  static_cast<long long>(r.filtered.contaminated),
                  static_cast<long long>(options.choice.ngram));
    if (r.empty_documents)
      std::printf("%lld empty documents left out\n", static_cast<long long>(r.empty_documents));
    if (has_chat) {
      const PackCounts& c = r.conversations;
      std::printf("%lld %s, %lld tokens count in the loss", static_cast<long long>(c.documents),
                  chat.preference ? "preference pairs"
                  : chat.unpaired ? "labelled examples"
                                  : "conversations",
                  static_cast<long long>(c.trained));
      if (c.samples > 0)
        std::printf(", packed into %lld samples with %.1f%% padding", static_cast<long long>(c.samples),
                    100.0 * static_cast<double>(c.padding) / static_cast<double>(c.samples * chat.pack));
      std::printf("\n");
      if (c.cut > 0)
        std::printf("%lld mismatched texts, which estimate the divergence, are cut to fit into samples\n",
                    static_cast<long long>(c.cut));
    }
    for (const SourceInfo& s : r.outputs)
      std::printf("%s: %lld tokens, %lld documents, %s, largest token %lld of vocabulary %lld (%s)\n",
                  s.prefix.c_str(), static_cast<long long>(s.tokens), static_cast<long long>(s.documents),
                  token_type_name(s.type).c_str(), static_cast<long long>(s.max_token),
                  static_cast<long long>(s.vocab_size), s.tokenizer.c_str());
    std::printf("%.2f s, %.1f MB/s\n", seconds, seconds > 0 ? r.inputs.bytes * 1e-6 / seconds : 0);
  }

  void print_json(const BuildResult& r, double seconds) const {
    nlohmann::ordered_json j;
    j["schema"] = 1;
    j["dry_run"] = dry_run;
    j["files"] = r.inputs.files.size();
    j["input_bytes"] = r.inputs.bytes;
    j["binary_files"] = r.inputs.binary.count;
    j["filtered_files"] = r.inputs.filtered.count;
    j["empty_files"] = r.inputs.empty.count;
    j["left_out"] = r.inputs.left_out();
    j["json_files_read_as_text"] = r.inputs.json_as_text.count;
    j["empty_documents"] = r.empty_documents;
    if (options.choice.on())
      j["documents_left_out"] = {{"duplicates", r.filtered.duplicates},
                                 {"contaminated", r.filtered.contaminated}};
    if (r.filtered.read) j["records"] = {{"read", r.filtered.read}, {"kept", r.filtered.kept}};
    j["bad_records"] = {{"skipped", r.bad_records.skipped},
                        {"replaced", r.bad_records.replaced},
                        {"first", r.bad_records.first}};
    j["outputs"] = nlohmann::json::array();
    if (dry_run)
      for (const std::string& p : output_prefixes(options)) j["outputs"].push_back({{"prefix", p}});
    for (const SourceInfo& s : r.outputs) j["outputs"].push_back(describe(s));
    if (!dry_run) j["seconds"] = seconds;
    std::printf("%s\n", j.dump(2, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  }
};

struct InspectCommand {
  std::string prefix;
  TokenizerOption tokenizer{"", "", {}};
  int64_t document = -1, show = 200;
  bool json = false, verify = false, all = false;
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
    if (objects::is_url(prefix)) return inspect_records({prefix, records, 3, show, all, json});
    const std::string index = dataset_prefix(prefix) + ".idx";
    if (std::filesystem::exists(prefix) && !file_exists(index))
      return inspect_records({prefix, records, 3, show, all, json});
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
      if (t) text = json || counted.empty() ? t->decode(ids) : marked_text(*t, ids, counted);
    }
    if (!json && info.loss_mask)
      std::printf("loss mask: %lld of the %zu tokens shown of document %lld count\n",
                  static_cast<long long>(std::count(counted.begin(), counted.end(), 1)), ids.size(),
                  static_cast<long long>(shown));
    json ? print_json(info, max_token, lengths, shown, ids, t ? &text : nullptr, cut)
         : print(info, max_token, lengths, shown, ids, t ? &text : nullptr, cut);
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
    std::printf("  lengths    %lld to %lld tokens a document\n", n(lengths.shortest), n(lengths.longest));
    int64_t most = 1;
    for (int64_t b : lengths.buckets) most = std::max(most, b);
    for (size_t i = 0; i < lengths.buckets.size(); ++i) {
      if (lengths.buckets[i] == 0) continue;
      const int64_t low = i == 0 ? 0 : int64_t{1} << (i - 1), high = i == 0 ? 0 : (int64_t{1} << i) - 1;
      const std::string bar((lengths.buckets[i] * 30 + most - 1) / most, '#');
      std::printf("    %10lld - %-10lld %10lld %s\n", n(low), n(high), n(lengths.buckets[i]), bar.c_str());
    }
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
    nlohmann::ordered_json j = describe(s);
    j["schema"] = 1;
    j["max_token"] = max_token;
    j["sidecar"] = s.has_sidecar;
    j["verified"] = verify;
    j["shortest"] = lengths.shortest;
    j["longest"] = lengths.longest;
    auto histogram = nlohmann::ordered_json::array();
    for (size_t i = 0; i < lengths.buckets.size(); ++i)
      if (lengths.buckets[i] > 0)
        histogram.push_back(
            {{"from", i == 0 ? 0 : int64_t{1} << (i - 1)}, {"documents", lengths.buckets[i]}});
    j["lengths"] = histogram;
    j["document"] = {{"index", shown}, {"tokens", ids}, {"beginning_only", cut}};
    if (text) j["document"]["text"] = *text;
    std::printf("%s\n", j.dump(2, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  }
};

/// --chat, --chat-template, --train-on, --preference, --unpaired, --pack.
void add_chat_options(CLI::App& s, BuildCommand& c) {
  s.add_flag(
      "--chat", c.has_chat,
      "Inputs are conversations (messages, ShareGPT, Alpaca, prompt and completion): makes PREFIX.mask, with "
      "the tokens that count in the loss");
  s.add_option(
      "--chat-template", c.chat.chat_template,
      "Chat template: a file, or the name of a built-in one; default: that of the tokenizer's folder");
  s.add_option_function<std::string>(
       "--train-on", [&c](const std::string& text) { c.train_on = *enum_value<TrainOn>(text); },
       "Messages that count in the loss: assistant (default), last_turn of the assistant, or all")
      ->check(CLI::IsMember({"assistant", "last_turn", "all"}));
  s.add_flag("--preference", c.chat.preference,
             "Inputs are preference pairs (prompt, chosen, rejected) for task: dpo and reward; needs --pack");
  s.add_flag("--unpaired", c.chat.unpaired,
             "Inputs are labelled texts (prompt, completion, label) for task: kto; needs --pack");
  s.add_option("--pack", c.chat.pack,
               "Pack whole conversations into samples of so many tokens, the run's data.seq_length")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 31));
}

/// Reads --where, which is written as in a recipe.
RecordFilter read_where_option(const std::string& text) {
  RecordFilter filter;
  if (const recipe::ValueError wrong = recipe::read_where(recipe::parse_yaml(text, "--where"), filter);
      !wrong.empty())
    fail(ExitCode::usage, "--where {}: {}", printable(text, 200), wrong.text);
  return filter;
}

/// --deduplicate, --decontaminate, --decontaminate-ngram, --left-out.
void add_choice_options(CLI::App& s, BuildCommand& c) {
  s.add_flag("--deduplicate", c.options.choice.deduplicate,
             "Leave out documents with the text of an earlier one; reads the inputs twice");
  s.add_option("--decontaminate", c.options.choice.against,
               "Leave out documents that share an n-gram of words with the texts in this file or folder of "
               "evaluation data; may be given several times");
  s.add_option("--decontaminate-ngram", c.options.choice.ngram, "Words of an n-gram")
      ->check(CLI::Range(int64_t{1}, kMostNgramWords))
      ->capture_default_str();
  s.add_option("--left-out", c.left_out, "JSONL file for the names of the documents that these leave out");
}

void add_build(CLI::App& data) {
  auto c = std::make_shared<BuildCommand>();
  CLI::App* s = data.add_subcommand(
      "build",
      "text files, folders or JSON records to token files\n"
      "Example: ltrain data build --input corpus/ --output data/corpus --tokenizer byte --split 95,5");
  add_input_options(*s, c->options.inputs, c->options.include, c->options.exclude, c->options.records);
  s->add_option_function<std::string>(
      "--where", [c](const std::string& text) { c->options.records.where = read_where_option(text); },
      "Records to keep, by their fields, as where in a recipe: '{language: [en, de], score: {min: 0.5}}'");
  add_choice_options(*s, *c);
  s->add_option("--output", c->options.output, "PREFIX of PREFIX.bin, PREFIX.idx and PREFIX.json")
      ->required();
  c->tokenizer.add_to(*s);
  s->add_option("--workers", c->options.workers, "threads; 0: one per core")->capture_default_str();
  s->add_flag("--append-eot,!--no-append-eot", c->options.append_eot,
              "end each document with the end-of-text token (default)");
  s->add_flag("--prepend-bos", c->options.prepend_bos, "begin each document with the begin-of-text token");
  add_split_special_tokens(*s, c->options.split_special_tokens);
  add_chat_options(*s, *c);
  s->add_option("--split", c->options.split,
                "shares of PREFIX-train, PREFIX-val and PREFIX-test: 95,5 or 90,5,5")
      ->delimiter(',');
  s->add_flag("--force", c->options.force, "replace the output if it exists");
  s->add_flag("--dry-run", c->dry_run, "say what would be read and written, write nothing");
  s->add_flag("--json", c->json, "the result as JSON");
  s->add_flag("-q,--quiet", c->quiet, "no progress line");
  s->callback([c] { c->run(); });
}

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
  s->add_option("--tokenizer", c->tokenizer.name,
                "byte, gpt2, or a tokenizer.json or its folder; default: the one of the build");
  s->add_option("--ranks", c->tokenizer.ranks, "gpt2: merge ranks, a tiktoken file; else $LTRAIN_GPT2_RANKS");
  s->add_flag("--verify", c->verify,
              "read all tokens; compare with the hash and the largest token of the build");
  s->add_flag("--json", c->json, "as JSON");
  s->callback([c] { c->run(); });
}

}  // namespace

void add_data(CLI::App& app) {
  CLI::App* data = app.add_subcommand("data", "build token files from text, or look into them");
  data->require_subcommand(1);
  add_build(*data);
  add_inspect(*data);
  add_stats(*data);
  add_ledger(*data);
  add_stages(*data);
}

}  // namespace ltrain::app
