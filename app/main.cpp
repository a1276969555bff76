// ltrain: one command line, one file per subcommand.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "app/commands.h"
#include "base/fault_point.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/nearest_word.h"
#include "base/printable.h"
#include "base/version.h"
#include "kernels/tensor/kernel_trial.h"

namespace {

/// Opens closed standard descriptors as /dev/null. Otherwise the next opened file would get such a number,
/// and output would go to it.
void open_standard_descriptors() {
  for (int fd = 0; fd <= 2; ++fd)
    if (::fcntl(fd, F_GETFD) < 0 && ::open("/dev/null", O_RDWR) != fd) std::exit(70);
}

/// Limits the spinning of libgomp's threads. They spin for milliseconds at the end of every parallel region,
/// which costs 50 times the work if another process has the core. A short spin keeps the speed on a quiet
/// machine. libgomp reads the variable when it is loaded, so the program restarts itself once.
void limit_spinning(char** argv) {
  if (std::getenv("GOMP_SPINCOUNT") || std::getenv("OMP_WAIT_POLICY")) return;
  ::setenv("GOMP_SPINCOUNT", "10000", 1);
  ::execv("/proc/self/exe", argv);  // on failure the program continues, slower under load
}

/// Converts `ltrain help plan` to `ltrain plan --help`.
std::vector<std::string> with_help_behind(int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  if (words.empty() || words[0] != "help") return words;
  words.erase(words.begin());
  words.emplace_back("--help");
  return words;
}

/// Name of the command that other programs call `word`; empty: unknown.
std::string called_elsewhere(const std::string& word) {
  static const std::map<std::string, std::string> names{
      {"train", "run"},       {"start", "run"},        {"launch", "run"},     {"evaluate", "eval"},
      {"test", "eval"},       {"chat", "generate"},    {"infer", "generate"}, {"inference", "generate"},
      {"sample", "generate"}, {"predict", "generate"}, {"convert", "import"}, {"preprocess", "data"},
      {"prepare", "data"},    {"benchmark", "bench"},  {"config", "recipe"},  {"estimate", "plan"},
      {"check", "doctor"},    {"info", "doctor"},      {"sbatch", "slurm"},   {"kubernetes", "kube"},
      {"jobset", "kube"},     {"metrics", "report"}};
  const auto at = names.find(word);
  return at == names.end() ? "" : at->second;
}

/// Reports an unknown command, for which CLI11 only says that a command is missing.
void check_command(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App* at = &app;
  std::string name = "ltrain";
  for (size_t i = 0; i < words.size() && at->get_require_subcommand_min() > 0; ++i) {
    if (words[i].starts_with('-')) return;
    std::vector<std::string> names;
    const CLI::App* next = nullptr;
    for (const CLI::App* command : at->get_subcommands([](const CLI::App*) { return true; })) {
      if (command->get_name() == words[i]) next = command;
      if (!command->get_group().empty()) names.push_back(command->get_name());
    }
    if (!next) {
      std::string near = at == &app ? called_elsewhere(words[i]) : "";
      if (near.empty()) near = ltrain::nearest_word(words[i], names);
      ltrain::fail(ltrain::ExitCode::usage, "{} is not a command of {}, which has {}{}",
                   ltrain::printable(words[i], 100), name, fmt::join(names, ", "),
                   near.empty() ? "" : fmt::format("; did you mean {}?", near));
    }
    at = next;
    name += " " + at->get_name();
  }
}

}  // namespace

int main(int argc, char** argv) {
  using namespace ltrain;
  open_standard_descriptors();
  limit_spinning(argv);
  raise_file_limit();
  set_kernel_trial({"/proc/self/exe", "selftest"});
  take_file_size_as_error();
  CLI::App app{
      "ltrain trains large language models.\n"
      "Example: ltrain run recipes/quickstart.yaml train.train_steps=100\n"
      "`ltrain help COMMAND` or `ltrain COMMAND --help` says what a command takes."};
  app.name("ltrain");
  app.set_version_flag("--version", "ltrain " + version());
  app.require_subcommand(1);
  app::add_run(app);
  app::add_plan(app);
  app::add_init(app);
  app::add_profile(app);
  app::add_recipe(app);
  app::add_data(app);
  app::add_tokenize(app);
  app::add_tokenizer(app);
  app::add_checkpoint(app);
  app::add_export(app);
  app::add_import(app);
  app::add_generate(app);
  app::add_eval(app);
  app::add_report(app);
  app::add_replay(app);
  app::add_bench(app);
  app::add_doctor(app);
  app::add_slurm(app);
  app::add_quorum(app);
  app::add_kube(app);
  app::add_selftest(app);
  app::add_completion(app);
  try {
    read_log_level();
    if (const char* faults = std::getenv("LTRAIN_FAULT")) arm_faults(faults);
    std::vector<std::string> words = with_help_behind(argc, argv);
    check_command(app, words);
    std::reverse(words.begin(), words.end());  // CLI11 expects reverse order
    app.parse(std::move(words));
  } catch (const CLI::RuntimeError& e) {  // exit code of a supervised run, already explained
    return e.get_exit_code();
  } catch (const CLI::ParseError& e) {
    const int code = app.exit(e);
    return code == 0 ? 0 : static_cast<int>(ExitCode::usage);
  } catch (const std::exception& e) {
    const Error error = as_error(e);
    if (*error.what()) log_lines(LogLevel::error, std::string("ltrain: ") + error.what());
    return static_cast<int>(error.code());
  }
  return 0;
}
