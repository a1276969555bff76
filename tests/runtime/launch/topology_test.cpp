// Layout of a host, from a /sys that the test writes, with two sockets.
#include <sched.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <thread>

#include "runtime/launch/topology.h"
#include "tests/support/temporary_folder.h"

using namespace ltrain;

namespace {

namespace fs = std::filesystem;
using Numbers = std::vector<int>;
using Names = std::vector<std::string>;

class FakeSys {
 public:
  explicit FakeSys(const std::string& root) : root_(root) {}
  void write(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text << "\n";
  }
  /// A PCI device below `bridges`, on a NUMA node.
  void pci(const std::string& bridges, const std::string& id, const std::string& numa,
           const std::string& cores) {
    const std::string path = "/sys/devices/" + bridges + "/" + id;
    write(path + "/numa_node", numa);
    write(path + "/local_cpulist", cores);
    link("/sys/bus/pci/devices/" + id, path);
  }
  void link(const std::string& from, const std::string& to) {
    fs::create_directories(fs::path(root_ + from).parent_path());
    fs::create_symlink(root_ + to, root_ + from);
  }

 private:
  std::string root_;
};

/// Two sides: a switch with a GPU and an RDMA card on each; a management card beside the second's bridges.
void two_sides(FakeSys& sys) {
  sys.write("/sys/devices/system/node/online", "0-1");
  sys.write("/sys/devices/system/node/node0/cpulist", "0-3,8-11");
  sys.write("/sys/devices/system/node/node1/cpulist", "4-7,12-15");
  sys.pci("pci0000:15/0000:15:01.0/0000:16:00.0", "0000:18:00.0", "0", "0-3,8-11");
  sys.pci("pci0000:15/0000:15:01.0/0000:16:00.0", "0000:1a:00.0", "0", "0-3,8-11");
  sys.pci("pci0000:c0/0000:c0:01.0/0000:c1:00.0", "0000:c3:00.0", "1", "4-7,12-15");
  sys.pci("pci0000:c0/0000:c0:01.0/0000:c1:00.0", "0000:c5:00.0", "1", "4-7,12-15");
  sys.pci("pci0000:c0/0000:c0:07.0", "0000:cf:00.0", "1", "4-7,12-15");
  sys.link("/sys/class/infiniband/mlx5_0/device",
           "/sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:1a:00.0");
  sys.link("/sys/class/infiniband/mlx5_1/device",
           "/sys/devices/pci0000:c0/0000:c0:01.0/0000:c1:00.0/0000:c5:00.0");
  // The same card as an interface; one that is behind a virtual device; one of no bus.
  sys.link("/sys/class/net/ib0/device", "/sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:1a:00.0");
  sys.write("/sys/devices/pci0000:c0/0000:c0:07.0/0000:cf:00.0/virtio2/type", "1");
  sys.link("/sys/class/net/eth0/device", "/sys/devices/pci0000:c0/0000:c0:07.0/0000:cf:00.0/virtio2");
  sys.write("/sys/devices/virtual/net/lo/type", "772");
  sys.link("/sys/class/net/lo", "/sys/devices/virtual/net/lo");
}

}  // namespace

TEST_CASE("lists of cores as the kernel writes them, and back") {
  CHECK(cores_of("0-3,8,10-11") == Numbers{0, 1, 2, 3, 8, 10, 11});
  CHECK(cores_of("5") == Numbers{5});
  CHECK(cores_of("").empty());
  for (const char* text : {"0-3,8,10-11", "5", "0-127"}) CHECK(cores_text(cores_of(text)) == text);
  // A malformed list ends at its first error, and never has an unbounded number of cores.
  CHECK(cores_of("1,x") == Numbers{1});
  CHECK(cores_of("0-4000000000").empty());
  CHECK(cores_of("7-3").empty());
  CHECK(cores_of("-1").empty());
}

TEST_CASE("a GPU's NUMA node, cores and nearest network card are read from /sys") {
  const test::TemporaryFolder root;
  FakeSys sys(root.path());
  two_sides(sys);
  const std::vector<NumaNode> nodes = numa_nodes(root.path());
  REQUIRE(nodes.size() == 2);
  CHECK(nodes[1].cores == cores_of("4-7,12-15"));
  const PciDevice first = pci_device("0000:18:00.0", root.path()),
                  second = pci_device("0000:C3:00.0", root.path());
  CHECK(first.numa == 0);
  CHECK(cores_text(first.cores) == "0-3,8-11");
  CHECK(second.bus_id == "0000:c3:00.0");  // CUDA writes capitals, the system does not
  CHECK(second.numa == 1);
  const std::vector<NetworkCard> cards = network_cards(root.path());
  Names names;
  for (const NetworkCard& c : cards) names.push_back(c.name);
  CHECK(names == Names{"mlx5_0", "mlx5_1", "eth0"});  // ib0 is mlx5_0, lo sits nowhere
  CHECK(nearest_cards(first, cards) == Names{"mlx5_0"});
  CHECK(nearest_cards(second, cards) == Names{"mlx5_1"});  // eth0 shares the root alone
  const PciDevice unknown = pci_device("0000:99:00.0", root.path());
  CHECK((unknown.numa == -1 && unknown.cores.empty() && unknown.path.empty()));
  CHECK(nearest_cards(unknown, cards).empty());
}

TEST_CASE("ranks take GPUs that links join one after another") {
  // 0 and 2, 1 and 3 are pairs; of NUMA nodes 1, 0, 1, 0.
  std::vector<std::vector<bool>> pairs(4, std::vector<bool>(4));
  pairs[0][2] = pairs[2][0] = pairs[1][3] = pairs[3][1] = true;
  CHECK(link_groups(pairs) == std::vector<Numbers>{{0, 2}, {1, 3}});
  CHECK(device_order(pairs, {1, 0, 1, 0}) == Numbers{1, 3, 0, 2});
  // All joined, or none: by NUMA node, and as the driver numbers them within one.
  const std::vector<std::vector<bool>> all(4, std::vector<bool>(4, true)), none(4, std::vector<bool>(4));
  CHECK(device_order(all, {0, 0, 1, 1}) == Numbers{0, 1, 2, 3});
  CHECK(device_order(none, {1, 0, 1, 0}) == Numbers{1, 3, 0, 2});
  CHECK(device_order({}, {}).empty());
}

TEST_CASE("a thread is bound to those of the cores that it may use, and what it starts with it") {
  cpu_set_t may, same;
  int asked = -1, core = 0, seen = -1;
  Numbers of_none, of_unknown, of_one;
  std::thread([&] {  // a thread of its own, so that the test's other threads keep their cores
    asked = sched_getaffinity(0, sizeof may, &may);
    while (core < CPU_SETSIZE - 1 && !CPU_ISSET(core, &may)) ++core;
    of_none = bind_to_cores({});
    of_unknown = bind_to_cores({CPU_SETSIZE + 5, -1});
    asked |= sched_getaffinity(0, sizeof same, &same);
    of_one = bind_to_cores({core, CPU_SETSIZE - 1});
    std::thread([&] {
      cpu_set_t now;
      asked |= sched_getaffinity(0, sizeof now, &now);
      seen = CPU_COUNT(&now);
    }).join();
  })
      .join();
  REQUIRE(asked == 0);
  CHECK(of_none.empty());
  CHECK(of_unknown.empty());
  CHECK(CPU_EQUAL(&may, &same));
  CHECK(of_one == Numbers{core});
  CHECK(seen == 1);
}
