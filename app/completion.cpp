// ltrain completion, ltrain man: files of an installation, from the table of commands.
#include <cstdio>
#include <filesystem>
#include <memory>

#include "app/command_tree.h"
#include "app/commands.h"
#include "base/version.h"
#include "runtime/files/write_file.h"
#include "runtime/recipe/schema/schema.h"

namespace ltrain::app {
namespace {

std::vector<std::string> recipe_keys() {
  std::vector<std::string> keys;
  for (const recipe::Key& key : recipe::schema()) keys.push_back(key.path);
  return keys;
}

/// Writes a page for each command into the folder, or prints the program's.
void write_pages(const CommandInfo& program, const std::string& folder) {
  if (folder.empty()) {
    std::fputs(man_page(program, version()).c_str(), stdout);
    return;
  }
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) fail(ExitCode::storage, "{}: cannot be made: {}", folder, error.message());
  for_each_command(program, [&](const CommandInfo& c) {
    write_file(folder + "/" + man_page_name(c), man_page(c, version()));
  });
}

}  // namespace

void add_completion(CLI::App& app) {
  auto* completion = app.add_subcommand("completion", "Prints the completion script for a shell");
  auto shell = std::make_shared<std::string>();
  completion->add_option("shell", *shell, "The shell")
      ->required()
      ->check(CLI::IsMember(std::vector<std::string>{"bash", "zsh", "fish"}));
  completion->footer("Example: ltrain completion bash\nIn a shell: source <(ltrain completion bash)");
  completion->callback([&app, shell] {
    std::fputs(completion_script(command_tree(app), *shell, recipe_keys()).c_str(), stdout);
  });
  auto* man = app.add_subcommand("man", "Man pages")->group("");
  auto folder = std::make_shared<std::string>();
  man->add_option("--folder", *folder, "Write a page for each command into this folder");
  man->callback([&app, folder] { write_pages(command_tree(app), *folder); });
}

}  // namespace ltrain::app
