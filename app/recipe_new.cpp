// ltrain recipe new: a recipe of a published model for other ranks, by a search of layouts.
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <sstream>

#include "app/commands.h"
#include "base/error.h"
#include "base/nearest_word.h"
#include "base/printable.h"
#include "planner/search/search.h"
#include "runtime/check/check_job.h"
#include "runtime/files/write_file.h"
#include "runtime/machines/builtin_profiles.h"

namespace ltrain::app {
namespace {

constexpr double kSearchSeconds = 4;
constexpr int64_t kTokensOfRank = 65536;  // a step's tokens of one GPU

struct NewCommand {
  std::string model, card, precision, output;
  int gpus = 0;
};

/// MODEL of MODEL_GPUSxCARD_PRECISION.yaml; empty for a variant, such as fine-tuning.
std::string model_of(const std::string& file) {
  const std::string stem = file.substr(0, file.rfind(".yaml"));
  return std::count(stem.begin(), stem.end(), '_') == 2 ? stem.substr(0, stem.find('_')) : "";
}

/// The first recipe of the model.
std::string text_of(const std::string& model) {
  std::set<std::string> known;
  for (const EmbeddedFile& file : kEmbeddedRecipes) {
    const std::string name = model_of(file.name);
    if (name == model) return file.text;
    if (!name.empty()) known.insert(name);
  }
  fail(ExitCode::usage, "ltrain recipe new --model {}: is not known; expected one of {}",
       printable(model, 100), fmt::join(known, ", "));
}

/// Lines of a top-level section, with its key; empty: the recipe has none.
std::string section(const std::string& text, const std::string& key) {
  std::istringstream in(text);
  std::string lines;
  bool inside = false;
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || (line[0] != ' ' && line[0] != '#')) inside = line.rfind(key + ":", 0) == 0;
    if (inside) lines += line + "\n";
  }
  return lines;
}

/// "section: {key: value, ...}" lines of settings, by their sections.
std::string settings_text(const std::vector<Setting>& settings) {
  std::map<std::string, std::string> sections;
  for (const auto& [key, value] : settings) {
    const size_t dot = key.rfind('.');
    std::string& list = sections[key.substr(0, dot)];
    list += fmt::format("{}{}: {}", list.empty() ? "" : ", ", key.substr(dot + 1), value);
  }
  std::string out;
  for (const auto& [name, list] : sections) out += fmt::format("{}: {{{}}}\n", name, list);
  return out;
}

/// Text of the recipe with these settings of layout.
std::string recipe_text(const NewCommand& c, const std::string& source, const Recipe& known,
                        std::vector<Setting> settings) {
  const int64_t sequences = std::max<int64_t>(1, kTokensOfRank / known.data.seq_length) * c.gpus;
  settings.emplace_back("train.global_batch_size", std::to_string(sequences));
  settings.emplace_back("train.train_steps", std::to_string(known.train.train_steps));
  return fmt::format(
      "# Written by `ltrain recipe new` for {} on {} {}. The layout is planned, not measured; batch, "
      "learning\n"
      "# rate and steps are a beginning. Data and tokenizer: put yours into the paths below.\n"
      "name: {}_{}x{}_{}\ndevice: cuda\nprecision: {}\nlaunch: {{ranks_per_node: {}}}\n\n{}\n{}\n{}{}{}{}",
      c.model, c.gpus, c.card, c.model, c.gpus, c.card, c.precision, c.precision, std::min(c.gpus, 8),
      section(source, "model"), section(source, "data"), settings_text(settings),
      section(source, "optimizer"), section(source, "schedule"), section(source, "checkpoint"));
}

/// Axes that the known recipe has: the search chooses the others.
std::vector<Setting> kept_axes(const NewCommand& c, const Recipe& known) {
  const Parallel& p = known.parallel;
  const int64_t ranks = p.tensor * p.pipeline * p.context * (p.expert_tensor < p.tensor ? 1 : p.expert);
  if (c.gpus % ranks != 0)
    fail(
        ExitCode::usage,
        "ltrain recipe new --gpus {}: the recipe of {} has tensor {}, pipeline {}, context {} and expert {}; "
        "expected a multiple of {}; `ltrain plan RECIPE --search` looks at other axes",
        c.gpus, c.model, p.tensor, p.pipeline, p.context, p.expert, ranks);
  std::vector<Setting> kept{{"parallel.tensor", std::to_string(p.tensor)},
                            {"parallel.pipeline", std::to_string(p.pipeline)},
                            {"parallel.context", std::to_string(p.context)}};
  if (p.sequence_parallel) kept.emplace_back("parallel.sequence_parallel", "true");
  if (p.pipeline > 1) kept.emplace_back("parallel.schedule", p.schedule);
  if (p.virtual_pipeline > 1)
    kept.emplace_back("parallel.virtual_pipeline", std::to_string(p.virtual_pipeline));
  if (p.expert > 1) {
    kept.emplace_back("parallel.expert", std::to_string(p.expert));
    kept.emplace_back("parallel.expert_tensor", std::to_string(p.expert_tensor));
  }
  return kept;
}

void write_new(const NewCommand& c) {
  const std::string source = text_of(c.model);
  const Recipe known = parse_recipe(source, c.model);
  const std::string output =
      c.output.empty() ? fmt::format("{}_{}x{}_{}.yaml", c.model, c.gpus, c.card, c.precision) : c.output;
  if (std::filesystem::exists(output))
    fail(ExitCode::usage, "{}: is there already; remove it, or give another name with --output",
         printable(output));
  const MachineProfile profile = profile_for({c.card, "", 1}, DeviceKind::cuda);
  if (profile.device_bytes == 0)
    fail(ExitCode::usage, "ltrain recipe new --card {}: is a CPU; expected a card, such as h100", c.card);
  std::vector<Setting> settings = kept_axes(c, known);
  const std::string open = recipe_text(c, source, known, settings);
  const Recipe given = parse_recipe(open, output);
  SearchLimits limits;
  limits.world = c.gpus;
  limits.ranks_per_node = std::min(c.gpus, 8);
  limits.keep_free = profile.device_bytes / 32;
  limits.seconds = kSearchSeconds;
  limits.variants = false;
  const SearchResult result =
      search_layouts([&](const std::vector<std::string>& more) { return parse_recipe(open, output, more); },
                     profile, limits, 1);
  if (result.found.empty())
    fail(ExitCode::does_not_fit,
         "ltrain recipe new: {} on {} {} does not fit with the axes of its recipe; more --gpus, or `ltrain "
         "plan "
         "RECIPE --search`",
         c.model, c.gpus, c.card);
  const FoundLayout& best = result.found.front();
  settings.insert(settings.end(), best.settings.begin(), best.settings.end());
  const std::string text = recipe_text(c, source, known, settings);
  parse_recipe(text, output);  // the written recipe must be valid
  write_file(output, text);
  std::printf(
      "wrote %s: %s\nplanned: %.0f tokens/s/GPU, a rank needs %.1f GiB%s\nnext:\n  ltrain plan %s --profile "
      "%s\n",
      output.c_str(), layout_text(best.layout, given).c_str(), best.tokens_per_second_per_rank(),
      static_cast<double>(best.largest().total_bytes) / (1 << 30),
      result.untried > 0 ? "; some layouts were not tried and may be faster" : "", output.c_str(),
      c.card.c_str());
}

}  // namespace

void add_recipe_new(CLI::App& recipe) {
  auto* command = recipe.add_subcommand("new", "Write a recipe of a published model for your cards");
  auto c = std::make_shared<NewCommand>();
  c->card = "h100", c->precision = "bf16";
  command->add_option("--model", c->model, "Name of a model of recipes/models: llama-3.1-8b")->required();
  command->add_option("--gpus", c->gpus, "Number of GPUs")->required()->check(CLI::Range(1, 1 << 16));
  command->add_option("--card", c->card, "Profile of the card: h100 (default); ltrain profile list");
  command->add_option("--precision", c->precision, "bf16 (default), fp8 or fp16")
      ->check(CLI::IsMember({"bf16", "fp8", "fp16"}));
  command->add_option("--output", c->output, "The recipe; default: MODEL_GPUSxCARD_PRECISION.yaml here");
  command->footer("Example: ltrain recipe new --model llama-3.1-8b --gpus 64 --card h100");
  command->callback([c] { write_new(*c); });
}

}  // namespace ltrain::app
