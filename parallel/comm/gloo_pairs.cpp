#include "parallel/comm/gloo_pairs.h"

#include <dirent.h>
#include <fcntl.h>
#include <gloo/transport/tcp/address.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "base/limits.h"

namespace ltrain {

namespace tcp = gloo::transport::tcp;

/// Event of the loop itself.
class GlooLoop::Task final : public tcp::Handler {
 public:
  Task() : event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!event_.valid()) fail_system("eventfd", errno, ExitCode::internal);
  }

  int descriptor() const { return event_.get(); }

  void run(const std::function<void()>& work) {
    std::unique_lock lock(mutex_);
    work_ = &work;
    error_ = nullptr;
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t ignored = ::write(event_.get(), &one, sizeof(one));
    done_.wait(lock, [&] { return !work_; });
    if (error_) std::rethrow_exception(error_);
  }

  void handleEvents(int) override {
    uint64_t count;
    [[maybe_unused]] const ssize_t ignored = ::read(event_.get(), &count, sizeof(count));
    std::lock_guard lock(mutex_);
    if (!work_) return;
    try {
      (*work_)();
    } catch (...) {
      error_ = std::current_exception();
    }
    work_ = nullptr;
    done_.notify_all();
  }

 private:
  Fd event_;
  std::mutex mutex_;
  std::condition_variable done_;
  const std::function<void()>* work_ = nullptr;
  std::exception_ptr error_;
};

namespace {

/// Gloo's own sockets are reached by this process only (below).
tcp::attr loopback() {
  tcp::attr attr;
  attr.hostname = "127.0.0.1";
  return tcp::CreateDeviceAttr(attr);
}

struct Name {
  sockaddr_storage storage{};
  socklen_t size = sizeof(storage);
  bool operator==(const Name& o) const {
    return size == o.size && std::memcmp(&storage, &o.storage, size) == 0;
  }
};

bool connects_to(int fd, const Name& peer) {
  Name name;
  return ::getpeername(fd, reinterpret_cast<sockaddr*>(&name.storage), &name.size) == 0 && name == peer;
}

/// Descriptor of this process's connection to `peer`, tried first at `guess`; -1: none.
int descriptor_of_connection_to(const Name& peer, int guess) {
  if (connects_to(guess, peer)) return guess;
  DIR* dir = ::opendir("/proc/self/fd");
  int found = -1;
  while (const dirent* entry = dir ? ::readdir(dir) : nullptr)
    if (const int fd = std::atoi(entry->d_name); fd > 2 && connects_to(fd, peer)) found = fd;
  if (dir) ::closedir(dir);
  return found;
}

/// Probable number of the next descriptor.
int next_descriptor(const Fd& any) {
  const Fd probe(::fcntl(any.get(), F_DUPFD_CLOEXEC, 0));
  return probe.get();
}

/// Connects at once or fails: the accept queue has one place.
bool connect_quickly(const Fd& socket, const sockaddr* to) {
  if (::connect(socket.get(), to, sizeof(sockaddr_in)) == 0) return true;
  if (errno != EINPROGRESS) return false;
  pollfd p{socket.get(), POLLOUT, 0};
  int error = 0;
  socklen_t size = sizeof(error);
  return ::poll(&p, 1, 100) > 0 && ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 &&
         error == 0;
}

[[noreturn]] void fail_connecting(const char* what) {
  fail_system(fmt::format("connecting Gloo to a rank: {}", what), errno, ExitCode::rank_lost);
}

/// Replaces the connection of a new pair by `connected`. Runs on the loop's thread, so that nothing is read
/// from any socket meanwhile.
///
/// A pair accepts a connection only from its listening socket. It is therefore given one from here; then
/// another socket is placed under the descriptor. If another process connects first, its connection is never
/// read: the caller tries again with a new pair.
int replace_socket(tcp::Device& device, gloo::transport::Pair& pair, const Fd& connected) {
  auto* handler = dynamic_cast<tcp::Handler*>(&pair);
  LT_CHECK(handler, "expected a Gloo pair that handles events, got another type");
  const tcp::Address listens(pair.address().bytes());
  const Fd decoy(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!decoy.valid()) fail_connecting("socket");
  if (!connect_quickly(decoy, reinterpret_cast<const sockaddr*>(&listens.getSockaddr()))) return -1;
  Name mine;
  ::getsockname(decoy.get(), reinterpret_cast<sockaddr*>(&mine.storage), &mine.size);
  const int guess = next_descriptor(decoy);
  handler->handleEvents(EPOLLIN);  // accepts
  const int fd = descriptor_of_connection_to(mine, guess);
  if (fd < 0) return -1;
  device.unregisterDescriptor(fd, handler);
  if (::dup3(connected.get(), fd, O_CLOEXEC) < 0) fail_connecting("dup3");
  device.registerDescriptor(fd, EPOLLIN, handler);
  return fd;
}

}  // namespace

GlooLoop::GlooLoop() : task_(std::make_unique<Task>()), device_(std::make_shared<tcp::Device>(loopback())) {
  device_->registerDescriptor(task_->descriptor(), EPOLLIN, task_.get());
}

GlooLoop::~GlooLoop() { device_->unregisterDescriptor(task_->descriptor(), task_.get()); }

void GlooLoop::run(const std::function<void()>& work) {
  std::lock_guard one(mutex_);
  task_->run(work);
}

GlooConnections connect_gloo(GlooLoop& loop, int rank, int size,
                             const std::function<Fd(int rank)>& connected) {
  constexpr int kTries = 100;
  GlooConnections c;
  c.context = loop.device()->createContext(rank, size);
  c.context->setTimeout(
      std::chrono::hours(24));  // timeout of unused functions; waits have their own deadlines
  for (int r = 0; r < size; ++r) {
    if (r == rank) continue;
    const Fd fd = connected(r);
    int pair = -1;
    loop.run([&] {
      for (int i = 0; i < kTries && pair < 0; ++i)
        pair = replace_socket(*loop.device(), *c.context->createPair(r), fd);
    });
    if (pair < 0)
      fail(ExitCode::rank_lost,
           "connecting Gloo to rank {}: another process of this host is quicker, {} times", r, kTries);
    struct stat s {};
    ::fstat(pair, &s);
    c.sockets.push_back({pair, s.st_ino});
  }
  return c;
}

uint64_t bytes_moved(const std::vector<GlooConnections::Socket>& sockets) {
  uint64_t sum = 0;
  for (const auto& socket : sockets) {
    struct stat s {};
    // Gloo closes the socket of a failed connection, and its number may then belong to another file.
    if (::fstat(socket.fd, &s) != 0 || s.st_ino != socket.inode) continue;
    tcp_info info{};
    socklen_t size = sizeof(info);
    if (::getsockopt(socket.fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0)
      sum += info.tcpi_bytes_acked + info.tcpi_bytes_received;
  }
  return sum;
}

}  // namespace ltrain
