// Profiles of cards, networks and trainers that are compiled in: one YAML file each in
// runtime/machines/devices, networks and trainers.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "runtime/machines/device_profile.h"

namespace ltrain {

using DeviceHandle = std::shared_ptr<const DeviceProfile>;

/// Sorted by name.
const std::vector<DeviceHandle>& builtin_devices();
const std::vector<NetworkProfile>& builtin_networks();

/// Finds a profile by name or alias, ignoring case; null: none.
DeviceHandle find_builtin_device(const std::string& name);
const NetworkProfile* find_builtin_network(const std::string& name);
/// Finds a card by the name that a driver reports ("NVIDIA H100 80GB HBM3"): the card with the most driver
/// words, all of which must be in the name; null: none.
DeviceHandle device_of_driver(const std::string& driver_name);
std::vector<std::string> builtin_network_names();

/// Entries of the file that CMake generates from the YAML files.
struct EmbeddedFile {
  const char* name;
  const char* text;
};
extern const std::vector<EmbeddedFile> kEmbeddedDevices, kEmbeddedNetworks, kEmbeddedTrainers;
/// Recipes of published models (recipes/models).
extern const std::vector<EmbeddedFile> kEmbeddedRecipes;

}  // namespace ltrain
