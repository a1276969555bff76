// The profiles of cards, networks and trainers that are compiled in: runtime/machines/devices, networks and
// trainers, a YAML file each.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "runtime/machines/device_profile.h"

namespace ltrain {

using DeviceHandle = std::shared_ptr<const DeviceProfile>;

/// By name.
const std::vector<DeviceHandle>& builtin_devices();
const std::vector<NetworkProfile>& builtin_networks();

/// By its name or an alias, in any case of letters; null where there is none.
DeviceHandle find_builtin_device(const std::string& name);
const NetworkProfile* find_builtin_network(const std::string& name);
/// Of the name that a driver gives ("NVIDIA H100 80GB HBM3"): the card all of whose words stand in it, of
/// several the one with most; null where there is none.
DeviceHandle device_of_driver(const std::string& driver_name);
std::vector<std::string> builtin_network_names();

/// In the file that CMake makes of the YAML files.
struct EmbeddedFile {
  const char* name;
  const char* text;
};
extern const std::vector<EmbeddedFile> kEmbeddedDevices, kEmbeddedNetworks, kEmbeddedTrainers;

}  // namespace ltrain
