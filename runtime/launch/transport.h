// Transport of a group: shared memory if all ranks are on one host, else TCP (Gloo).
//
// LTRAIN_TRANSPORT selects it: auto (the default), shm (fails if a group cannot use it), gloo (never shared
// memory).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace ltrain {

enum class Transport { shm, gloo };
const char* transport_name(Transport t);  ///< "shm", "gloo": values of LTRAIN_TRANSPORT
const char* transport_text(Transport t);  ///< "shared memory", "Gloo (TCP)": for people

enum class TransportChoice { automatic, shm, gloo };
/// Value of LTRAIN_TRANSPORT. Throws Error (usage) on any other value.
TransportChoice transport_choice();

/// A text that is equal on two processes exactly if they can share memory: one boot of one kernel, one
/// network namespace (abstract sockets), one user. Empty if this process cannot or must not share memory
/// (LTRAIN_TRANSPORT=gloo).
std::string shared_memory_identity();

/// Information that a rank publishes for this choice.
struct RankPlace {
  int rank = 0;
  std::string host, identity;
};
/// Chooses the transport of a group. All ranks get the same answer from the same `places`. Throws Error
/// (usage) with the name of a rank if shared memory is required but impossible.
Transport choose_transport(const std::string& group, const std::vector<RankPlace>& places);

/// Transport that `run` will use for a group of these ranks, with `ranks_on_host` consecutive ranks on each
/// host.
Transport planned_transport(const std::vector<int>& ranks, int ranks_on_host);
/// Bytes of buffers per rank in a group of `size`: the shared segment, which is common to the group, or
/// Gloo's buffers.
int64_t transport_scratch_bytes(Transport t, int size);

}  // namespace ltrain
