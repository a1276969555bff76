// ltrain quorum: where replicas on several machines agree on each step.
#include <poll.h>
#include <signal.h>

#include <cstdio>
#include <cstdlib>
#include <memory>

#include "app/commands.h"
#include "app/load_with_notes.h"
#include "base/error.h"
#include "runtime/launch/supervisor/caught_signals.h"
#include "runtime/replicas/replica_group.h"

namespace ltrain::app {
namespace {

struct QuorumOptions {
  std::string recipe;
  std::vector<std::string> overrides;
  int port = 29400;
  bool dry_run = false;
};

void serve(const QuorumOptions& o) {
  const Recipe recipe = load_with_notes(o.recipe, o.overrides);
  if (!recipe.replicas.on())
    fail(ExitCode::usage, "{}: replicas.count = 0: the recipe has no replicas, which a quorum is for",
         o.recipe);
  if (o.dry_run) {
    const QuorumServer server(quorum_settings(recipe), o.port, "none");
    std::printf("quorum of %d replicas, at least %d: port %d is free\n",
                static_cast<int>(recipe.replicas.count), static_cast<int>(recipe.replicas.min),
                server.port());
    return;
  }
  const char* token = std::getenv("LTRAIN_QUORUM_TOKEN");
  if (!token || !*token)
    fail(ExitCode::usage,
         "LTRAIN_QUORUM_TOKEN is not set: replicas show that they know it; e.g. export "
         "LTRAIN_QUORUM_TOKEN=$(openssl rand -hex 32)");
  CaughtSignals signals({SIGINT, SIGTERM, SIGHUP});
  QuorumSettings settings = quorum_settings(recipe);
  settings.log = [](const std::string& text) {
    std::printf("%s\n", text.c_str());
    std::fflush(stdout);
  };
  const QuorumServer server(settings, o.port, token);
  settings.log(fmt::format("quorum of {} replicas, at least {}, at port {}; Ctrl-C ends it",
                           settings.replicas, settings.least, server.port()));
  pollfd p{signals.fd(), POLLIN, 0};
  while (::poll(&p, 1, -1) < 0 || signals.take().empty()) {
  }
}

}  // namespace

void add_quorum(CLI::App& app) {
  auto* command = app.add_subcommand(
      "quorum", "The place where the replicas of a recipe on several machines agree on each step");
  auto o = std::make_shared<QuorumOptions>();
  command->add_option("recipe", o->recipe, "YAML recipe with replicas")->required();
  command->add_option("overrides", o->overrides, "key=value");
  command->add_option("--port", o->port, "Port to listen on; 0: any free one")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  command->add_flag("--dry-run", o->dry_run, "Check the recipe and the port, wait for nobody");
  command->allow_extras();
  command->footer(
      "Example: ltrain quorum recipes/replicas.yaml --port 0 --dry-run\n"
      "Set LTRAIN_QUORUM_TOKEN to the same secret here and for all replicas.");
  command->callback([o, command] {
    take_extras(*command, o->overrides);
    serve(*o);
  });
}

}  // namespace ltrain::app
