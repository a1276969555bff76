#include "app/data/data_prepare.h"

#include <cstdio>
#include <memory>

#include "app/commands.h"
#include "app/load_with_notes.h"
#include "app/make_token_files.h"
#include "base/json/json.h"
#include "base/printable.h"
#include "runtime/check/data_sources.h"
#include "runtime/data/indexed_dataset.h"
#include "runtime/recipe/data_lists.h"

namespace ltrain::app {
namespace {

struct PrepareCommand {
  std::string recipe;
  std::vector<std::string> overrides;
  bool json = false, quiet = false;

  void run() const {
    const Recipe given = load_with_notes(recipe, overrides);
    Recipe before = given;
    resolve_sources(before, true);
    const bool complete = !has_pending_sources(before) && training_files_exist(before);
    if (!complete) make_token_files(given, MadeFiles::all, quiet);
    Recipe after = given;
    resolve_sources(after, true);
    int64_t files = 0, tokens = 0;
    for (const ListedSource& listed : all_sources(after))
      for (const std::string& prefix : listed.source->token_files()) {
        ++files;
        tokens += data::inspect_source(prefix).tokens;
      }
    if (json) {
      std::printf("%s\n", nlohmann::ordered_json{{"schema", "ltrain.prepare.v1"},
                                                 {"made", !complete},
                                                 {"token_files", files},
                                                 {"tokens", tokens}}
                              .dump()
                              .c_str());
      return;
    }
    std::printf("%s: %lld token file%s, %lld tokens%s\n", printable(recipe).c_str(),
                static_cast<long long>(files), files == 1 ? "" : "s", static_cast<long long>(tokens),
                complete ? "; all were there" : "");
  }
};

}  // namespace

void add_prepare(CLI::App& data) {
  auto c = std::make_shared<PrepareCommand>();
  CLI::App* s = data.add_subcommand(
      "prepare",
      "make the token files that a run of a recipe would make; nodes that share data.cache share the work\n"
      "Example: ltrain data prepare recipes/quickstart.yaml");
  s->add_option("recipe", c->recipe, "YAML recipe")->required();
  s->add_option("overrides", c->overrides, "key=value");
  s->add_flag("--json", c->json, "the result as JSON");
  s->add_flag("-q,--quiet", c->quiet, "no progress line");
  s->allow_extras();
  s->callback([c, s] {
    take_extras(*s, c->overrides);
    c->run();
  });
}

}  // namespace ltrain::app
