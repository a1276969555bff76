#include "runtime/machines/cluster.h"

#include <filesystem>

#include "base/error.h"
#include "base/nearest_word.h"
#include "runtime/machines/checked_yaml.h"
#include "runtime/machines/profile_file.h"

namespace ltrain {
namespace {

/// Reads the profile named under `profile`: a built-in card, or a file next to the cluster file.
MachineProfile profile_of(CheckedMap& m, const std::string& cluster_file) {
  const std::string named = m.text("profile");
  if (named.empty()) return {};
  const std::filesystem::path beside = std::filesystem::path(cluster_file).parent_path() / named;
  std::error_code ignored;
  try {
    MachineProfile p = find_profile(std::filesystem::exists(beside, ignored) ? beside.string() : named);
    if (p.nodes > 0) m.wrong("profile", "must be a profile of a card, is a cluster");
    return p;
  } catch (const Error& e) {
    m.wrong("profile", e.what());
  }
  return {};
}

void read_network(CheckedMap& m, MachineProfile& p, const std::string& file) {
  const bool named = m.has("network"), own = m.has("levels");
  const std::string name = m.text("network", false);
  std::vector<NetworkLevel> levels = read_levels(m, "levels");
  if (named == own) {
    m.wrong(named ? "levels" : "network", "set one of network and levels");
  } else if (own) {
    set_network(p, levels, fmt::format("by {}", file));
  } else if (const NetworkProfile* network = find_builtin_network(name)) {
    set_network(p, network->levels, fmt::format("{}, by {}", network->text, file));
  } else {
    const std::string near = nearest_word(name, builtin_network_names());
    m.wrong("network", fmt::format("must be one of {}{}", fmt::join(builtin_network_names(), ", "),
                                   near.empty() ? "" : "; nearest valid value: " + near));
  }
  p.network_given = own || named;
}

}  // namespace

bool is_cluster_file(const std::string& text) { return text.find(kClusterFormat) != std::string::npos; }

MachineProfile parse_cluster(const std::string& text, const std::string& name) {
  const recipe::Node root = recipe::parse_yaml(text, name);
  CheckedFile file;
  CheckedMap m(file, root, "");
  MachineProfile p;
  if (root.kind == recipe::Node::map) {
    m.choice("format", {kClusterFormat});
    read_references(file, m);
    const std::string cluster = m.text("name");
    p = profile_of(m, name);
    p.nodes = static_cast<int>(m.whole("nodes", 1, 1 << 20, 1));
    p.cards_per_node = static_cast<int>(m.whole("gpus_per_node", 1, 1 << 16, std::max(1, p.cards_per_node)));
    p.cores_per_node = static_cast<int>(m.whole("cores_per_node", 1, 1 << 20, p.cores_per_node));
    read_network(m, p, name);
    p.source = fmt::format("{}, {} node{} of {} {}", cluster, p.nodes, p.nodes == 1 ? "" : "s",
                           p.cards_per_node, p.card);
    p.node_source = "by " + name;
    m.finish();
  }
  file.problems.raise_if_any(name);
  return p;
}

}  // namespace ltrain
