// Keys of matrices that are two of four.
#include "runtime/recipe/key_makers.h"
#include "runtime/recipe/schema_parts.h"

namespace ltrain::recipe {
namespace {

Key patterns(std::string path) {
  Key key;
  key.path = std::move(path);
  key.type = "list of patterns";
  key.help =
      "Matrices of linear layers, by patterns of whole names, * for any characters, ? for one. Of each four "
      "neighbours of a row the two of largest magnitude stay, the others are zero.";
  key.set = [](const Key&, Recipe& r, const Node& node) -> std::string {
    if (node.kind != Node::list) return "needs a list of patterns: [\"*.mlp.*\"]";
    std::vector<std::string> list;
    for (size_t i = 0; i < node.items.size(); ++i) {
      std::string pattern;
      if (std::string wrong = read_text(node.items[i], pattern); !wrong.empty())
        return fmt::format("pattern {} {}", i + 1, wrong);
      list.push_back(std::move(pattern));
    }
    r.sparsity.match = std::move(list);
    return "";
  };
  key.write = [](const Key&, const Recipe& r, bool json) {
    std::string s;
    for (const std::string& m : r.sparsity.match) s += (s.empty() ? "" : ", ") + write_text(m, json);
    return "[" + s + "]";
  };
  return key;
}

}  // namespace

void add_sparsity_keys(std::vector<Key>& t) {
  t.push_back(patterns("sparsity.match"));
  Key at = integer("sparsity.at_step", LT_MEMBER(sparsity.at_step),
                   "Update, from 1, before which they are chosen, and from which on the others stay zero.")
               .between(1, kMaxSteps);
  at.when("sparsity.match", true, [](const Recipe& r) { return r.sparsity.on(); });
  t.push_back(std::move(at));
}

}  // namespace ltrain::recipe
