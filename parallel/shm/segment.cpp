#include "parallel/shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/limits.h"

namespace ltrain::shm {
namespace {

constexpr uint64_t kMagic = 0x316d68736e617274;  // "trnshm1" and a zero
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

struct Header {
  uint64_t magic, ranks, slot_bytes, transfer_bytes, windows, transfer_windows, control_bytes;
};

Header header_of(const Layout& l) {
  return {kMagic,
          static_cast<uint64_t>(l.ranks),
          static_cast<uint64_t>(l.slot_bytes),
          static_cast<uint64_t>(l.transfer_bytes),
          kWindows,
          kTransferWindows,
          static_cast<uint64_t>(l.control_bytes())};
}

Fd new_memory_file(std::string* error) {
  Fd memory(::memfd_create("ltrain-group", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory.valid()) *error = fmt::format("memfd_create: {}", std::strerror(errno));
  return memory;
}

std::string size_and_seal(const Fd& memory, int64_t bytes) {
  if (::ftruncate(memory.get(), bytes) != 0)
    return fmt::format("ftruncate to {} bytes: {}{}", bytes, std::strerror(errno), limit_hint(errno));
  if (::fcntl(memory.get(), F_ADD_SEALS, kSeals) != 0)
    return fmt::format("F_ADD_SEALS: {}", std::strerror(errno));
  return "";
}

}  // namespace

int64_t Layout::control_bytes() const {
  const int64_t bytes = static_cast<int64_t>(sizeof(RankControl)) + 4 * ranks * 8;
  return (bytes + 4095) / 4096 * 4096;
}

std::string unavailable() {
  std::string error;
  const Fd memory = new_memory_file(&error);
  if (!error.empty()) return error;
  if (error = size_and_seal(memory, 4096); !error.empty()) return error;
  const Fd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un any{};
  any.sun_family = AF_UNIX;
  if (!socket.valid() || ::bind(socket.get(), reinterpret_cast<sockaddr*>(&any), sizeof(sa_family_t)) != 0)
    return fmt::format("abstract unix socket: {}", std::strerror(errno));
  return "";
}

Fd create_memory(const Layout& layout) {
  std::string error;
  Fd memory = new_memory_file(&error);
  if (error.empty()) error = size_and_seal(memory, layout.total_bytes());
  const Header h = header_of(layout);
  if (error.empty() && ::pwrite(memory.get(), &h, sizeof(h), 0) != static_cast<ssize_t>(sizeof(h)))
    error = fmt::format("writing to it: {}", std::strerror(errno));
  if (!error.empty())
    fail(ExitCode::usage, "no shared memory of {} bytes ({}); LTRAIN_TRANSPORT=gloo does without",
         layout.total_bytes(), error);
  return memory;
}

Segment::Segment(const Fd& memory, const Layout& layout, const std::string& whence) : layout_(layout) {
  LT_CHECK(layout.ranks >= 2 && layout.ranks <= kMaxRanks,
           "expected a shared segment of 2 to {} ranks, got {}", kMaxRanks, layout.ranks);
  // A memory file that can still shrink would let its sender end this process by SIGBUS.
  const int seals = ::fcntl(memory.get(), F_GET_SEALS);
  struct stat s {};
  if (seals < 0 || (seals & kSeals) != kSeals || ::fstat(memory.get(), &s) != 0)
    fail(ExitCode::rank_lost, "{} sent a file that is no sealed memory file", whence);
  if (s.st_size != layout.total_bytes())
    fail(ExitCode::rank_lost, "{} sent a memory file of {} bytes, a group of {} ranks has {}", whence,
         s.st_size, layout.ranks, layout.total_bytes());
  Header found{};
  const Header expected = header_of(layout);
  if (::pread(memory.get(), &found, sizeof(found), 0) != static_cast<ssize_t>(sizeof(found)) ||
      std::memcmp(&found, &expected, sizeof(found)) != 0)
    fail(ExitCode::rank_lost, "{} sent a memory file with another layout: all ranks must run one ltrain",
         whence);
  void* p = ::mmap(nullptr, static_cast<size_t>(layout.total_bytes()), PROT_READ | PROT_WRITE, MAP_SHARED,
                   memory.get(), 0);
  if (p == MAP_FAILED)
    fail(ExitCode::rank_lost, "cannot map {} bytes of shared memory: {}", layout.total_bytes(),
         std::strerror(errno));
  base_ = static_cast<char*>(p);
}

Segment::~Segment() { ::munmap(base_, static_cast<size_t>(layout_.total_bytes())); }

}  // namespace ltrain::shm
