// How the ranks of a group talk: through memory that they share when all are on one host, else over TCP
// (Gloo).
//
// LTRAIN_TRANSPORT decides: auto (the default), shm (a group that cannot is refused), gloo (never shared
// memory).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace ltrain {

enum class Transport { shm, gloo };
const char* transport_name(Transport t);  ///< "shm", "gloo": what LTRAIN_TRANSPORT says
const char* transport_text(Transport t);  ///< "shared memory", "Gloo (TCP)": for people

enum class TransportChoice { automatic, shm, gloo };
/// Of LTRAIN_TRANSPORT; throws Error (usage) on any other value.
TransportChoice transport_choice();

/// A text that is equal on two processes exactly when they can share memory: one boot of one kernel, one
/// network namespace (abstract sockets), one user. Empty when this process cannot or must not
/// (LTRAIN_TRANSPORT=gloo).
std::string shared_memory_identity();

/// What a rank tells the others of itself for this choice.
struct RankPlace {
  int rank = 0;
  std::string host, identity;
};
/// All ranks of the group come to the same answer, from the same `places`. Throws Error (usage), naming a
/// rank, where shared memory is asked for and cannot be had.
Transport choose_transport(const std::string& group, const std::vector<RankPlace>& places);

/// What `run` will use for a group of these ranks, when hosts have `ranks_on_host` consecutive ones each.
Transport planned_transport(const std::vector<int>& ranks, int ranks_on_host);
/// Memory that each rank of a group of `size` has for data on its way: the shared segment, which is the same
/// for all of them, or Gloo's buffers.
int64_t transport_scratch_bytes(Transport t, int size);

}  // namespace ltrain
