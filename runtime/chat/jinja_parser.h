// Syntax tree of a template from its source.
#pragma once
#include "runtime/chat/jinja_ast.h"

namespace ltrain::chat {

struct ParsedTemplate {
  Block body;
  bool generation = false;  ///< has a generation block
};

/// Throws Error (data) with the line.
std::shared_ptr<const ParsedTemplate> parse_jinja(std::string_view source, const std::string& name);

/// Text of a name or a literal of the source. Equal names of one parse share one object.
TextPtr source_text(std::string_view bytes);

}  // namespace ltrain::chat
