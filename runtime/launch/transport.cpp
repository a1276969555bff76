#include "runtime/launch/transport.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "base/error.h"
#include "parallel/comm/communicator_gloo.h"
#include "parallel/shm/communicator_shm.h"

namespace ltrain {

const char* transport_name(Transport t) { return t == Transport::shm ? "shm" : "gloo"; }
const char* transport_text(Transport t) { return t == Transport::shm ? "shared memory" : "Gloo (TCP)"; }

TransportChoice transport_choice() {
  const char* value = std::getenv("LTRAIN_TRANSPORT");
  const std::string text = value ? value : "";
  if (text.empty() || text == "auto") return TransportChoice::automatic;
  if (text == "shm") return TransportChoice::shm;
  if (text == "gloo") return TransportChoice::gloo;
  fail(ExitCode::usage, "LTRAIN_TRANSPORT=\"{}\": must be auto, shm (shared memory) or gloo (TCP)", text);
}

std::string shared_memory_identity() {
  if (transport_choice() == TransportChoice::gloo || !shm_unavailable().empty()) return "";
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  if (boot.empty()) return "";
  std::string identity = "shm1 " + boot;
  for (const char* name : {"/proc/self/ns/net", "/proc/self/ns/user"}) {
    struct stat s {};
    if (::stat(name, &s) != 0) return "";
    identity += fmt::format(" {}:{}", s.st_dev, s.st_ino);
  }
  return fmt::format("{} {}", identity, ::geteuid());
}

Transport choose_transport(const std::string& group, const std::vector<RankPlace>& places) {
  const RankPlace* other = nullptr;
  for (const RankPlace& p : places)
    if (!other && (p.identity.empty() || p.identity != places.front().identity)) other = &p;
  const bool small = static_cast<int>(places.size()) <= shm_max_ranks();
  const TransportChoice choice = transport_choice();
  if (!other && small && choice != TransportChoice::gloo) return Transport::shm;
  if (choice != TransportChoice::shm) return Transport::gloo;
  if (!small)
    fail(ExitCode::usage,
         "group \"{}\" has {} ranks, shared memory serves {} at most: unset LTRAIN_TRANSPORT=shm", group,
         places.size(), shm_max_ranks());
  if (other->identity.empty())
    fail(ExitCode::usage,
         "group \"{}\": rank {} on host {} has no shared memory (LTRAIN_TRANSPORT=gloo there, or `ltrain "
         "doctor` says why): unset LTRAIN_TRANSPORT=shm",
         group, other->rank, other->host);
  fail(ExitCode::usage,
       "group \"{}\": ranks {} on host {} and {} on host {} cannot share memory (another host, container or "
       "user): unset LTRAIN_TRANSPORT=shm",
       group, places.front().rank, places.front().host, other->rank, other->host);
}

Transport planned_transport(const std::vector<int>& ranks, int ranks_on_host) {
  const TransportChoice choice = transport_choice();
  if (choice != TransportChoice::automatic)
    return choice == TransportChoice::shm ? Transport::shm : Transport::gloo;
  bool one_host = ranks_on_host > 0 && static_cast<int>(ranks.size()) <= shm_max_ranks();
  for (int r : ranks) one_host = one_host && r / ranks_on_host == ranks.front() / ranks_on_host;
  return one_host && shm_unavailable().empty() ? Transport::shm : Transport::gloo;
}

int64_t transport_scratch_bytes(Transport t, int size) {
  return t == Transport::shm ? shm_segment_bytes(size) : gloo_scratch_bytes(size);
}

}  // namespace ltrain
