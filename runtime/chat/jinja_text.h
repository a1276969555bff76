// Strings of a template engine. Each byte knows whether it came from data (a message) or from the template,
// and which generation block wrote it. Operations have the semantics of Python's str: code points, Unicode
// white space.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/chat/jinja_session.h"

namespace ltrain::chat {

/// Origin of bytes of a string.
struct Origin {
  bool data = false;        ///< from a message or a tool, not from the template
  uint32_t generation = 0;  ///< number of the generation block, from 1; 0: outside
  bool operator==(const Origin&) const = default;
};

/// Consecutive bytes of one origin.
struct Run {
  size_t end;  ///< first byte behind it; it begins where the one before ends
  Origin origin;
};

/// An immutable string in UTF-8 with the origin of its bytes.
struct Text {
  std::string bytes;
  std::vector<Run> runs;  ///< in order; neighbours differ; the last ends at bytes.size()
  bool ascii = true;
  bool markup =
      false;  ///< result of the filter `safe` or `escape` (Python's Markup): `+` escapes the other operand
  size_t length() const;  ///< code points
};
using TextPtr = std::shared_ptr<const Text>;

/// Builds a string from parts. Counts its bytes in the session.
class TextBuilder {
 public:
  explicit TextBuilder(Session& session) : session_(session) {}
  void add(std::string_view bytes, Origin origin = {});
  void add(const Text& text) { add(text, 0, text.bytes.size()); }
  void add(const Text& text, size_t begin, size_t end);  ///< bytes [begin, end) of a text
  size_t size() const { return text_.bytes.size(); }
  TextPtr finish(bool markup = false);
  Text take();  ///< the text itself, for the output

  uint32_t generation = 0;  ///< number of the generation block that all added bytes belong to; 0: their own

 private:
  Session& session_;
  Text text_;
};

TextPtr make_text(Session& session, std::string_view bytes, Origin origin = {});
TextPtr part_of(Session& session, const TextPtr& text, size_t begin, size_t end);  ///< bytes [begin, end)
Origin origin_at(const Text& text, size_t byte);
bool has_data(const Text& text);

/// Byte offset of a code point; the size of the text for an index behind the end.
size_t byte_of(const Text& text, size_t index);
bool python_space(uint32_t code);  ///< str.isspace of a code point
/// Returns the valid UTF-8 prefix's length; equals text.size() for valid text.
size_t valid_utf8(std::string_view text);

/// str.strip, lstrip, rstrip; `chars` null: white space.
TextPtr strip(Session& session, const TextPtr& text, const Text* chars, bool left, bool right);
/// str.split and rsplit; `separator` null: runs of white space; `most` < 0: no limit.
std::vector<TextPtr> split(Session& session, const TextPtr& text, const Text* separator, int64_t most,
                           bool from_right);
std::vector<TextPtr> split_lines(Session& session, const TextPtr& text, bool keep_ends);
/// str.replace; `count` < 0: all.
TextPtr replace(Session& session, const TextPtr& text, const Text& old, const Text& by, int64_t count);
TextPtr repeat(Session& session, const TextPtr& text, int64_t count);
/// Code points start, start + step, ... (`count` of them).
TextPtr pick(Session& session, const TextPtr& text, int64_t start, int64_t step, int64_t count);
enum class Case : uint8_t { upper, lower, title, capitalize, swap };
TextPtr change_case(Session& session, const TextPtr& text, Case to);
/// The filter `title` of Jinja, which differs from str.title.
TextPtr jinja_title(Session& session, const TextPtr& text);
/// HTML escapes of markupsafe; unchanged for markup. The result is markup.
TextPtr escape_html(Session& session, const TextPtr& text);
/// Adds repr() of a str.
void add_repr(const Text& text, TextBuilder& out);
/// Adds a JSON string as json.dumps writes it.
void add_json(const Text& text, bool ensure_ascii, TextBuilder& out);

bool is_upper(const Text& text);  ///< str.isupper
bool is_lower(const Text& text);  ///< str.islower

}  // namespace ltrain::chat
