// Profile of a kind of card and of networks between such cards: rates by the shape and size of the work, as
// in profile files (docs/machines.md). It prices plans for machines other than this one (device_cost.h).
#pragma once
#include <map>
#include <string>
#include <vector>

#include "runtime/machines/figures.h"

namespace ltrain {

/// Links between ranks, from the innermost level (NVLink) to the outermost (between sites).
struct NetworkLevel {
  std::string name;
  int64_t ranks = 0;        ///< ranks joined by it; 0: all, or a node for a card's links
  int64_t parts = 1;        ///< with ranks of 0: number of equal parts of all ranks, each joined by it
  Figure seconds;           ///< time of one message between two ranks
  Figure bytes_per_second;  ///< rate of a link in one direction
  Figure sustained;         ///< share of the rate that a large collective reaches
  /// Ranks that share a link and send at the same time; 0: all ranks of the inner level.
  int64_t ranks_a_link = 1;
  /// Bus bandwidth of an all-reduce over all ranks of the level, by bytes (nccl-tests' busbw).
  Curve all_reduce;
};

struct NetworkProfile {
  std::string name, text;  ///< text: description for people
  std::vector<NetworkLevel> levels;
};

/// Tile of a matmul. A matmul is a grid of tiles, and as many run at once as there are units.
struct MatmulTile {
  int64_t rows = 0, columns = 0;
  double share = 1;  ///< share of the sustained rate with such tiles
};

struct MatmulRates {
  std::map<std::string, Figure> peak;  ///< FLOP/s by "bf16", "f16", "f32", "tf32", "f64", "fp8"
  Figure sustained;                    ///< share of the peak reached by large matmuls of random data
  Figure units;                        ///< units that compute a tile each (SMs); not given: a roofline
  std::vector<MatmulTile> tiles;
  Figure tile_fill;       ///< overhead of a tile, in elements of the contraction
  Figure sparse_speedup;  ///< CPU: MachineProfile::sparse_matmul_speedup
};

struct AttentionRates {
  /// Share of the matmul peak by head dim, for long sequences. Backward: kernels with five matmuls.
  /// `deterministic_backward`: cuDNN's deterministic kernel; not given: as ltrain's own.
  Curve forward, backward, deterministic_backward;
  /// Sequence length in tokens at which half of that share is reached.
  Figure half_length, deterministic_backward_half_length;
};

struct DeviceProfile {
  std::string name, text, file;      ///< text: description for people
  std::vector<std::string> aliases;  ///< other names for --profile
  std::vector<std::string> driver;   ///< words that must all be in the name reported by its driver
  /// Machine in which the card is sold, and the name of its built-in network.
  std::string node, network;
  int64_t cards_a_node = 1;
  int64_t cores_a_node = 0;        ///< CPU cores of that machine; 0: unknown
  int64_t compute_capability = 0;  ///< NVIDIA's number, 90 for sm_90; 0: another vendor, or unknown
  bool cpu = false;                ///< a "card" is a core
  Figure memory_bytes, memory_bytes_per_second, memory_sustained;
  Figure half_access_bytes;  ///< bytes of an op at which half of the rate is reached
  MatmulRates matmul;
  AttentionRates attention;
  Figure launch_seconds;  ///< time from one op to the next
  Figure under_load;      ///< share of the compute rates that holds through a step under the power limit
  Figure overlap;         ///< share of a collective's time that it takes from concurrent compute
  /// Trainer whose steps are priced (trainer_profile.h), and its figures. Empty or not given: ltrain itself.
  std::string trainer;
  Figure trainer_matmul;         ///< share of the matmul rate
  Figure trainer_traffic;        ///< bytes of ops other than matmuls and attention, relative to ltrain's
  Figure host_bytes_per_second;  ///< to host memory, in one direction
  Figure host_memory_bytes_per_second;  ///< rate of a node's host memory, by its cores
  Figure power_watts;                   ///< power limit
  std::vector<NetworkLevel> links;      ///< inside a node: the innermost levels
};

}  // namespace ltrain
