#include "app/shrink_option.h"

#include <cstdio>
#include <filesystem>

#include "base/error.h"
#include "base/printable.h"
#include "runtime/files/write_file.h"
#include "runtime/recipe/shrink.h"

namespace ltrain::app {

void ShrinkOption::add_to(CLI::App& command) {
  command
      .add_flag("--shrink{8}", ranks,
                "The recipe in small, on this machine's CPU: same family, kinds of layers and axes of ranks, "
                "few layers, small widths, made-up data, three steps; --shrink=N: at most N ranks (8)")
      ->check(CLI::Range(1, 64));
}

std::vector<std::string> ShrinkOption::apply(const std::string& path,
                                             const std::vector<std::string>& overrides,
                                             bool write_data) const {
  const Recipe given = load_recipe(path);
  std::vector<std::string> all = shrink_settings(given, ranks);
  all.insert(all.end(), overrides.begin(), overrides.end());
  const Recipe small = load_recipe(path, all);
  for (const std::string& line : changed_keys(given, small))
    std::fprintf(stderr, "shrink: %s\n", printable(line, 300).c_str());
  const std::string folder = shrunk_folder(given), data = folder + "/data.jsonl";
  if (!write_data || small.data.train.size() != 1 || small.data.train[0].path != data) return all;
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  write_file(data, shrunk_data(small.task));
  if (small.task != Task::pretrain) write_file(folder + "/chat.jinja", shrunk_chat_template());
  return all;
}

}  // namespace ltrain::app
