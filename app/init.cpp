// ltrain init: writes a recipe for text or token files, and prints the next commands.
#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "app/commands.h"
#include "app/shell_word.h"
#include "app/tokenizer_option.h"
#include "base/error.h"
#include "base/printable.h"
#include "runtime/data/build.h"
#include "runtime/files/write_file.h"
#include "runtime/recipe/recipe.h"
#include "runtime/telemetry/metrics.h"
#include "runtime/tokenizer/tokenizer_kinds.h"

namespace ltrain::app {
namespace {

/// An initial model size, selected by the number of tokens in the data.
struct Size {
  double most_tokens;
  int64_t width, layers, heads, seq_length;
  double lr;
};
constexpr std::array<Size, 4> kSizes{{{5e6, 128, 4, 4, 128, 3e-3},
                                      {1e8, 256, 6, 8, 256, 1e-3},
                                      {1e9, 512, 8, 8, 512, 6e-4},
                                      {1e300, 768, 12, 12, 1024, 6e-4}}};

struct InitCommand {
  std::string data, output;
  TokenizerOption tokenizer;

  // Properties of the data from look_at_tokens() or look_at_text().
  bool built = false;  ///< the data are token files
  std::string name, prefix, tokenizer_line, about;
  int64_t vocabulary = 0;
  double tokens = 0;
  bool held_out = false;

  void run() {
    while (data.size() > 1 && data.back() == '/') data.pop_back();
    name_of_data();
    if (output.empty()) output = name + ".yaml";
    if (std::filesystem::exists(output))
      fail(ExitCode::usage, "{}: is there already; remove it, or give another name with --output",
           printable(output));
    built = ltrain::data::file_exists(data + ".idx");
    built ? look_at_tokens() : look_at_text();
    const Size& size =
        *std::find_if(kSizes.begin(), kSizes.end(), [&](const Size& s) { return tokens <= s.most_tokens; });
    const std::string text = recipe(size);
    parse_recipe(text, output, {});  // the written recipe must be valid
    write_file(output, text);
    std::printf("wrote %s, for %s\nnext:\n", output.c_str(), about.c_str());
    if (!built)
      std::printf("  ltrain data build --input %s --output %s --split 95,5%s\n", shell_word(data).c_str(),
                  shell_word(prefix).c_str(), tokenizer_words().c_str());
    else
      std::printf("  ltrain plan %s\n", shell_word(output).c_str());
    std::printf("  ltrain run %s\n", shell_word(output).c_str());
  }

 private:
  /// Sets the name of folder and file from the last part of the path: letters, digits, - and _.
  void name_of_data() {
    const std::filesystem::path path = std::filesystem::absolute(data).lexically_normal();
    std::string stem = std::filesystem::is_directory(path) ? path.filename().string() : path.stem().string();
    for (char& c : stem)
      if (!std::isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '_') c = '-';
    name = stem.empty() || stem[0] == '-' ? "run" : stem;
  }

  /// Reads the properties of token files from their sidecar.
  void look_at_tokens() {
    const std::string part = "-train";
    const bool whole = !data.ends_with(part);
    const ltrain::data::SourceInfo info = ltrain::data::inspect_source(data);
    if (!info.has_sidecar)
      fail(ExitCode::usage,
           "{}: has no sidecar {}.json, which says what tokenizer and how many tokens; build the files with "
           "`ltrain data build`, or write model.vocab_size and data.tokenizer by hand",
           printable(data), printable(data));
    prefix = whole ? data : data.substr(0, data.size() - part.size());
    held_out = !whole && ltrain::data::file_exists(prefix + "-val.idx");
    vocabulary = info.vocab_size;
    tokens = static_cast<double>(info.tokens);
    const auto* kind = ltrain::data::find_tokenizer_kind(info.tokenizer);
    tokenizer_line =
        kind && !kind->folder
            ? fmt::format("{{kind: {}}}", info.tokenizer)
            : fmt::format("{{kind: {}, path: TOKENIZER}}  # the file or folder that they were built with",
                          info.tokenizer);
    about = fmt::format("{} tokens of {}", format_count(tokens), info.tokenizer);
  }

  void look_at_text() {
    ltrain::data::BuildOptions options;
    options.inputs = {data};
    const ltrain::data::InputList inputs = ltrain::data::list_inputs(options.inputs, {}, {});
    if (inputs.files.empty())
      fail(ExitCode::usage, "{}: has no text file, nor is it PREFIX of token files PREFIX.idx and PREFIX.bin",
           printable(data));
    prefix = "runs/" + name + "/data/text";
    held_out = true;
    const auto made = tokenizer.make();
    vocabulary = made->vocab_size();
    const auto* kind = ltrain::data::find_tokenizer_kind(tokenizer.kind());
    tokens = static_cast<double>(inputs.bytes) / static_cast<double>(kind->text_bytes);
    tokenizer_line = tokenizer.is_path()
                         ? fmt::format("{{kind: {}, path: \"{}\"}}", kind->name, tokenizer.path())
                         : fmt::format("{{kind: {}}}", tokenizer.name);
    about = fmt::format("{} file{} of {:.1f} MB, about {} tokens", inputs.files.size(),
                        inputs.files.size() == 1 ? "" : "s", static_cast<double>(inputs.bytes) * 1e-6,
                        format_count(tokens));
  }

  std::string tokenizer_words() const {
    std::string words = tokenizer.name == ltrain::data::byte_tokenizer_kind().name
                            ? ""
                            : " --tokenizer " + shell_word(tokenizer.name);
    if (!tokenizer.ranks.empty()) words += " --ranks " + shell_word(tokenizer.ranks);
    return words;
  }

  std::string recipe(const Size& s) const {
    constexpr int64_t kBatch = 16;
    const double step = static_cast<double>(kBatch * s.seq_length);
    const auto pass = static_cast<int64_t>(tokens / step);
    const int64_t steps = std::clamp<int64_t>(pass, 200, 20000);
    const bool parts = !built || held_out;
    std::string text = fmt::format(
        "# Written by `ltrain init` for {}. One pass over the data is about {} steps.\n"
        "name: {}\n\n"
        "model:\n"
        "  architecture: llama\n"
        "  vocab_size: {}\n"
        "  hidden_size: {}\n"
        "  num_hidden_layers: {}\n"
        "  num_attention_heads: {}\n"
        "  max_position_embeddings: {}\n"
        "  tie_word_embeddings: true\n\n"
        "data:\n"
        "  train: [{{path: \"{}{}\"}}]\n",
        about, std::max<int64_t>(1, pass), name, vocabulary, s.width, s.layers, s.heads, s.seq_length, prefix,
        parts ? "-train" : "");
    if (held_out) text += fmt::format("  eval: [{{path: \"{}-val\"}}]\n", prefix);
    text += fmt::format(
        "  tokenizer: {}\n"
        "  seq_length: {}\n\n"
        "train:\n"
        "  micro_batch_size: 4\n"
        "  global_batch_size: {}\n"
        "  train_steps: {}\n"
        "  log_interval: {}\n",
        tokenizer_line, s.seq_length, kBatch, steps, std::max<int64_t>(1, steps / 50));
    if (held_out)
      text += fmt::format("  eval_interval: {}\n  eval_steps: 8\n", std::max<int64_t>(1, steps / 4));
    text += fmt::format(
        "\noptimizer: {{lr: {:.1e}, min_lr: {:.1e}}}\n"
        "schedule: {{lr_decay_style: cosine, lr_warmup_steps: {}}}\n"
        "checkpoint: {{save_interval: {}, keep_latest: 2}}\n",
        s.lr, s.lr / 10, steps / 20, std::max<int64_t>(1, steps / 4));
    return text;
  }
};

}  // namespace

void add_init(CLI::App& app) {
  auto* command =
      app.add_subcommand("init", "Write a recipe for text or token files, and say what comes next");
  auto c = std::make_shared<InitCommand>();
  command->add_option("data", c->data, "Text file, folder or .jsonl file, or PREFIX of token files")
      ->required();
  command->add_option("--output", c->output, "The recipe; default: named after the data, here");
  c->tokenizer.add_to(*command);
  command->footer("Example: ltrain init corpus");
  command->callback([c] { c->run(); });
}

}  // namespace ltrain::app
