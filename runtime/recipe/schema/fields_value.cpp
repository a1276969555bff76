#include "runtime/recipe/schema/fields_value.h"

#include <algorithm>

#include "base/nearest_word.h"
#include "base/printable.h"
#include "runtime/chat/conversation.h"
#include "runtime/recipe/schema/key_makers.h"

namespace ltrain::recipe {

ValueError read_fields(const Node& node, std::map<std::string, std::string>& out) {
  const std::vector<std::string>& standard = chat::standard_fields();
  if (node.kind != Node::map || node.entries.empty())
    return {"needs names in the file by their standard names: {messages: dialog, role: speaker}", node.place};
  for (const Node::Entry& e : node.entries) {
    if (std::find(standard.begin(), standard.end(), e.key) == standard.end()) {
      const std::string near = nearest_word(e.key, standard);
      return {
          fmt::format("has an unknown name `{}`; {}", printable(e.key, 60),
                      near.empty() ? "standard names are " + join(standard) : "did you mean `" + near + "`?"),
          e.place};
    }
    std::string name;
    if (const std::string wrong = read_text(e.value, name); !wrong.empty())
      return {e.key + " " + wrong, e.value.place};
    if (!out.emplace(e.key, std::move(name)).second) return {fmt::format("has `{}` twice", e.key), e.place};
  }
  return "";
}

std::string write_fields(const std::map<std::string, std::string>& fields, bool json) {
  std::string all;
  for (const auto& [standard, name] : fields)
    all +=
        fmt::format("{}{}: {}", all.empty() ? "" : ", ", write_text(standard, json), write_text(name, json));
  return "{" + all + "}";
}

}  // namespace ltrain::recipe
