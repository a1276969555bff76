// --bos, for commands that give text to a model.
#pragma once
#include <CLI/CLI.hpp>

#include "runtime/generate/session.h"

namespace ltrain::app {

/// `to` must outlive the parsing.
inline void add_text_begin(CLI::App& command, TextBegin& to) {
  command
      .add_option_function<std::string>(
          "--bos",
          [&to](const std::string& how) {
            to = how == "yes" ? TextBegin::bos : how == "no" ? TextBegin::none : TextBegin::as_trained;
          },
          "Begin texts with the begin-of-text token; auto: as the documents of training began, or as the "
          "tokenizer of a Hugging Face folder does")
      ->check(CLI::IsMember({"auto", "yes", "no"}));
}

}  // namespace ltrain::app
