#include "runtime/machines/builtin_profiles.h"

#include <algorithm>
#include <cctype>
#include <deque>
#include <mutex>
#include <string_view>

#include "runtime/machines/profile_file.h"

namespace ltrain {
namespace {

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

/// Returns whether `text` contains `word` without adjacent letters or digits: H100 is in "NVIDIA H100 80GB
/// HBM3", but not in "h1000".
bool has_word(const std::string& text, const std::string& word) {
  const auto part = [&](size_t i) {
    return i < text.size() && std::isalnum(static_cast<unsigned char>(text[i]));
  };
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1))
    if ((at == 0 || !part(at - 1)) && !part(at + word.size())) return true;
  return false;
}

/// Parses a device at its first use, because a plan needs only one.
DeviceHandle parsed_device(size_t i) {
  struct Slot {
    std::once_flag once;
    DeviceHandle device;
  };
  static std::deque<Slot> slots(kEmbeddedDevices.size());
  const EmbeddedFile& file = kEmbeddedDevices[i];
  std::call_once(slots[i].once, [&] {
    slots[i].device = std::make_shared<DeviceProfile>(parse_device_profile(file.text, file.name));
  });
  return slots[i].device;
}

}  // namespace

const std::vector<DeviceHandle>& builtin_devices() {
  static const std::vector<DeviceHandle> devices = [] {
    std::vector<DeviceHandle> out;
    for (size_t i = 0; i < kEmbeddedDevices.size(); ++i) out.push_back(parsed_device(i));
    return out;
  }();
  return devices;
}

const std::vector<NetworkProfile>& builtin_networks() {
  static const std::vector<NetworkProfile> networks = [] {
    std::vector<NetworkProfile> out;
    for (const EmbeddedFile& file : kEmbeddedNetworks)
      out.push_back(parse_network_profile(file.text, file.name));
    return out;
  }();
  return networks;
}

DeviceHandle find_builtin_device(const std::string& name) {
  const std::string wanted = lower(name), file = "devices/" + wanted + ".yaml";  // the card's own file
  for (size_t i = 0; i < kEmbeddedDevices.size(); ++i)
    if (file == kEmbeddedDevices[i].name && parsed_device(i)->name == wanted) return parsed_device(i);
  for (const DeviceHandle& d : builtin_devices())
    if (d->name == wanted || std::find(d->aliases.begin(), d->aliases.end(), wanted) != d->aliases.end())
      return d;
  return nullptr;
}

DeviceHandle device_of_driver(const std::string& driver_name) {
  const std::string text = lower(driver_name);
  DeviceHandle best;
  for (const DeviceHandle& d : builtin_devices()) {
    const bool all = std::all_of(d->driver.begin(), d->driver.end(),
                                 [&](const std::string& word) { return has_word(text, word); });
    if (d->driver.empty() || !all) continue;
    if (!best || d->driver.size() > best->driver.size()) best = d;
  }
  return best;
}

const NetworkProfile* find_builtin_network(const std::string& name) {
  for (const NetworkProfile& n : builtin_networks())
    if (n.name == lower(name)) return &n;
  return nullptr;
}

std::vector<std::string> builtin_network_names() {
  std::vector<std::string> names;
  for (const NetworkProfile& n : builtin_networks()) names.push_back(n.name);
  return names;
}

}  // namespace ltrain
