// Subcommands. Each add_* registers its options and a callback on the app. The callback runs the command and
// throws ltrain::Error with the exit code on failure.
#pragma once
#include <CLI/CLI.hpp>

namespace ltrain::app {

void add_run(CLI::App& app);            // run.cpp
void add_init(CLI::App& app);           // init.cpp
void add_plan(CLI::App& app);           // plan.cpp
void add_data(CLI::App& app);           // data.cpp: data build, data inspect
void add_tokenize(CLI::App& app);       // tokenize.cpp
void add_tokenizer(CLI::App& app);      // tokenizer.cpp: tokenizer import
void add_recipe(CLI::App& app);         // recipe.cpp: recipe show, check, keys
void add_recipe_new(CLI::App& recipe);  // recipe_new.cpp
void add_checkpoint(CLI::App& app);     // checkpoint.cpp: checkpoint list, verify, show
void add_export(CLI::App& app);         // weights.cpp
void add_import(CLI::App& app);
void add_generate(CLI::App& app);    // generate.cpp
void add_eval(CLI::App& app);        // eval.cpp
void add_report(CLI::App& app);      // report.cpp
void add_replay(CLI::App& app);      // replay.cpp
void add_bench(CLI::App& app);       // bench.cpp
void add_profile(CLI::App& app);     // profile.cpp: profile list, show, import
void add_doctor(CLI::App& app);      // doctor.cpp
void add_slurm(CLI::App& app);       // slurm.cpp
void add_quorum(CLI::App& app);      // quorum.cpp
void add_kube(CLI::App& app);        // kube.cpp
void add_completion(CLI::App& app);  // completion.cpp: completion; man is hidden
void add_selftest(CLI::App& app);
void add_selftest_collectives(CLI::App& selftest);  // selftest.cpp: hidden
void add_selftest_kernels(CLI::App& selftest);

/// Adds overrides written as options (--section.key=value), which arrive as extras of the subcommand.
inline void take_extras(const CLI::App& command, std::vector<std::string>& overrides) {
  for (const std::string& extra : command.remaining()) overrides.push_back(extra);
}

}  // namespace ltrain::app
