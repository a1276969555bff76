// Explanations of YAML mistakes that the parser does not explain: blanks other than spaces, unclosed
// brackets, and keys without a space after the colon.
#pragma once
#include <string>
#include <string_view>

namespace ltrain::recipe {

/// Throws Error (usage) for a tab in the indentation, or for another blank, such as a non-breaking space, in
/// the indentation or after a colon.
void refuse_blanks(std::string_view text, const std::string& source);

/// For text that is not YAML: throws Error (usage) with the line of an unclosed bracket or of a key without a
/// space after its colon. Returns if it finds neither.
void explain_syntax(std::string_view text, const std::string& source);

/// "a space is missing behind the colon: `lr: 3`" for the text `lr:3`; empty for text without a key and
/// value.
std::string missing_space_hint(std::string_view text);

}  // namespace ltrain::recipe
