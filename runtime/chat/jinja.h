// Chat templates: the subset of Jinja that they use, as transformers configures it (trim_blocks,
// lstrip_blocks, an immutable sandbox, loop controls, {% generation %}, tojson as json.dumps).
//
// The rendered text says of each byte whether it came from data and whether a generation block wrote it, so
// that text of users is never taken for special tokens and losses are masked without a second pass.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json/json.h"
#include "runtime/chat/jinja_session.h"

namespace ltrain::chat {

/// Consecutive bytes of a rendered text.
struct Span {
  size_t begin = 0, end = 0;
  bool from_data = false;   ///< text of messages, tools or documents, and not of the template
  uint32_t generation = 0;  ///< number of the generation block, from 1; 0: outside
};

struct Rendered {
  std::string text;
  std::vector<Span> spans;  ///< in order, without gaps
};

/// A variable of a template.
struct JinjaVariable {
  enum class Source : uint8_t {
    setting,   ///< given by the caller: special tokens, add_generation_prompt
    data,      ///< tools, documents
    messages,  ///< a list of messages; the role is one of few words and counts as the template's text
  };
  std::string name;
  nlohmann::ordered_json value;
  Source source = Source::setting;
};

struct ParsedTemplate;

/// A parsed template. Immutable and thread-safe.
class JinjaTemplate {
 public:
  /// Parses `source`. `name` stands in messages before the line. Throws Error (data) for a syntax error and
  /// for unknown tags, filters, tests, methods and functions, with the nearest name.
  JinjaTemplate(std::string_view source, std::string name, const JinjaLimits& limits = {});

  /// Renders. Throws Error (data) with the line where the template fails, raises an exception or exceeds a
  /// limit. `date` is "YYYY-MM-DD", for strftime_now().
  Rendered render(const std::vector<JinjaVariable>& variables, const std::string& date) const;

  const std::string& name() const { return name_; }
  bool has_generation() const;  ///< the source has a generation block

 private:
  std::string name_;
  JinjaLimits limits_;
  std::shared_ptr<const ParsedTemplate> parsed_;
};

}  // namespace ltrain::chat
