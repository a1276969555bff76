#include "runtime/machines/cluster.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/nearest_word.h"
#include "runtime/machines/checked_yaml.h"
#include "runtime/machines/profile_file.h"

namespace ltrain {
namespace {

/// Reads a profile that `key` names: a built-in card, or a file next to the cluster file.
MachineProfile profile_of(CheckedMap& m, const std::string& key, const std::string& named,
                          const std::string& cluster_file) {
  if (named.empty()) return {};
  const std::filesystem::path beside = std::filesystem::path(cluster_file).parent_path() / named;
  std::error_code ignored;
  try {
    MachineProfile p = find_profile(std::filesystem::exists(beside, ignored) ? beside.string() : named);
    if (p.nodes > 0) m.wrong(key, "must be a profile of a card, is a cluster");
    return p;
  } catch (const Error& e) {
    m.wrong(key, e.what());
  }
  return {};
}

/// Divides the outermost level of a network by `sites`, and adds the level of `site_links` around it.
std::vector<NetworkLevel> with_sites(CheckedMap& m, std::vector<NetworkLevel> levels, int nodes, int sites) {
  const std::vector<NetworkLevel> links = read_levels(m, "site_links");
  if (links.size() != (sites > 1 ? 1 : 0))
    m.wrong("site_links", fmt::format("must have {} level{} for sites = {}, has {}", sites > 1 ? 1 : 0,
                                      sites > 1 ? "" : "s", sites, links.size()));
  if (nodes % sites != 0) m.wrong("sites", fmt::format("must divide nodes = {}, is {}", nodes, sites));
  if (sites == 1 || links.empty() || levels.empty()) return levels;
  if (levels.back().ranks > 0 ||
      std::ranges::any_of(levels, [](const NetworkLevel& l) { return l.parts > 1; }))
    m.wrong("sites", "must be 1 where the network has parts, or its last level does not join all ranks");
  if (links[0].ranks > 0 || links[0].parts > 1)
    m.wrong("site_links", "must join all ranks: leave out ranks and parts");
  levels.back().parts = sites;
  levels.push_back(links[0]);
  return levels;
}

void read_network(CheckedMap& m, MachineProfile& p, const std::string& file) {
  const bool named = m.has("network"), own = m.has("levels");
  const std::string name = m.text("network", false);
  std::vector<NetworkLevel> levels = read_levels(m, "levels");
  if (named == own) {
    m.wrong(named ? "levels" : "network", "set one of network and levels");
  } else if (own) {
    set_network(p, with_sites(m, levels, p.nodes, p.sites), fmt::format("by {}", file));
  } else if (const NetworkProfile* network = find_builtin_network(name)) {
    set_network(p, with_sites(m, network->levels, p.nodes, p.sites),
                fmt::format("{}, by {}", network->text, file));
  } else {
    const std::string near = nearest_word(name, builtin_network_names());
    m.wrong("network", fmt::format("must be one of {}{}", fmt::join(builtin_network_names(), ", "),
                                   near.empty() ? "" : "; nearest valid value: " + near));
  }
  p.network_given = own || named;
}

/// Reads the profile of each site. All have the networks of the cluster.
void read_sites(CheckedMap& m, MachineProfile& p, const std::vector<std::string>& cards,
                const std::string& file) {
  const std::string key = "site_profiles";
  if (static_cast<int>(cards.size()) != p.sites)
    return m.wrong(key, fmt::format("must have one for each of sites = {}, has {}", p.sites, cards.size()));
  const size_t links = p.device ? p.device->links.size() : 0;
  const std::vector<NetworkLevel> network(p.levels.begin() + static_cast<std::ptrdiff_t>(links),
                                          p.levels.end());
  std::vector<MachineProfile> sites;
  for (const std::string& card : cards) {
    MachineProfile site = profile_of(m, key, card, file);
    if ((site.device_bytes > 0) != (p.device_bytes > 0))
      m.wrong(key, "must be of cards alone, or of CPUs alone");
    set_network(site, network, p.network_source);
    site.nodes = p.nodes, site.network_given = p.network_given;
    site.cards_per_node = p.cards_per_node, site.cores_per_node = p.cores_per_node;
    sites.push_back(std::move(site));
  }
  for (const MachineProfile& site : sites) p.device_bytes = std::min(p.device_bytes, site.device_bytes);
  p.site_profiles = std::move(sites);
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
    const bool mixed = m.has("site_profiles");
    if (mixed && m.has("profile")) m.wrong("profile", "set one of profile and site_profiles");
    const std::vector<std::string> cards = m.words("site_profiles");
    p = profile_of(m, "profile", mixed ? cards.empty() ? "" : cards[0] : m.text("profile"), name);
    p.nodes = static_cast<int>(m.whole("nodes", 1, 1 << 20, 1));
    p.cards_per_node = static_cast<int>(m.whole("gpus_per_node", 1, 1 << 16, std::max(1, p.cards_per_node)));
    p.cores_per_node = static_cast<int>(m.whole("cores_per_node", 1, 1 << 20, p.cores_per_node));
    p.sites = static_cast<int>(m.whole("sites", 1, 1 << 20, 1));
    read_network(m, p, name);
    for (const NetworkLevel& l : p.levels) p.sites = std::max(p.sites, static_cast<int>(l.parts));
    if (mixed) read_sites(m, p, cards, name);
    const std::string card = mixed ? fmt::format("{}", fmt::join(cards, ", ")) : p.card;
    p.source = fmt::format("{}, {} node{} of {} {}", cluster, p.nodes, p.nodes == 1 ? "" : "s",
                           p.cards_per_node, card);
    p.node_source = "by " + name;
    m.finish();
  }
  file.problems.raise_if_any(name);
  return p;
}

}  // namespace ltrain
