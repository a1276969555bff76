// ltrain data build; the other commands have files of their own.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>

#include "app/commands.h"
#include "app/data/data_inspect.h"
#include "app/data/data_ledger.h"
#include "app/data/data_prepare.h"
#include "app/data/data_stages.h"
#include "app/data/data_stats.h"
#include "app/input_options.h"
#include "app/progress_line.h"
#include "app/tokenizer_option.h"
#include "base/error.h"
#include "base/json/json.h"
#include "runtime/check/tokenized_sources.h"
#include "runtime/data/build.h"
#include "runtime/recipe/schema/fields_value.h"
#include "runtime/recipe/schema/where_value.h"
#include "runtime/tokenizer/tokenizer.h"
#include "runtime/tokenizer/tokenizer_kinds.h"

namespace ltrain::app {
namespace {

using namespace ltrain::data;

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
               !chat.rows.fields.empty() || train_on != TrainOn::assistant) {
      fail(ExitCode::usage,
           "--pack, --preference, --unpaired, --chat-template, --fields and --train-on are for "
           "conversations: add "
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
    for (const SourceInfo& s : r.outputs) j["outputs"].push_back(source_json(s));
    if (!dry_run) j["seconds"] = seconds;
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

/// Reads --fields, which is written as in a recipe.
std::map<std::string, std::string> read_fields_option(const std::string& text) {
  std::map<std::string, std::string> fields;
  if (const recipe::ValueError wrong = recipe::read_fields(recipe::parse_yaml(text, "--fields"), fields);
      !wrong.empty())
    fail(ExitCode::usage, "--fields {}: {}", printable(text, 200), wrong.text);
  return fields;
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
  s->add_option_function<std::string>(
      "--fields", [c](const std::string& text) { c->chat.rows.fields = read_fields_option(text); },
      "With --chat: names in the file of fields that differ, as fields in a recipe: '{messages: dialog}'");
  s->add_option("--split", c->options.split,
                "shares of PREFIX-train, PREFIX-val and PREFIX-test: 95,5 or 90,5,5")
      ->delimiter(',');
  s->add_flag("--force", c->options.force, "replace the output if it exists");
  s->add_flag("--dry-run", c->dry_run, "say what would be read and written, write nothing");
  s->add_flag("--json", c->json, "the result as JSON");
  s->add_flag("-q,--quiet", c->quiet, "no progress line");
  s->callback([c] { c->run(); });
}

}  // namespace

void add_data(CLI::App& app) {
  CLI::App* data = app.add_subcommand("data", "build token files from text, or look into them");
  data->require_subcommand(1);
  add_build(*data);
  add_prepare(*data);
  add_inspect(*data);
  add_stats(*data);
  add_ledger(*data);
  add_stages(*data);
}

}  // namespace ltrain::app
