#include "app/commands.h"
namespace ltrain::app {
void add_bench(CLI::App&) {}
}  // namespace ltrain::app
