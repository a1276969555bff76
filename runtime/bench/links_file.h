// Files of `ltrain bench --links`, and plans that are priced by them (docs/launch.md).
#pragma once
#include <string>
#include <vector>

#include "runtime/bench/links.h"
#include "runtime/machines/machine_profile.h"

namespace ltrain {

inline constexpr const char* kLinksFormat = "ltrain.links.v1";

/// Links of a job. Ranks of one host follow each other, and each host has `ranks_on_host` of them.
struct LinksFile {
  std::string file;  ///< name for messages
  DeviceKind device = DeviceKind::cpu;
  std::vector<RankLocation> ranks;
  int ranks_on_host = 1;
  std::vector<RankLink> links;
};

/// JSON of measured links, which parse_links() reads.
std::string links_file_json(const std::vector<RankLink>& links, const LinkReport& report,
                            const std::vector<RankLocation>& ranks, DeviceKind device);
/// Reads device, ranks and links; the other keys follow from them. `name` stands for the file in messages.
/// Throws Error (usage) with the key and value that are wrong.
LinksFile parse_links(const std::string& text, const std::string& name);
LinksFile read_links(const std::string& path);

/// Replaces the rate of each level of the profile whose links were measured by their median. A link is on the
/// innermost level on which the plan has its two ranks. Throws Error (usage) if another device or another
/// number of ranks per host was measured, or for a cluster with several kinds of machines.
void price_by_links(MachineProfile& profile, const LinksFile& links, DeviceKind device, int ranks_on_host);

}  // namespace ltrain
