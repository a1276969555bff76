#include "app/plan/plan_exports.h"

#include <cstdio>
#include <filesystem>

#include "app/print_notes.h"
#include "base/error.h"
#include "planner/exports/megatron.h"
#include "planner/exports/megatron_flags.h"
#include "planner/exports/trainers.h"
#include "runtime/files/write_file.h"
#include "runtime/recipe/read_file.h"

namespace ltrain::app {
namespace {

void put(const std::string& path, const std::string& text) {
  if (path.empty()) {
    std::fputs(text.c_str(), stdout);
    return;
  }
  write_file(path, text);
}

}  // namespace

void add_export_options(CLI::App& command, ExportOptions& o) {
  command
      .add_option("--export", o.target, "Write the recipe as flags of another trainer, in place of the plan")
      ->check(CLI::IsMember({"megatron", "torchtitan", "deepspeed", "nemo"}));
  command.add_option("--from-megatron", o.megatron,
                     "Read the flags of a Megatron-LM command line, or of a file that has them, and write a "
                     "recipe; needs no recipe");
  command.add_option("--output", o.output, "File for --export and --from-megatron, in place of stdout");
  command.add_flag("--flags", o.flags,
                   "Print Megatron-LM's flags and the keys that they stand for; needs no recipe");
}

void run_without_recipe(const ExportOptions& o, int world) {
  if (o.flags) return put(o.output, exports::megatron_flags_markdown());
  std::string flags = o.megatron;
  std::error_code error;
  if (std::filesystem::is_regular_file(o.megatron, error))
    if (const std::string wrong = recipe::read_small_file(o.megatron, flags); !wrong.empty())
      fail(ExitCode::usage, "ltrain plan --from-megatron {}: {}", o.megatron, wrong);
  const exports::Imported imported = exports::from_megatron(flags, world);
  print_notes(imported.notes);
  put(o.output, imported.yaml);
}

void export_recipe(const ExportOptions& o, const Recipe& recipe) {
  const exports::Exported exported = o.target == "torchtitan"  ? exports::to_torchtitan(recipe)
                                     : o.target == "deepspeed" ? exports::to_deepspeed(recipe)
                                     : o.target == "nemo"      ? exports::to_nemo(recipe)
                                                               : exports::to_megatron(recipe);
  for (const std::string& setting : exported.unsaid)
    std::fprintf(stderr, "ltrain: %s cannot say: %s\n", o.target.c_str(), setting.c_str());
  put(o.output, exported.text);
}

}  // namespace ltrain::app
