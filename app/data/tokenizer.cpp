// ltrain tokenizer import, ltrain tokenizer train: write a folder with a tokenizer.json.
#include <cstdio>
#include <memory>
#include <optional>

#include "app/commands.h"
#include "app/input_options.h"
#include "app/progress_line.h"
#include "runtime/checkpoint/files.h"
#include "runtime/data/train_tokenizer.h"
#include "runtime/tokenizer/bpe_merges_file.h"
#include "runtime/tokenizer/formats/import_ranks.h"
#include "runtime/weights/new_folder.h"

namespace ltrain::app {
namespace {

void write_folder(NewFolder& folder, const std::string& tokenizer, const std::string& config) {
  folder.need(static_cast<int64_t>(tokenizer.size() + config.size()));
  write_text_file(folder.work() + "/tokenizer.json", tokenizer + "\n");
  write_text_file(folder.work() + "/tokenizer_config.json", config + "\n");
  folder.commit();
}

void add_tokenizer_import(CLI::App& tokenizer) {
  struct Options {
    std::string ranks, folder;
    data::RankImport how;
  };
  CLI::App* command = tokenizer.add_subcommand("import", "a tiktoken rank file as a tokenizer.json");
  auto o = std::make_shared<Options>();
  command->add_option("ranks", o->ranks, "tiktoken file: lines of `base64 rank`")->required();
  command->add_option("folder", o->folder, "The folder to make")->required();
  command
      ->add_option("--pattern", o->how.pattern,
                   "How text is divided: gpt2, cl100k, llama3, qwen2 or o200k, each with its special tokens, "
                   "or a regular expression")
      ->required();
  command->add_option("--special-tokens", o->how.special_tokens,
                      "Special tokens, with ids from the last rank on; default: those of the pattern's name");
  command->add_option("--bos-token", o->how.bos_token,
                      "Special token that begins a document; default: that of the pattern's name");
  command->add_option("--eos-token", o->how.eos_token,
                      "Special token that ends a document; default: that of the pattern's name");
  command->footer("Example: ltrain tokenizer import gpt2.tiktoken my-tokenizer --pattern gpt2");
  command->callback([o] {
    NewFolder folder(o->folder);
    const auto tokens = data::read_rank_file(o->ranks);
    const data::ImportedTokenizer t = data::import_ranks(tokens, o->how, o->ranks);
    write_folder(folder, t.tokenizer_json, t.tokenizer_config_json);
    std::printf("%s: tokenizer.json of %lld ids, %zu of them ranks of %s\n", o->folder.c_str(),
                static_cast<long long>(t.ids), tokens.size(), o->ranks.c_str());
  });
}

void add_tokenizer_train(CLI::App& tokenizer) {
  struct Options {
    data::TrainTokenizerOptions train;
    std::string folder;
    bool quiet = false;

    void run() {
      NewFolder made(folder);
      ProgressLine line(quiet);
      std::optional<ProgressLine> tokens;
      train.read = [&](int64_t done, int64_t all) { line.update(done, all, " of text"); };
      train.made = [&](int64_t done, int64_t all) {
        if (!tokens) {
          line.clear();
          tokens.emplace(quiet, "tokens", 1);
        }
        tokens->update(done, all);
      };
      const data::TrainedTokenizer t = data::train_tokenizer(train);
      line.clear();
      if (tokens) tokens->clear();
      write_folder(made, t.tokenizer_json, t.tokenizer_config_json);
      print_input_notes(t.inputs, t.bad_records);
      if (t.left_out)
        std::printf(
            "%lld different pieces that were there least often were left out: the table of pieces is full\n",
            static_cast<long long>(t.left_out));
      if (t.ids < train.vocab_size)
        std::printf("%lld ids, not %lld: no other pair of tokens is there %lld times\n",
                    static_cast<long long>(t.ids), static_cast<long long>(train.vocab_size),
                    static_cast<long long>(train.min_frequency));
      std::printf("%s: tokenizer.json of %lld ids, %lld merges, of %.1f MB of text in %zu files; %.2f s\n",
                  folder.c_str(), static_cast<long long>(t.ids), static_cast<long long>(t.merges),
                  static_cast<double>(t.inputs.bytes) * 1e-6, t.inputs.files.size(), line.elapsed());
    }
  };
  CLI::App* command =
      tokenizer.add_subcommand("train", "byte-level BPE of one's own text, as a tokenizer.json");
  auto o = std::make_shared<Options>();
  data::TrainTokenizerOptions& t = o->train;
  command->add_option("folder", o->folder, "The folder to make")->required();
  add_input_options(*command, t.inputs, t.include, t.exclude, t.records);
  command->add_option("--vocab-size", t.vocab_size, "ids, special tokens and 256 bytes among them")
      ->capture_default_str();
  command
      ->add_option("--pattern", t.pattern,
                   "How text is divided: gpt2, cl100k, llama3, qwen2 or o200k, or a regular expression")
      ->capture_default_str();
  command->add_option("--special-tokens", t.special_tokens, "Special tokens, with the ids from 0 on")
      ->capture_default_str();
  command->add_option("--bos-token", t.bos_token, "Special token that begins a document; default: none");
  command->add_option("--eos-token", t.eos_token,
                      "Special token that ends a document; default: the first one");
  command->add_option("--min-frequency", t.min_frequency, "How often a pair must be there to become a token")
      ->capture_default_str();
  command->add_option("--workers", t.workers, "threads; 0: one per core")->capture_default_str();
  command->add_flag("-q,--quiet", o->quiet, "no progress line");
  command->footer("Example: ltrain tokenizer train my-vocabulary --input corpus/ --vocab-size 32768");
  command->callback([o] { o->run(); });
}

}  // namespace

void add_tokenizer(CLI::App& app) {
  CLI::App* tokenizer = app.add_subcommand("tokenizer", "tokenizer.json from text or from other files");
  tokenizer->require_subcommand(1);
  add_tokenizer_import(*tokenizer);
  add_tokenizer_train(*tokenizer);
}

}  // namespace ltrain::app
