// Topology of made-up machines, against hwloc's reading of the same /sys.
#include <sys/wait.h>

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>

#include "runtime/launch/topology.h"
#include "tests/support/outcome.h"
#include "tests/support/temporary_folder.h"

using namespace ltrain;

namespace {

namespace fs = std::filesystem;

/// Two sockets with root buses, switches below some of them, and GPUs and network cards anywhere.
class MadeUpMachine {
 public:
  MadeUpMachine(std::string root, unsigned seed) : root_(std::move(root)), random_(seed) {
    write("/proc/mounts", "");
    for (const char* list : {"online", "possible"}) {
      write(fmt::format("/sys/devices/system/node/{}", list), "0-1");
      write(fmt::format("/sys/devices/system/cpu/{}", list), "0-7");
    }
    for (int node = 0; node < 2; ++node) {
      const std::string folder = fmt::format("/sys/devices/system/node/node{}/", node);
      write(folder + "cpulist", cores(node)), write(folder + "cpumap", mask(node));
      for (int core = 4 * node; core < 4 * node + 4; ++core) {
        const std::string topology = fmt::format("/sys/devices/system/cpu/cpu{}/topology/", core);
        write(topology + "physical_package_id", std::to_string(node));
        write(topology + "core_id", std::to_string(core));
        write(topology + "package_cpus", mask(node));
        write(topology + "core_cpus", fmt::format("{:02x}", 1 << core));
      }
    }
    for (int bus = 0; bus < 4; ++bus) {  // root buses, two for each socket
      next_bus_ = bus * 0x20 + 1;
      fill(fmt::format("pci0000:{:02x}", bus * 0x20), bus * 0x20, bus / 2, 0);
    }
  }

  std::vector<std::string> gpus;

 private:
  static std::string cores(int node) { return node == 0 ? "0-3" : "4-7"; }
  static std::string mask(int node) { return node == 0 ? "0f" : "f0"; }

  void write(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text << "\n";
  }

  /// One to three devices on a bus: a switch with a bus of its own, a GPU, or a network card.
  void fill(const std::string& path, int bus, int node, int depth) {
    const int count = 1 + static_cast<int>(random_() % 3);
    for (int slot = 0; slot < count; ++slot) {
      const std::string id = fmt::format("0000:{:02x}:{:02x}.0", bus, slot);
      const unsigned kind = random_() % (depth < 2 ? 3 : 2);
      if (kind < 2) {
        add(path, id, node, kind == 0 ? "0x030200" : "0x020700", std::string(64, '\0'));
        if (kind == 0) gpus.push_back(id);
        if (kind == 1) card(path, id);
        continue;
      }
      const int below = next_bus_++;
      fill(path + "/" + id, below, node, depth + 1);
      std::string config(64, '\0');  // a bridge, with the buses above and below it
      config[0x0e] = 1, config[0x18] = static_cast<char>(bus), config[0x19] = static_cast<char>(below);
      config[0x1a] = static_cast<char>(next_bus_ - 1);
      add(path, id, node, "0x060400", config);
    }
  }

  void add(const std::string& path, const std::string& id, int node, const std::string& kind,
           const std::string& config) {
    const std::string folder = "/sys/devices/" + path + "/" + id;
    write(folder + "/class", kind), write(folder + "/vendor", "0x10de"), write(folder + "/device", "0x2330");
    write(folder + "/numa_node", std::to_string(node)), write(folder + "/local_cpulist", cores(node));
    write(folder + "/local_cpus", mask(node));
    std::ofstream(root_ + folder + "/config", std::ios::binary) << config;
    link("/sys/bus/pci/devices/" + id, folder);
  }
  /// A network card is named by its bus id.
  void card(const std::string& path, const std::string& id) {
    link("/sys/class/infiniband/" + id + "/device", "/sys/devices/" + path + "/" + id);
  }
  void link(const std::string& from, const std::string& to) {
    fs::create_directories(fs::path(root_ + from).parent_path());
    fs::create_symlink(fs::relative(root_ + to, fs::path(root_ + from).parent_path()), root_ + from);
  }

  std::string root_;
  std::mt19937 random_;
  int next_bus_ = 0;
};

/// Bus id -> its package and the bridges above it, from the outermost, as hwloc prints them.
std::map<std::string, std::vector<std::string>> read_by_hwloc(const std::string& root) {
  const std::string command =
      "HWLOC_FSROOT=" + root +
      " HWLOC_THISSYSTEM=0 HWLOC_COMPONENTS=linux,stop lstopo-no-graphics --no-collapse --whole-io -v 2>&1";
  std::map<std::string, std::vector<std::string>> devices;
  FILE* const pipe = ::popen(command.c_str(), "r");
  char line[4096];
  std::vector<std::pair<size_t, std::string>> above;  // indentation, text
  while (pipe && std::fgets(line, sizeof line, pipe)) {
    const std::string text = line;
    const size_t indentation = text.find_first_not_of(' ');
    while (!above.empty() && above.back().first >= indentation) above.pop_back();
    const size_t id = text.find("busid=");
    if (text.find("PCI L#") == indentation && id != std::string::npos) {
      std::vector<std::string>& path = devices[text.substr(id + 6, 12)];
      for (const auto& [column, name] : above)
        if (name.find("Package") == 0 || name.find("Bridge") != std::string::npos) path.push_back(name);
    }
    above.emplace_back(indentation, text.substr(indentation, text.find(')') - indentation));
  }
  if (pipe) ::pclose(pipe);
  return devices;
}

/// Cards with the most bridges in common with a device, by hwloc; without any, those of its package.
std::vector<std::string> nearest_by_hwloc(const std::map<std::string, std::vector<std::string>>& devices,
                                          const std::string& id, const std::vector<NetworkCard>& cards) {
  size_t most = 0;
  std::vector<std::string> nearest;
  for (const NetworkCard& c : cards) {
    const auto &a = devices.at(id), &b = devices.at(c.name);
    size_t common = 0;
    while (common < std::min(a.size(), b.size()) && a[common] == b[common]) ++common;
    if (common > most) most = common, nearest.clear();
    if (common == most && common > 0) nearest.push_back(c.name);
  }
  return nearest;
}

}  // namespace

TEST_CASE(
    "the NUMA node and the nearest network cards of a GPU are those that hwloc finds in the same /sys") {
  if (std::system("lstopo-no-graphics --version >/dev/null 2>&1") != 0)
    return test::skip_test("no hwloc here (lstopo-no-graphics)");
  int gpus = 0, with_cards = 0;
  for (unsigned seed = 0; seed < 10; ++seed) {
    INFO("machine " << seed);
    const test::TemporaryFolder root;
    const MadeUpMachine machine(root.path(), seed);
    const auto devices = read_by_hwloc(root.path());
    const std::vector<NetworkCard> cards = network_cards(root.path());
    for (const std::string& id : machine.gpus) {
      INFO("GPU " << id);
      REQUIRE(devices.contains(id));
      const PciDevice device = pci_device(id, root.path());
      CHECK(devices.at(id).at(0).starts_with(fmt::format("Package L#{0} (P#{0}", device.numa)));
      const std::vector<std::string> nearest = nearest_by_hwloc(devices, id, cards);
      CHECK(nearest_cards(device, cards) == nearest);
      ++gpus, with_cards += nearest.empty() ? 0 : 1;
    }
  }
  CHECK((gpus > 20 && with_cards > 15));
}
