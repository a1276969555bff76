// ltrain plan --html and --svg.
#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "planner/report/pictures.h"

namespace ltrain::app {

struct PictureOptions {
  std::string html, svg;  ///< a file; a folder
  bool given() const { return !html.empty() || !svg.empty(); }
};

void add_pictures(CLI::App& plan, PictureOptions& options);

/// Writes the page and the folder that are given. `title`, `lead`, `text`: arguments of html_page.
void write_pictures(const PictureOptions& options, const std::string& title,
                    const std::vector<std::string>& lead, const std::vector<Picture>& pictures,
                    const std::string& text);

}  // namespace ltrain::app
