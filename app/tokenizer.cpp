// ltrain tokenizer import: a folder with a tokenizer.json from other files.
#include <cstdio>
#include <memory>

#include "app/commands.h"
#include "runtime/checkpoint/files.h"
#include "runtime/tokenizer/bpe_merges_file.h"
#include "runtime/tokenizer/import_ranks.h"
#include "runtime/weights/new_folder.h"

namespace ltrain::app {

void add_tokenizer(CLI::App& app) {
  struct Options {
    std::string ranks, folder;
    data::RankImport how;
  };
  CLI::App* tokenizer = app.add_subcommand("tokenizer", "tokenizer.json from other files");
  tokenizer->require_subcommand(1);
  CLI::App* command = tokenizer->add_subcommand("import", "a tiktoken rank file as a tokenizer.json");
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
    folder.need(static_cast<int64_t>(t.tokenizer_json.size() + t.tokenizer_config_json.size()));
    write_text_file(folder.work() + "/tokenizer.json", t.tokenizer_json + "\n");
    write_text_file(folder.work() + "/tokenizer_config.json", t.tokenizer_config_json + "\n");
    folder.commit();
    std::printf("%s: tokenizer.json of %lld ids, %zu of them ranks of %s\n", o->folder.c_str(),
                static_cast<long long>(t.ids), tokens.size(), o->ranks.c_str());
  });
}

}  // namespace ltrain::app
