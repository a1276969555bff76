// ltrain: one command line, one file per subcommand.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "app/commands.h"
#include "kernels/core/fault_point.h"
#include "kernels/core/limits.h"
#include "runtime/launch/output.h"

namespace {

/// libgomp's threads spin for milliseconds at the end of every parallel region, which costs 50 times the work
/// when another process has the core. A short spin keeps the speed on a quiet machine. libgomp reads the
/// variable when it is loaded, so the program starts itself again with it, once.
void limit_spinning(char** argv) {
  if (std::getenv("GOMP_SPINCOUNT") || std::getenv("OMP_WAIT_POLICY")) return;
  ::setenv("GOMP_SPINCOUNT", "10000", 1);
  ::execv("/proc/self/exe", argv);  // when it fails the program goes on, slower under load
}

}  // namespace

int main(int argc, char** argv) {
  using namespace ltrain;
  limit_spinning(argv);
  raise_file_limit();
  take_file_size_as_error();
  CLI::App app{
      "ltrain trains large language models.\n"
      "Example: ltrain run recipes/quickstart.yaml train.train_steps=100"};
  app.name("ltrain");
  app.set_version_flag("--version", std::string("ltrain 0.1.0"));
  app.require_subcommand(1);
  app::add_run(app);
  app::add_plan(app);
  app::add_recipe(app);
  app::add_data(app);
  app::add_checkpoint(app);
  app::add_generate(app);
  app::add_eval(app);
  app::add_report(app);
  app::add_bench(app);
  app::add_doctor(app);
  app::add_slurm(app);
  app::add_selftest(app);
  try {
    if (const char* faults = std::getenv("LTRAIN_FAULT")) arm_faults(faults);
    app.parse(argc, argv);
  } catch (const CLI::RuntimeError& e) {  // the exit code of a supervised run, already explained
    return e.get_exit_code();
  } catch (const CLI::ParseError& e) {
    const int code = app.exit(e);
    return code == 0 ? 0 : static_cast<int>(ExitCode::usage);
  } catch (const std::exception& e) {
    const Error error = as_error(e);
    print_lines(std::string("ltrain: ") + error.what());
    return static_cast<int>(error.code());
  }
  return 0;
}
