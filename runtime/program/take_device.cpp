#include "runtime/program/take_device.h"

#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "kernels/tensor/device.h"
#include "runtime/launch/topology.h"

namespace ltrain {
namespace {

bool binds() {
  const char* given = std::getenv("LTRAIN_CPU_AFFINITY");
  const std::string_view choice = given ? given : "auto";
  if (choice != "auto" && choice != "off")
    fail(ExitCode::usage, "LTRAIN_CPU_AFFINITY={}: must be auto or off", choice);
  return choice == "auto";
}

}  // namespace

TakenDevice take_device(DeviceKind device, int local_rank, const std::string& root) {
  const bool bind = binds();
  if (device == DeviceKind::cpu) return {};
  const std::vector<std::string> places = device_places(device);
  int index = local_rank % device_count(device);
  if (places.empty()) {
    use_device(device, index);
    return {};
  }
  std::vector<int> numa;
  for (const std::string& place : places) numa.push_back(pci_device(place, root).numa);
  index = device_order(device_links(device), numa)[static_cast<size_t>(index)];
  use_device(device, index);
  const std::string& place = places[static_cast<size_t>(index)];
  const PciDevice card = pci_device(place, root);
  TakenDevice taken{"GPU " + card.bus_id, place};
  if (!bind) return taken;
  if (const std::vector<int> cores = bind_to_cores(card.cores); !cores.empty())
    taken.text += fmt::format(", cores {}{}", cores_text(cores),
                              card.numa < 0 ? "" : fmt::format(" of NUMA node {}", card.numa));
  return taken;
}

}  // namespace ltrain
