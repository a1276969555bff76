// Topology of a host from /sys: NUMA nodes with their cores, and PCI devices below their bridges. A GPU is
// fed by the cores and network cards on its side of the machine.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace ltrain {

struct NumaNode {
  int id = 0;
  std::vector<int> cores;
};

/// Location of a PCI device. Fields that the system does not report keep these defaults.
struct PciDevice {
  std::string bus_id;      ///< "0000:17:00.0"
  std::string path;        ///< path in /sys through the bridges above it
  int numa = -1;           ///< -1: none or unknown
  std::vector<int> cores;  ///< nearby cores; empty: unknown
};

struct NetworkCard {
  std::string name;  ///< "mlx5_0" for RDMA, else the name of the interface
  PciDevice device;
};

// `root`: prefix of /sys, for tests.
std::vector<NumaNode> numa_nodes(const std::string& root = "");
PciDevice pci_device(std::string bus_id, const std::string& root = "");
/// Network cards on a bus. An interface of an RDMA card is reported by the name of that card.
std::vector<NetworkCard> network_cards(const std::string& root = "");

/// Names of the cards that share the most bridges with `device`, else of the cards on its NUMA node, else
/// none.
std::vector<std::string> nearest_cards(const PciDevice& device, const std::vector<NetworkCard>& cards);

/// Conversion of core lists: "0-3,8" of the kernel to numbers, and back. Parsing stops at invalid text.
std::vector<int> cores_of(std::string_view text);
std::string cores_text(const std::vector<int>& cores);

/// Groups of devices joined by direct links (NVLink). linked[a][b]: a link joins a and b.
std::vector<std::vector<int>> link_groups(const std::vector<std::vector<bool>>& linked);
/// Order in which local ranks take devices. Devices of one link group follow each other, NUMA node by NUMA
/// node, so that neighbouring ranks, which tensor parallelism joins, have the fastest connection.
std::vector<int> device_order(const std::vector<std::vector<bool>>& linked, const std::vector<int>& numa);

/// Binds the calling thread, and threads that it starts later, to those of `cores` that it may use. Returns
/// them; empty: there are none, and nothing changed.
std::vector<int> bind_to_cores(const std::vector<int>& cores);

}  // namespace ltrain
