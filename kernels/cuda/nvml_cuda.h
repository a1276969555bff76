// What NVIDIA's management library tells about a card, where it is installed.
#pragma once
#include <string>
#include <vector>

namespace ltrain::cuda {

/// "\nprocess 4711 holds 12345678 bytes" for each on the card of this PCI bus id, or why nobody can say.
std::string processes_on(const char* bus_id);

/// [a][b]: the cards of these PCI bus ids reach each other over NVLink, through switches or not. All false
/// where NVML is not installed or does not say.
std::vector<std::vector<bool>> nvlinks_between(const std::vector<std::string>& bus_ids);

}  // namespace ltrain::cuda
