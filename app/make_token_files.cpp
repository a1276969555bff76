#include "app/make_token_files.h"

#include <cstdio>
#include <optional>

#include "app/print_notes.h"
#include "app/progress_line.h"
#include "base/printable.h"

namespace ltrain::app {

void make_token_files(const Recipe& recipe, MadeFiles which, bool quiet) {
  std::string path;
  std::optional<ProgressLine> line;
  const auto progress = [&](const std::string& source, const data::ShardProgress& p) {
    if (source != path) {
      line.reset();
      path = source;
      if (!quiet) std::fprintf(stderr, "tokenising %s\n", printable(path).c_str());
      line.emplace(quiet);
    }
    line->update(p.input_bytes, p.total_bytes,
                 p.elsewhere.empty() ? fmt::format(", {} tokens", p.tokens)
                                     : ", waiting for another process at " + p.elsewhere);
  };
  const std::vector<std::string> notes = tokenize_sources(recipe, which, progress);
  line.reset();
  print_notes(notes);
}

}  // namespace ltrain::app
