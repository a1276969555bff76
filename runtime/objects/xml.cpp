#include "runtime/objects/xml.h"

#include <utf8proc.h>

#include <charconv>

#include "base/error.h"

namespace ltrain::objects {
namespace {

constexpr size_t kMaxDepth = 16, kMaxName = 200;

class XmlReader {
 public:
  XmlReader(std::string_view xml, const std::string& name) : xml_(xml), name_(name) {}

  template <class Take>
  void read(Take take) {
    if (xml_.starts_with("\xEF\xBB\xBF")) at_ = 3;
    bool seen = false;
    while (at_ < xml_.size()) {
      if (xml_[at_] != '<') {
        read_text();
        continue;
      }
      if (skip("<?", "?>") || skip("<!--", "-->")) continue;
      if (xml_.substr(at_).starts_with("<![CDATA[")) {
        read_cdata();
      } else if (xml_.substr(at_).starts_with("<!")) {
        broken("a document type");
      } else if (xml_.substr(at_).starts_with("</")) {
        at_ += 2;
        if (path_.empty() || read_name() != path_.back()) broken("an end of an element that is not open");
        expect_end();
        end_element(take);
      } else {
        if (path_.empty() && seen) broken("a second root element");
        seen = true;
        begin_element(take);
      }
    }
    if (!path_.empty() || !seen) broken("its end inside an element");
  }

 private:
  [[noreturn]] void broken(const std::string& what) const {
    fail(ExitCode::data, "{}: the answer is not the XML of an object store: {} at byte offset {}", name_,
         what, at_);
  }

  /// Position of `end` after `from`, or an error.
  size_t find(std::string_view end, size_t from) const {
    const size_t found = xml_.find(end, from);
    if (found == xml_.npos) broken(fmt::format("no {}", end));
    return found;
  }

  bool skip(std::string_view begin, std::string_view end) {
    if (!xml_.substr(at_).starts_with(begin)) return false;
    at_ = find(end, at_ + begin.size()) + end.size();
    return true;
  }

  void read_cdata() {
    const size_t begin = at_ + 9, end = find("]]>", begin);
    if (path_.empty()) broken("text outside the root element");
    texts_.back() += xml_.substr(begin, end - begin);
    at_ = end + 3;
  }

  void read_text() {
    size_t end = xml_.find('<', at_);
    if (end == xml_.npos) end = xml_.size();
    while (at_ < end) {
      const char c = xml_[at_];
      if (path_.empty()) {
        if (c != ' ' && c != '\n' && c != '\r' && c != '\t') broken("text outside the root element");
        ++at_;
      } else if (c == '&') {
        texts_.back() += entity();
      } else {
        texts_.back() += c;
        ++at_;
      }
    }
  }

  std::string entity() {
    const size_t end = xml_.substr(0, at_ + 12).find(';', at_);
    if (end == xml_.npos) broken("an entity without its end");
    std::string_view name = xml_.substr(at_ + 1, end - at_ - 1);
    std::string text;
    for (const auto& [known, value] :
         {std::pair("amp", "&"), {"lt", "<"}, {"gt", ">"}, {"quot", "\""}, {"apos", "'"}})
      if (name == known) text = value;
    if (text.empty() && name.starts_with('#')) {
      const bool hex = name.starts_with("#x");
      name.remove_prefix(hex ? 2 : 1);
      uint32_t code = 0;
      const auto [stop, error] = std::from_chars(name.data(), name.data() + name.size(), code, hex ? 16 : 10);
      if (error != std::errc() || stop != name.data() + name.size() || code == 0 || code > 0x10ffff ||
          (code >= 0xd800 && code < 0xe000))
        broken("an entity that is no character");
      text = utf8(code);
    }
    if (text.empty()) broken("an unknown entity");
    at_ = end + 1;
    return text;
  }

  static std::string utf8(uint32_t code) {
    utf8proc_uint8_t bytes[4];
    const utf8proc_ssize_t count = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code), bytes);
    return {reinterpret_cast<const char*>(bytes), static_cast<size_t>(count)};
  }

  /// A name without its namespace.
  std::string read_name() {
    const size_t end = xml_.find_first_of(" \t\r\n/>", at_);
    if (end == xml_.npos || end == at_ || end - at_ > kMaxName) broken("no name of an element");
    std::string name(xml_.substr(at_, end - at_));
    at_ = end;
    if (const size_t colon = name.rfind(':'); colon != name.npos) name.erase(0, colon + 1);
    return name;
  }

  void blanks() {
    while (at_ < xml_.size() && std::string_view(" \t\r\n").find(xml_[at_]) != std::string_view::npos) ++at_;
  }

  void expect_end() {
    blanks();
    if (at_ >= xml_.size() || xml_[at_] != '>') broken("no > of an element");
    ++at_;
  }

  template <class Take>
  void begin_element(Take take) {
    ++at_;
    if (path_.size() >= kMaxDepth) broken(fmt::format("an element nested more than {} deep", kMaxDepth));
    path_.push_back(read_name());
    texts_.emplace_back();
    // Attributes are skipped, with their quoted values.
    for (blanks(); at_ < xml_.size() && xml_[at_] != '>' && xml_[at_] != '/'; blanks()) {
      const size_t equals = xml_.find_first_of("=<>", at_);
      if (equals == xml_.npos || xml_[equals] != '=') broken("an attribute without its value");
      at_ = equals + 1;
      blanks();
      if (at_ >= xml_.size() || (xml_[at_] != '"' && xml_[at_] != '\'')) broken("a value without quotes");
      at_ = find(std::string_view(&xml_[at_], 1), at_ + 1) + 1;
    }
    const bool empty = at_ < xml_.size() && xml_[at_] == '/';
    at_ += empty;
    expect_end();
    if (empty) end_element(take);
  }

  template <class Take>
  void end_element(Take take) {
    take(path_, texts_.back());
    path_.pop_back();
    texts_.pop_back();
  }

  std::string_view xml_;
  const std::string& name_;
  size_t at_ = 0;
  std::vector<std::string> path_, texts_;
};

}  // namespace

void read_xml(
    std::string_view xml, const std::string& name,
    const std::function<void(const std::vector<std::string>& path, const std::string& text)>& take) {
  XmlReader(xml, name).read([&](const auto& path, const auto& text) { take(path, text); });
}

}  // namespace ltrain::objects
