#include "parallel/comm/communicator_tree.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/deadline.h"
#include "base/progress.h"
#include "parallel/comm/call_description.h"

namespace ltrain {
namespace {

constexpr int64_t kMostBytes = int64_t{1} << 40;  // limit of a message; a larger one is not ours
constexpr int64_t kPiece = 1 << 20;               // bytes of one read or write call

/// Header of one rank's contribution to a call, followed by the payload.
struct Contribution {
  int64_t rank = 0, bytes = 0;
  Note note;
};

/// Header of the result, followed by the result, or by the text of the error that all throw.
struct Outcome {
  int64_t failed = 0, bytes = 0;
};

class TreeGroup final : public Communicator {
 public:
  TreeGroup(PeerListener& listener, KeyValueStore& store, const std::string& key, int rank, int size,
            const std::vector<int>& hosts, std::string name, AxisSet axes, const TreeOptions& options)
      : Communicator(rank, size, std::move(name), axes), options_(options), place_(tree_place(rank, hosts)) {
    const PeerWaits waits{options.connect_timeout_seconds, options.reach_seconds};
    publish_peer(listener, store, key, rank);
    const auto meet = [&](int peer) {
      return meet_peer(listener, store, Communicator::name(), key, rank, peer, waits);
    };
    if (place_.above >= 0) above_ = meet(place_.above);
    for (int p : place_.below) {
      below_.push_back(meet(p));
      messages_.push_back(1 + static_cast<int>(tree_place(p, hosts).below.size()));
    }
  }

  std::unique_ptr<Communicator> split(int, int, std::string name, AxisSet) override {
    fail(ExitCode::internal, "group \"{}\" is a tree, which cannot be split (\"{}\")", Communicator::name(),
         name);
  }

 private:
  void check_same(const CollectiveInfo& info) override { info_ = info; }

  // ---- bytes to and from a neighbour ----

  [[noreturn]] void fail_lost(int peer, const std::string& why) {
    fail(ExitCode::rank_lost, "group \"{}\": rank {} lost the connection to rank {} in {}: {}", name(),
         rank(), peer, to_string(info_), why);
  }

  void wait(const Fd& fd, int peer, short what) {
    pollfd p{fd.get(), what, 0};
    const SteadyTime deadline = after(options_.timeout_seconds);
    while (true) {
      const int left = poll_timeout(deadline);
      if (::poll(&p, 1, left) > 0) return;
      if (left > 0) continue;
      fail(ExitCode::rank_lost, "group \"{}\": rank {} waited {:g} s for rank {} in {}", name(), rank(),
           options_.timeout_seconds, peer, to_string(info_));
    }
  }

  void write(const Fd& fd, int peer, const void* data, int64_t bytes) {
    const char* at = static_cast<const char*>(data);
    while (bytes > 0) {
      const ssize_t n =
          ::send(fd.get(), at, static_cast<size_t>(std::min(bytes, kPiece)), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n > 0) {
        note_progress();
        at += n, bytes -= n;
      } else if (n < 0 && errno == EAGAIN) {
        wait(fd, peer, POLLOUT);
      } else if (n == 0 || errno != EINTR) {
        fail_lost(peer, std::strerror(errno));
      }
    }
  }

  void read(const Fd& fd, int peer, void* data, int64_t bytes) {
    char* at = static_cast<char*>(data);
    while (bytes > 0) {
      const ssize_t n = ::recv(fd.get(), at, static_cast<size_t>(std::min(bytes, kPiece)), MSG_DONTWAIT);
      if (n > 0) {
        note_progress();
        at += n, bytes -= n;
      } else if (n == 0) {
        fail_lost(peer, "it has closed it");
      } else if (errno == EAGAIN) {
        wait(fd, peer, POLLIN);
      } else if (errno != EINTR) {
        fail_lost(peer, std::strerror(errno));
      }
    }
  }

  template <class Header>
  void send_message(const Fd& fd, int peer, const Header& header, const void* data) {
    write(fd, peer, &header, sizeof(header));
    write(fd, peer, data, header.bytes);
  }
  template <class Header>
  std::string receive_message(const Fd& fd, int peer, Header* header) {
    read(fd, peer, header, sizeof(*header));
    if (header->bytes < 0 || header->bytes > kMostBytes)
      fail_lost(peer, "it sent something else than a call");
    std::string data(static_cast<size_t>(header->bytes), '\0');
    read(fd, peer, data.data(), header->bytes);
    return data;
  }

  // ---- a call ----

  /// Contributions of all ranks, in rank order, on rank 0.
  struct Gathered {
    std::vector<Note> notes;
    std::vector<std::string> data;
  };

  /// Sends `data` up and the result down; `make` computes the result on rank 0. If the call fails,
  /// connections are closed, so that ranks that wait for this one notice.
  std::string call(const void* data, int64_t bytes, const std::function<std::string(const Gathered&)>& make) {
    try {
      if (rank() == 0) return lead(data, bytes, make);
      send_message(above_, place_.above, Contribution{rank(), bytes, make_note(info_)}, data);
      for (size_t i = 0; i < below_.size(); ++i) {  // for each rank of a host
        Contribution c;
        const std::string theirs = receive_message(below_[i], place_.below[i], &c);
        send_message(above_, place_.above, c, theirs.data());
      }
      Outcome outcome;
      std::string result = receive_message(above_, place_.above, &outcome);
      spread(outcome, result);
      return result;
    } catch (...) {
      above_.reset();
      below_.clear();
      throw;
    }
  }

  std::string lead(const void* data, int64_t bytes, const std::function<std::string(const Gathered&)>& make) {
    Gathered g{std::vector<Note>(static_cast<size_t>(size())),
               std::vector<std::string>(static_cast<size_t>(size()))};
    g.notes[0] = make_note(info_);
    g.data[0].assign(static_cast<const char*>(data), static_cast<size_t>(bytes));
    for (size_t i = 0; i < below_.size(); ++i)
      for (int n = 0; n < messages_[i]; ++n) {
        Contribution c;
        std::string theirs = receive_message(below_[i], place_.below[i], &c);
        LT_CHECK(c.rank > 0 && c.rank < size(), "expected a rank from 1 to {} in the message, got {}",
                 size() - 1, c.rank);
        g.notes[static_cast<size_t>(c.rank)] = c.note;
        g.data[static_cast<size_t>(c.rank)] = std::move(theirs);
      }
    Outcome outcome;
    std::string result;
    try {
      compare(g);
      result = make(g);
    } catch (const std::exception& e) {
      outcome.failed = 1;
      result = e.what();
    }
    spread(outcome, result);
    return result;
  }

  /// Sends the outcome to the ranks below, then throws the common error here, too.
  void spread(Outcome outcome, const std::string& result) {
    outcome.bytes = static_cast<int64_t>(result.size());
    for (size_t i = 0; i < below_.size(); ++i)
      send_message(below_[i], place_.below[i], outcome, result.data());
    if (outcome.failed) throw Error(ExitCode::internal, result);
  }

  void compare(const Gathered& g) const {
    for (int r = 1; r < size(); ++r)
      if (const CollectiveInfo theirs = read_note(g.notes[static_cast<size_t>(r)]); !same_call(info_, theirs))
        throw Error(ExitCode::internal, mismatch_text(name(), 0, info_, r, theirs));
  }

  std::string reduced(const Gathered& g, DType dtype, ReduceOp op) const {
    std::string out(g.data[0].size(), '\0');
    std::vector<const void*> sources;
    for (const std::string& d : g.data) {
      LT_CHECK(d.size() == out.size(), "expected {} bytes from every rank of a sum, got {}", out.size(),
               d.size());
      sources.push_back(d.data());
    }
    reduce_ordered(out.data(), sources.data(), size(), static_cast<int64_t>(out.size()) / dtype_size(dtype),
                   dtype, op);
    return out;
  }

  static void take(void* to, const std::string& result, int64_t begin, int64_t bytes) {
    LT_CHECK(begin + bytes <= static_cast<int64_t>(result.size()),
             "expected a result of at least {} bytes, got {}", begin + bytes, result.size());
    if (bytes > 0) std::memcpy(to, result.data() + begin, static_cast<size_t>(bytes));
  }

  void do_all_reduce(Tensor t, ReduceOp op) override {
    const auto sum = [&](const Gathered& g) { return reduced(g, t.dtype, op); };
    take(t.data, call(t.data, t.bytes(), sum), 0, t.bytes());
  }
  void do_reduce(Tensor t, int root) override {
    const auto sum = [&](const Gathered& g) { return reduced(g, t.dtype, ReduceOp::sum); };
    const std::string result = call(t.data, t.bytes(), sum);
    if (rank() == root) take(t.data, result, 0, t.bytes());
  }
  void do_reduce_scatter(Tensor out, Tensor in) override {
    const auto sum = [&](const Gathered& g) { return reduced(g, in.dtype, ReduceOp::sum); };
    take(out.data, call(in.data, in.bytes(), sum), rank() * out.bytes(), out.bytes());
  }
  void do_all_gather(Tensor out, Tensor in) override {
    const auto join = [&](const Gathered& g) {
      std::string all;
      for (const std::string& d : g.data) all += d;
      return all;
    };
    take(out.data, call(in.data, in.bytes(), join), 0, out.bytes());
  }
  void do_broadcast(Tensor t, int root) override {
    const auto pick = [&](const Gathered& g) { return g.data[static_cast<size_t>(root)]; };
    const std::string result = call(t.data, rank() == root ? t.bytes() : 0, pick);
    if (rank() != root) take(t.data, result, 0, t.bytes());
  }
  void do_barrier() override {
    call(nullptr, 0, [](const Gathered&) { return std::string(); });
  }

  [[noreturn]] void refuse() const {
    fail(ExitCode::internal, "group \"{}\" is a tree, which has no {}", name(), to_string(info_));
  }
  void do_all_to_all_v(Tensor, const std::vector<int64_t>&, Tensor, const std::vector<int64_t>&) override {
    refuse();
  }
  void do_send(Tensor, int) override { refuse(); }
  void do_recv(Tensor, int) override { refuse(); }
  void do_send_recv(Tensor, int, Tensor, int) override { refuse(); }

  const TreeOptions options_;
  const TreePlace place_;
  Fd above_;
  std::vector<Fd> below_;      // in the order of place_.below
  std::vector<int> messages_;  // messages that come up from each: its own, and those of its host
  CollectiveInfo info_;
};

}  // namespace

TreePlace tree_place(int rank, const std::vector<int>& hosts) {
  const auto first_of = [&](int r) {
    return static_cast<int>(std::find(hosts.begin(), hosts.end(), hosts[static_cast<size_t>(r)]) -
                            hosts.begin());
  };
  const auto above = [&](int r) { return r == 0 ? -1 : first_of(r) == r ? 0 : first_of(r); };
  TreePlace place;
  place.above = above(rank);
  for (int r = 0; r < static_cast<int>(hosts.size()); ++r)
    if (above(r) == rank) place.below.push_back(r);
  return place;
}

std::unique_ptr<Communicator> make_tree_group(std::shared_ptr<PeerListener> listener,
                                              std::shared_ptr<KeyValueStore> store, const std::string& key,
                                              int rank, int size, const std::vector<int>& hosts,
                                              std::string name, AxisSet axes, const TreeOptions& options) {
  LT_CHECK(static_cast<int>(hosts.size()) == size, "expected host numbers of {} ranks, got {}", size,
           hosts.size());
  if (size == 1) return make_single_group(std::move(name), axes);
  return std::make_unique<TreeGroup>(*listener, *store, key, rank, size, hosts, std::move(name), axes,
                                     options);
}

}  // namespace ltrain
