// Slips of YAML for which its parser has no words: blanks that are not spaces, brackets that stay open, and a
// key that swallows its value.
#pragma once
#include <string>
#include <string_view>

namespace ltrain::recipe {

/// Throws Error (usage) for a tab in the indentation, and for another blank, such as the non-breaking space,
/// in the indentation or behind a colon.
void refuse_blanks(std::string_view text, const std::string& source);

/// For a text that is not YAML: throws Error (usage) with the line of a bracket that is not closed, or of a
/// key without a space behind its colon; returns where neither is there.
void explain_syntax(std::string_view text, const std::string& source);

/// "a space is missing behind the colon: `lr: 3`" for the text `lr:3`; empty for a text that is not a key and
/// its value.
std::string missing_space_hint(std::string_view text);

}  // namespace ltrain::recipe
