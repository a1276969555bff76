// What a kind of card can do, by the shape and size of the work, and the networks between such cards: what
// profile files hold (docs/machines.md). Prices a plan for machines that are not here (device_cost.h).
#pragma once
#include <map>
#include <string>
#include <vector>

#include "runtime/machines/figures.h"

namespace ltrain {

/// Links that join ranks, from the innermost level (NVLink) to the outermost (between sites).
struct NetworkLevel {
  std::string name;
  int64_t ranks = 0;         ///< that it joins; 0: all, or of links a node's
  int64_t parts = 1;         ///< where ranks is 0: all ranks are in so many equal parts, which it joins each
  Figure seconds;            ///< of one message between two ranks
  Figure bytes_per_second;   ///< of a link, one way
  Figure sustained;          ///< share of it that a large collective reaches
  int64_t ranks_a_link = 1;  ///< that share one: they send at the same time; 0: all of the level inside
  /// Bus bandwidth of an all-reduce of all ranks of the level, by bytes (nccl-tests' busbw).
  Curve all_reduce;
};

struct NetworkProfile {
  std::string name, text;  ///< text: what it is, for people
  std::vector<NetworkLevel> levels;
};

/// Matrix products: a grid of tiles, as many at once as there are units.
struct MatmulTile {
  int64_t rows = 0, columns = 0;
  double share = 1;  ///< of the sustained rate that such tiles reach
};

struct MatmulRates {
  std::map<std::string, Figure> peak;  ///< FLOP/s by "bf16", "f16", "f32", "tf32", "f64", "fp8"
  Figure sustained;                    ///< share of the peak that large products of random data reach
  Figure units;                        ///< that compute a tile each (SMs); not given: a roofline
  std::vector<MatmulTile> tiles;
  Figure tile_fill;  ///< what a tile takes beside its products, in elements of the contraction
};

struct AttentionRates {
  /// Share of the matmul peak by width of a head, of long sequences. Backward: of kernels that compute five
  /// products. `deterministic_backward`: cuDNN's deterministic one; not given: as ltrain's own.
  Curve forward, backward, deterministic_backward;
  /// Tokens of a sequence at which half of that is reached.
  Figure half_length, deterministic_backward_half_length;
};

struct DeviceProfile {
  std::string name, text, file;      ///< text: what it is, for people
  std::vector<std::string> aliases;  ///< other names for --profile
  std::vector<std::string> driver;   ///< words that all stand in the name that its driver gives
  std::string node, network;         ///< the machine that it is sold in, and the network built in of that
  int64_t cards_a_node = 1;
  int64_t cores_a_node = 0;        ///< of the CPUs of that machine; 0: not known
  int64_t compute_capability = 0;  ///< of a card of NVIDIA: 90 for sm_90; 0: of another, or not known
  bool cpu = false;                ///< a "card" is a core
  Figure memory_bytes, memory_bytes_per_second, memory_sustained;
  Figure half_access_bytes;  ///< bytes of an op at which half of the rate is reached
  MatmulRates matmul;
  AttentionRates attention;
  Figure launch_seconds;  ///< from one op to the next
  Figure under_load;      ///< share of the rates of compute that hold through a step, under the power limit
  Figure overlap;         ///< share of a collective's time that it takes from compute beside it
  /// The trainer whose steps are priced (trainer_profile.h), and its figures; empty, not given: ltrain's own.
  std::string trainer;
  Figure trainer_matmul;            ///< share of the rate of matrix products
  Figure trainer_traffic;           ///< bytes of ops that are neither products nor attention, over ltrain's
  Figure host_bytes_per_second;     ///< to its host's memory, one way
  Figure power_watts;               ///< limit
  std::vector<NetworkLevel> links;  ///< inside a node: the innermost levels
};

}  // namespace ltrain
