// What NVIDIA's management library tells about a card, where it is installed.
#pragma once
#include <string>

namespace ltrain::cuda {

/// "\nprocess 4711 holds 12345678 bytes" for each on the card of this PCI bus id, or why nobody can say.
std::string processes_on(const char* bus_id);

}  // namespace ltrain::cuda
