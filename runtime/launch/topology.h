// What sits where in a host, from /sys: NUMA nodes with their cores, and PCI devices below their bridges. A
// GPU is fed by the cores and network cards on its side of the machine.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace ltrain {

struct NumaNode {
  int id = 0;
  std::vector<int> cores;
};

/// Where a PCI device sits. What the system does not say stays as it is here.
struct PciDevice {
  std::string bus_id;      ///< "0000:17:00.0"
  std::string path;        ///< of /sys, through the bridges above it
  int numa = -1;           ///< -1: none, or not known
  std::vector<int> cores;  ///< near it; empty: not known
};

struct NetworkCard {
  std::string name;  ///< "mlx5_0" of RDMA, else the interface's
  PciDevice device;
};

// `root`: what /sys is below, for tests.
std::vector<NumaNode> numa_nodes(const std::string& root = "");
PciDevice pci_device(std::string bus_id, const std::string& root = "");
/// Those that sit on a bus; an interface that belongs to an RDMA card is told by that card's name.
std::vector<NetworkCard> network_cards(const std::string& root = "");

/// Names of those with the most bridges in common with `device`; of its NUMA node where none has any; else
/// none.
std::vector<std::string> nearest_cards(const PciDevice& device, const std::vector<NetworkCard>& cards);

/// "0-3,8" of the kernel as numbers, which end where the text is no such list; and back.
std::vector<int> cores_of(std::string_view text);
std::string cores_text(const std::vector<int>& cores);

/// Devices that reach each other by links of their own (NVLink), as groups; linked[a][b]: a link joins them.
std::vector<std::vector<int>> link_groups(const std::vector<std::vector<bool>>& linked);
/// In which order local ranks take devices: those of one group of links follow each other, NUMA node by NUMA
/// node, so that neighbouring ranks, which tensor parallelism joins, are the fastest to reach.
std::vector<int> device_order(const std::vector<std::vector<bool>>& linked, const std::vector<int>& numa);

/// The calling thread, and those that it starts from now on, run on those of `cores` that it may use already.
/// Those; empty where there are none, and nothing changed.
std::vector<int> bind_to_cores(const std::vector<int>& cores);

}  // namespace ltrain
