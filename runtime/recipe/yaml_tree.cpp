#include "runtime/recipe/yaml_tree.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <map>
#include <sstream>

#include "base/error.h"
#include "base/printable.h"
#include "runtime/recipe/read_file.h"
#include "runtime/recipe/yaml_hints.h"

namespace ltrain::recipe {

std::string Place::text() const {
  const std::string name = printable(source);
  return line > 0 ? fmt::format("{}:{}:{}", name, line, column) : name;
}

namespace {

constexpr int64_t kMaxNodes = 100000;  // an alias counts each time it is used
constexpr size_t kMaxDepth = 64;

int64_t count_nodes(const Node& node) {
  int64_t n = 1;
  for (const Node& item : node.items) n += count_nodes(item);
  for (const Node::Entry& entry : node.entries) n += 1 + count_nodes(entry.value);
  return n;
}

class TreeBuilder final : public YAML::EventHandler {
 public:
  explicit TreeBuilder(std::string source) : source_(std::move(source)) {}

  Node root;

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    add(node_at(mark, Node::null), anchor);
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    auto it = anchors_.find(anchor);
    if (it == anchors_.end())
      fail(ExitCode::usage, "{}: an alias to the node that contains it", place_of(mark).text());
    used_ += count_nodes(it->second);
    check_budget(mark);
    Node copy = it->second;
    add(std::move(copy), 0);
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    check_tag(mark, tag);
    Node node = node_at(mark, Node::scalar);
    node.text = value;
    node.quoted = tag == "!";
    add(std::move(node), anchor);
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    check_tag(mark, tag);
    open(node_at(mark, Node::list), anchor);
  }
  void OnSequenceEnd() override { close(); }

  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    check_tag(mark, tag);
    open(node_at(mark, Node::map), anchor);
  }
  void OnMapEnd() override { close(); }

 private:
  struct Open {
    Node node;
    YAML::anchor_t anchor;
    bool has_key = false;
    std::string key;
    Place key_place;
  };

  Place place_of(const YAML::Mark& mark) const { return {source_, mark.line + 1, mark.column + 1}; }

  Node node_at(const YAML::Mark& mark, Node::Kind kind) {
    ++used_;
    check_budget(mark);
    Node node;
    node.kind = kind;
    node.place = place_of(mark);
    return node;
  }

  void check_budget(const YAML::Mark& mark) const {
    if (used_ > kMaxNodes)
      fail(ExitCode::usage, "{}: more than {} nodes once aliases are expanded", place_of(mark).text(),
           kMaxNodes);
  }

  void check_tag(const YAML::Mark& mark, const std::string& tag) const {
    if (!tag.empty() && tag != "?" && tag != "!")
      fail(ExitCode::usage, "{}: tag `{}`: a recipe has no tags; each key has its type",
           place_of(mark).text(), printable(tag, 100));
  }

  void open(Node node, YAML::anchor_t anchor) {
    if (stack_.size() >= kMaxDepth)
      fail(ExitCode::usage, "{}: nested deeper than {} levels", node.place.text(), kMaxDepth);
    stack_.push_back({std::move(node), anchor, false, {}, {}});
  }

  void close() {
    Open top = std::move(stack_.back());
    stack_.pop_back();
    add(std::move(top.node), top.anchor);
  }

  void add(Node node, YAML::anchor_t anchor) {
    if (anchor) anchors_[anchor] = node;
    if (stack_.empty()) {
      root = std::move(node);
      return;
    }
    Open& top = stack_.back();
    if (top.node.kind == Node::list) {
      top.node.items.push_back(std::move(node));
    } else if (!top.has_key) {
      if (node.kind != Node::scalar && node.kind != Node::null)
        fail(ExitCode::usage, "{}: a key is a word, not a list or a map", node.place.text());
      top.has_key = true;
      top.key = node.kind == Node::null ? "null" : node.text;
      top.key_place = node.place;
    } else {
      top.has_key = false;
      top.node.entries.push_back({top.key, top.key_place, std::move(node)});
    }
  }

  std::string source_;
  std::vector<Open> stack_;
  std::map<YAML::anchor_t, Node> anchors_;
  int64_t used_ = 0;
};

}  // namespace

Node parse_yaml(std::string_view text, const std::string& source) {
  if (text.size() > kMaxFileBytes)
    fail(ExitCode::usage, "{}: {} bytes; a recipe has at most {}", printable(source), text.size(),
         kMaxFileBytes);
  if (text.find('\0') != std::string_view::npos)
    fail(ExitCode::usage, "{}: has a NUL byte; a recipe is YAML text", printable(source));
  refuse_blanks(text, source);
  TreeBuilder builder(source);
  builder.root.place = {source, 1, 1};
  try {
    std::istringstream in{std::string(text)};
    YAML::Parser parser(in);
    if (parser.HandleNextDocument(builder)) {
      TreeBuilder second(source);
      if (parser.HandleNextDocument(second))
        fail(ExitCode::usage, "{}: a second YAML document begins here; a recipe is one",
             second.root.place.text());
    }
  } catch (const YAML::Exception& e) {
    explain_syntax(text, source);
    fail(ExitCode::usage, "{}: not YAML: {}", Place{source, e.mark.line + 1, e.mark.column + 1}.text(),
         printable(e.msg, 200));
  }
  return std::move(builder.root);
}

std::string show(const Node& node) {
  constexpr size_t kLongest = 48;
  std::string s;
  switch (node.kind) {
    case Node::null:
      return "null";
    case Node::scalar:
      s = node.text;
      break;
    case Node::list:
      for (const Node& item : node.items) {
        s += (s.empty() ? "" : ", ") + show(item);
        if (s.size() > kLongest) break;
      }
      break;
    case Node::map:
      for (const Node::Entry& entry : node.entries) {
        s += (s.empty() ? "" : ", ") + entry.key + ": " + show(entry.value);
        if (s.size() > kLongest) break;
      }
      break;
  }
  s = printable(s, 4 * kLongest);
  if (s.size() > kLongest) {
    size_t end = kLongest;
    while (end > 0 && (static_cast<unsigned char>(s[end]) & 0xc0) == 0x80)
      --end;  // keep UTF-8 characters intact
    s = s.substr(0, end) + "...";
  }
  if (node.kind == Node::list) return "[" + s + "]";
  if (node.kind == Node::map) return "{" + s + "}";
  return node.quoted ? "\"" + s + "\"" : s;
}

}  // namespace ltrain::recipe
