// Facts about cards from NVIDIA's management library, if installed.
#pragma once
#include <string>
#include <vector>

namespace ltrain::cuda {

/// "
/// process 4711 holds 12345678 bytes" for each process on the card of this PCI bus id, or the reason why it
/// is unknown.
std::string processes_on(const char* bus_id);

/// [a][b]: NVLink connects the cards of these PCI bus ids, directly or through switches. All false if NVML is
/// missing or does not know.
std::vector<std::vector<bool>> nvlinks_between(const std::vector<std::string>& bus_ids);

}  // namespace ltrain::cuda
