// Profile files of cards and of networks (docs/machines.md).
#pragma once
#include <string>

#include "runtime/machines/checked_yaml.h"
#include "runtime/machines/device_profile.h"

namespace ltrain {

inline constexpr const char* kDeviceFormat = "ltrain.device.v1";
inline constexpr const char* kNetworkFormat = "ltrain.network.v1";

/// Parses a profile. Throws Error (usage) with every problem found: location, key, value, rule, and valid
/// values. `name` stands for the file in messages.
DeviceProfile parse_device_profile(const std::string& text, const std::string& name);
NetworkProfile parse_network_profile(const std::string& text, const std::string& name);
/// YAML that parse_device_profile reads back to the same figures, and a cluster file with these levels.
std::string device_profile_yaml(const DeviceProfile& device);
std::string cluster_yaml(const std::string& name, const std::string& profile, int nodes, int64_t cards_a_node,
                         const std::vector<NetworkLevel>& levels);
/// Reads the list of levels under `key`.
std::vector<NetworkLevel> read_levels(CheckedMap& map, const std::string& key);
/// Reads `forward`, `backward` and `half_length`, and reports other keys.
AttentionRates read_attention(CheckedMap& map);
/// Reads the section `references`, which figures of the file may name.
void read_references(CheckedFile& file, CheckedMap& map);

/// Parses a file of one format with read(map, profile). Throws all problems at the end.
template <class Profile, class Read>
Profile parse_profile(const std::string& text, const std::string& name, const char* format,
                      const Read& read) {
  const recipe::Node root = recipe::parse_yaml(text, name);
  CheckedFile file;
  Profile profile;
  CheckedMap m(file, root, "");
  if (root.kind == recipe::Node::map) {
    m.choice("format", {format});
    read_references(file, m);
    read(m, profile);
    m.finish();
  }
  file.problems.raise_if_any(name);
  return profile;
}

}  // namespace ltrain
