#include "app/plan/plan_pictures.h"

#include <filesystem>

#include "runtime/files/write_file.h"

namespace ltrain::app {

void add_pictures(CLI::App& plan, PictureOptions& o) {
  plan.add_option(
      "--html", o.html,
      "Write a page with memory, timeline, schedule and map as drawings, and all text, to a file");
  plan.add_option("--svg", o.svg, "Write each drawing of --html to a folder: memory.svg and others");
}

void write_pictures(const PictureOptions& o, const std::string& title, const std::vector<std::string>& lead,
                    const std::vector<Picture>& pictures, const std::string& text) {
  if (!o.html.empty()) write_file(o.html, html_page(title, lead, pictures, text));
  if (o.svg.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(o.svg, error);
  if (error) fail(ExitCode::storage, "{}: cannot be made: {}", o.svg, error.message());
  for (const Picture& p : pictures)
    write_file((std::filesystem::path(o.svg) / (p.name + ".svg")).string(), p.svg);
}

}  // namespace ltrain::app
