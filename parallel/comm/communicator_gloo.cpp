#include "parallel/comm/communicator_gloo.h"

#include <gloo/transport/unbound_buffer.h>

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "base/limits.h"
#include "base/progress.h"
#include "parallel/comm/call_description.h"
#include "parallel/comm/gloo_pairs.h"
#include "parallel/comm/split_members.h"

namespace ltrain {

class GlooTransport {
 public:
  explicit GlooTransport(std::shared_ptr<PeerListener> peers) : listener(std::move(peers)) {}

  void add(const std::vector<GlooConnections::Socket>& sockets) {
    std::lock_guard lock(mutex_);
    sockets_.push_back(&sockets);
  }
  void remove(const std::vector<GlooConnections::Socket>& sockets) {
    std::lock_guard lock(mutex_);
    std::erase(sockets_, &sockets);
  }
  void note_bytes() {
    std::lock_guard lock(mutex_);
    uint64_t now = 0;
    for (const auto* s : sockets_) now += bytes_moved(*s);
    if (std::exchange(bytes_, now) != now) note_progress();
  }

  const std::shared_ptr<PeerListener> listener;
  GlooLoop loop;

 private:
  std::mutex mutex_;
  std::vector<const std::vector<GlooConnections::Socket>*> sockets_;  // sockets of its groups
  uint64_t bytes_ = 0;
};

void note_progress_of(GlooTransport& transport) { transport.note_bytes(); }

namespace {

/// Gloo writes to its sockets with writev(), without MSG_NOSIGNAL: if a peer leaves during a transfer,
/// SIGPIPE would end this process before the error with the peer's name is raised. An existing handler is
/// kept.
void take_broken_pipes_as_errors() {
  struct sigaction now {};
  if (::sigaction(SIGPIPE, nullptr, &now) == 0 && now.sa_handler == SIG_DFL) ::signal(SIGPIPE, SIG_IGN);
}

}  // namespace

std::shared_ptr<GlooTransport> make_gloo_transport(const std::string& address, const std::string& interface) {
  return make_gloo_transport(std::make_shared<PeerListener>(address, interface));
}

std::shared_ptr<GlooTransport> make_gloo_transport(std::shared_ptr<PeerListener> listener) {
  take_broken_pipes_as_errors();
  try {
    return std::make_shared<GlooTransport>(std::move(listener));
  } catch (const Error&) {
    throw;
  } catch (const std::exception& e) {
    fail(ExitCode::usage, "Gloo cannot be used on this host: {}", e.what());
  }
}

namespace {

using Buffer = std::unique_ptr<gloo::transport::UnboundBuffer>;

constexpr int64_t kMaxChunkBytes = 1 << 20;
constexpr int64_t kMinChunkBytes = 4 << 10;
constexpr int kWindow = 2;               // chunks in flight to each peer
constexpr double kVerdictSeconds = 0.2;  // a lost rank that gave up on another one has said so before it left

int64_t chunk_bytes(int size, const GlooOptions& options) {
  const int64_t share = options.scratch_bytes / (kWindow * std::max(1, size - 1));
  return std::clamp(share, kMinChunkBytes, kMaxChunkBytes) / 64 * 64;
}

std::string plain(const std::string& text) {  // removes Gloo's prefix "[file:line] "
  const size_t end = text.find("] ");
  return text.starts_with('[') && end != std::string::npos ? text.substr(end + 2) : text;
}

class GlooGroup final : public Communicator {
 public:
  GlooGroup(std::shared_ptr<GlooTransport> transport, std::shared_ptr<KeyValueStore> store, std::string key,
            int rank, int size, std::string name, AxisSet axes, const GlooOptions& options)
      : Communicator(rank, size, std::move(name), axes),
        transport_(std::move(transport)),
        store_(std::move(store)),
        key_(std::move(key)),
        options_(options),
        chunk_bytes_(chunk_bytes(size, options)),
        scratch_(static_cast<size_t>(gloo_scratch_bytes(size, options))),
        peers_(static_cast<size_t>(size)) {
    connect();
    for (int i = 1; i < size; ++i) order_.push_back((rank + i) % size);
    sources_.resize(static_cast<size_t>(size));
    for (int p : order_) {
      Peer& peer = peers_[p];
      for (int k = 0; k < 2; ++k) {
        peer.note_send[k] = buffer(&peer.sent[k], sizeof(Note));
        peer.note_recv[k] = buffer(&peer.received[k], sizeof(Note));
      }
      peer.transfer_send = buffer(&peer.transfer_sent, sizeof(Note));
      peer.transfer_recv = buffer(&peer.transfer_received, sizeof(Note));
      peer.note_recv[1]->recv(p, kNoteSlot, 0, sizeof(Note));  // for call 1
    }
    transport_->add(connections_.sockets);
  }

  /// Without its buffers, Gloo's thread writes no more to peers_ and scratch_. The visit orders earlier
  /// writes before the end: ThreadSanitizer does not see Gloo's own counts, by which it releases a buffer.
  ~GlooGroup() override {
    transport_->remove(connections_.sockets);
    for (Peer& peer : peers_) peer.drop_buffers();
    transport_->loop.run([] {});
  }

  std::unique_ptr<Communicator> split(int color, int key, std::string name, AxisSet axes) override {
    const std::string base = fmt::format("{}/split{}/", key_, ++splits_);
    const SplitPlace s =
        agree_on_split(*store_, base, rank(), size(), color, key, options_.connect_timeout_seconds);
    if (color < 0) return nullptr;
    if (s.count == 1) return make_single_group(std::move(name), axes);
    return make_gloo_group(transport_, store_, fmt::format("{}color{}", base, color), s.place, s.count,
                           std::move(name), axes, options_);
  }

 private:
  struct Peer {
    Note sent[2], received[2], transfer_sent, transfer_received;
    Buffer note_send[2], note_recv[2], transfer_send, transfer_recv;
    bool note_in_flight[2] = {false, false};
    uint64_t transfers_sent = 0, transfers_received = 0;
    int64_t pair_elements = 0;  // this call: elements sent to the peer
    int64_t expected = 0;       // this call: elements expected from the peer

    void drop_buffers() {
      for (Buffer* b :
           {&note_send[0], &note_send[1], &note_recv[0], &note_recv[1], &transfer_send, &transfer_recv})
        b->reset();
    }
  };

  void connect() {
    const PeerWaits waits{options_.connect_timeout_seconds, options_.reach_seconds};
    PeerListener& listener = *transport_->listener;
    publish_peer(listener, *store_, key_, rank());
    try {
      connections_ = connect_gloo(transport_->loop, rank(), size(), [&](int peer) {
        return meet_peer(listener, *store_, name(), key_, rank(), peer, waits);
      });
    } catch (const Error&) {
      throw;
    } catch (const std::exception& e) {  // Gloo's exception, without an exit code
      const std::string text = fmt::format("group \"{}\": rank {} of {} cannot connect to the others: {}",
                                           name(), rank(), size(), plain(e.what()));
      const Fd probe(::eventfd(0, EFD_CLOEXEC));
      if (!probe.valid()) fail_system(text, errno, ExitCode::rank_lost);
      throw Error(ExitCode::rank_lost, text);
    }
  }

  Buffer buffer(void* p, int64_t bytes) {
    return connections_.context->createUnboundBuffer(p, static_cast<size_t>(bytes));
  }

  // ---- the rank to blame ----

  /// A rank that gives up closes its connections, and others may see that before they see the lost rank. It
  /// therefore first writes the lost rank to the store, and a rank that loses it looks there.
  [[noreturn]] void fail_lost(int peer, bool timed_out, const std::string& why) {
    const int behind = timed_out ? -1 : lost_by(peer);
    say_lost(behind < 0 ? peer : behind);
    if (timed_out)
      fail(ExitCode::rank_lost, "group \"{}\": rank {} waited {:g} s for rank {} in {}", name(), rank(),
           options_.timeout_seconds, peer, to_string(info_));
    if (behind >= 0)
      fail(ExitCode::rank_lost, "group \"{}\": rank {} lost rank {} in {}: it has failed waiting for rank {}",
           name(), rank(), peer, to_string(info_), behind);
    fail(ExitCode::rank_lost, "group \"{}\": rank {} lost the connection to rank {} in {}: {}", name(),
         rank(), peer, to_string(info_), why);
  }
  std::string lost_key(int r) const { return fmt::format("{}/lost/{}", key_, r); }

  void say_lost(int culprit) {
    if (std::exchange(gave_up_, true)) return;
    try {
      store_->set(lost_key(rank()), std::to_string(culprit));
    } catch (
        const std::exception&) {  // the store may be gone with the culprit; the error below is thrown anyway
    }
  }

  /// Rank that `peer` gave up on, or -1 if it reports none within kVerdictSeconds: then it is itself gone.
  int lost_by(int peer) {
    try {
      return std::stoi(store_->get(lost_key(peer), kVerdictSeconds));
    } catch (const std::exception&) {
      return -1;
    }
  }

  // ---- waits with the deadline of the call; errors name the peer ----

  enum class Way { send, recv };
  void wait(const Buffer& b, Way way, int peer) {
    // Rounded up: a wait that ends before the deadline would count as a lost connection.
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - steady_now());
    const auto limit = std::max(left, std::chrono::milliseconds(1));
    try {
      if (way == Way::recv)
        b->waitRecv(nullptr, limit);
      else
        b->waitSend(nullptr, limit);
    } catch (const std::exception& e) {
      const bool timed_out = steady_now() >= deadline_;
      fail_lost(peer, timed_out, plain(e.what()));
    }
  }
  template <class F>
  void post(int peer, F&& f) {  // a send or recv call of Gloo
    try {
      f();
    } catch (const std::exception& e) {
      fail_lost(peer, false, plain(e.what()));
    }
  }

  // ---- exchange of notes ----

  void check_same(const CollectiveInfo& info) override {
    info_ = info;
    deadline_ = after(options_.timeout_seconds);
    for (Peer& p : peers_) p.pair_elements = p.expected = 0;
  }

  /// Sends this rank's note to all ranks. The receive of the *next* note is posted first. Everything that
  /// this rank writes for the next call thus follows the posted receive, and a rank that finishes a call and
  /// leaves has read everything sent to it.
  void send_notes() {
    const int now = static_cast<int>(info_.sequence % 2), next = 1 - now;
    for (int p : order_) {
      Peer& peer = peers_[p];
      post(p, [&] { peer.note_recv[next]->recv(p, kNoteSlot, 0, sizeof(Note)); });
      if (peer.note_in_flight[now]) wait(peer.note_send[now], Way::send, p);
      peer.sent[now] = make_note(info_);
      peer.sent[now].pair_elements = peer.pair_elements;
      post(p, [&] { peer.note_send[now]->send(p, kNoteSlot, 0, sizeof(Note)); });
      peer.note_in_flight[now] = true;
    }
  }

  /// Waits for all notes, then compares. Every rank has all notes by then, so that every rank throws.
  void compare_notes() {
    const int now = static_cast<int>(info_.sequence % 2);
    for (int p : order_) wait(peers_[p].note_recv[now], Way::recv, p);
    // All compare with rank 0, so that all report the same.
    auto call_of = [&](int r) { return r == rank() ? info_ : read_note(peers_[r].received[now]); };
    int wrong = -1, wrong_pair = -1;
    for (int r = 1; r < size() && wrong < 0; ++r)
      if (!same_call(call_of(0), call_of(r))) wrong = r;
    for (int p = 0; p < size() && wrong_pair < 0; ++p)
      if (p != rank() && peers_[p].received[now].pair_elements != peers_[p].expected) wrong_pair = p;
    if (wrong < 0 && wrong_pair < 0) return;
    for (int p : order_) {  // the others need this rank's note to report the same
      wait(peers_[p].note_send[now], Way::send, p);
      peers_[p].note_in_flight[now] = false;
    }
    std::this_thread::sleep_for(
        std::chrono::milliseconds(200));  // before this rank leaves and its connections close
    if (wrong >= 0)
      throw Error(ExitCode::internal, mismatch_text(name(), 0, call_of(0), wrong, call_of(wrong)));
    fail(ExitCode::internal, "group \"{}\", {}: rank {} sends {} elements to rank {}, which expects {}",
         name(), to_string(info_), wrong_pair, peers_[wrong_pair].received[now].pair_elements, rank(),
         peers_[wrong_pair].expected);
  }

  /// Starts the data while the notes are in flight. A peer that has found a difference may have left already;
  /// its note then says more than its closed connection.
  template <class F>
  void compare_notes_after(F&& start_data) {
    std::exception_ptr failure;
    try {
      start_data();
    } catch (...) {
      failure = std::current_exception();
    }
    compare_notes();
    if (failure) std::rethrow_exception(failure);
  }

  // ---- reductions ----

  /// Sums this rank's part of `in` over all ranks into `out`, chunk by chunk through the scratch buffer. With
  /// `gather` (all-reduce: out is this rank's part of `in`) each finished chunk goes to all ranks at once.
  /// Two chunks are in flight to each peer at any time. A peer sends back the sum of a chunk only after it
  /// has received this rank's full summand, so that receiving over it is safe. With `root` >= 0 the root's
  /// part is the full tensor, and the others' are empty.
  void reduce_parts(char* in, int64_t elements, char* out, DType dtype, ReduceOp op, bool gather,
                    int root = -1) {
    const int64_t width = dtype_size(dtype), chunk = chunk_bytes_ / width;
    auto part_of_rank = [&](int r) {
      if (root < 0) return part_of(elements, size(), r);
      return r == root ? PartRange{0, elements} : PartRange{};
    };
    const int64_t chunks = (part_of_rank(root < 0 ? 0 : root).count + chunk - 1) / chunk;
    auto range = [&](int r, int64_t k) {  // chunk k of rank r's part, in bytes
      const PartRange part = part_of_rank(r);
      const int64_t begin = std::min(part.count, k * chunk);
      return PartRange{(part.begin + begin) * width, std::min(chunk, part.count - begin) * width};
    };
    struct Lane {
      Buffer scatter_send, scatter_recv, gather_send, gather_recv;
    };
    std::vector<Lane> lanes(static_cast<size_t>(size()));
    const int64_t bytes = elements * width, lane_bytes = kWindow * chunk_bytes_;
    int64_t lane_begin = 0;
    std::vector<int64_t> scratch_at(static_cast<size_t>(size()));
    for (int p : order_) {
      scratch_at[p] = lane_begin;
      lanes[p].scatter_recv = buffer(scratch_.data() + lane_begin, lane_bytes);
      lanes[p].scatter_send = buffer(in, bytes);
      if (gather) lanes[p].gather_send = buffer(in, bytes), lanes[p].gather_recv = buffer(in, bytes);
      lane_begin += lane_bytes;
    }
    const uint64_t slot = data_slot(info_, 0);
    auto start = [&](int64_t k) {
      const PartRange mine = range(rank(), k);
      for (int p : order_) {
        const PartRange theirs = range(p, k);
        post(p, [&] {
          if (mine.count > 0) lanes[p].scatter_recv->recv(p, slot, (k % kWindow) * chunk_bytes_, mine.count);
          if (theirs.count > 0) {
            if (gather) lanes[p].gather_recv->recv(p, slot + 1, theirs.begin, theirs.count);
            lanes[p].scatter_send->send(p, slot, theirs.begin, theirs.count);
          }
        });
      }
    };
    auto finish = [&](int64_t k) {
      const PartRange mine = range(rank(), k);
      for (int p : order_) {
        const PartRange theirs = range(p, k);
        if (theirs.count > 0) wait(lanes[p].scatter_send, Way::send, p);
        if (!gather) continue;
        if (theirs.count > 0) wait(lanes[p].gather_recv, Way::recv, p);
        if (mine.count > 0) wait(lanes[p].gather_send, Way::send, p);
      }
    };
    send_notes();
    compare_notes_after([&] {
      for (int64_t k = 0; k < std::min<int64_t>(kWindow, chunks); ++k) start(k);
    });
    const PartRange own = part_of_rank(rank());
    for (int64_t k = 0; k < chunks; ++k) {
      const PartRange mine = range(rank(), k);
      if (mine.count > 0) {
        for (int p : order_) {
          wait(lanes[p].scatter_recv, Way::recv, p);
          sources_[p] = scratch_.data() + scratch_at[p] + (k % kWindow) * chunk_bytes_;
        }
        sources_[rank()] = in + mine.begin;
        reduce_ordered(out + (mine.begin - own.begin * width), sources_.data(), size(), mine.count / width,
                       dtype, op);
        if (gather)
          for (int p : order_)
            post(p, [&] { lanes[p].gather_send->send(p, slot + 1, mine.begin, mine.count); });
      }
      if (k + kWindow < chunks) start(k + kWindow);
      if (k > 0) finish(k - 1);
    }
    if (chunks > 0) finish(chunks - 1);
  }

  void do_all_reduce(Tensor t, ReduceOp op) override {
    char* data = static_cast<char*>(t.data);
    const int64_t begin = part_of(t.elements(), size(), rank()).begin * dtype_size(t.dtype);
    reduce_parts(data, t.elements(), data + begin, t.dtype, op, true);
  }

  void do_reduce_scatter(Tensor out, Tensor in) override {
    reduce_parts(static_cast<char*>(in.data), in.elements(), static_cast<char*>(out.data), in.dtype,
                 ReduceOp::sum, false);
  }

  void do_reduce(Tensor t, int root) override {
    char* data = static_cast<char*>(t.data);
    reduce_parts(data, t.elements(), data, t.dtype, ReduceOp::sum, false, root);
  }

  // ---- moves ----

  struct Move {
    char* send = nullptr;
    int64_t send_bytes = 0;
    char* recv = nullptr;
    int64_t recv_bytes = 0;
    Buffer out, in;
  };
  /// One message to and from each peer, together with the notes. `moves` has an entry for each rank.
  void exchange(std::vector<Move>& moves) {
    send_notes();
    compare_notes_after([&] {
      for (int p : order_) {
        Move& m = moves[p];
        if (m.recv_bytes == 0) continue;
        m.in = buffer(m.recv, m.recv_bytes);
        post(p, [&] { m.in->recv(p, data_slot(info_, m.recv_bytes), 0, m.recv_bytes); });
      }
      for (int p : order_) {
        Move& m = moves[p];
        if (m.send_bytes == 0) continue;
        m.out = buffer(m.send, m.send_bytes);
        post(p, [&] { m.out->send(p, data_slot(info_, m.send_bytes), 0, m.send_bytes); });
      }
    });
    for (int p : order_) {
      if (moves[p].in) wait(moves[p].in, Way::recv, p);
      if (moves[p].out) wait(moves[p].out, Way::send, p);
    }
  }

  void do_all_gather(Tensor out, Tensor in) override {
    std::vector<Move> moves(static_cast<size_t>(size()));
    char* to = static_cast<char*>(out.data);
    for (int p : order_)
      moves[p] = {static_cast<char*>(in.data), in.bytes(), to + p * in.bytes(), in.bytes(), nullptr, nullptr};
    char* own = to + rank() * in.bytes();
    if (own != in.data && in.bytes() > 0) std::memcpy(own, in.data, static_cast<size_t>(in.bytes()));
    exchange(moves);
  }

  void do_all_to_all_v(Tensor out, const std::vector<int64_t>& out_elements, Tensor in,
                       const std::vector<int64_t>& in_elements) override {
    const int64_t width = dtype_size(in.dtype);
    std::vector<Move> moves(static_cast<size_t>(size()));
    char* from = static_cast<char*>(in.data);
    char* to = static_cast<char*>(out.data);
    for (int r = 0; r < size(); ++r) {
      const int64_t send = in_elements[r] * width, recv = out_elements[r] * width;
      if (r == rank()) {
        if (send > 0) std::memcpy(to, from, static_cast<size_t>(send));
      } else {
        moves[r] = {from, send, to, recv, nullptr, nullptr};
        peers_[r].pair_elements = in_elements[r];
        peers_[r].expected = out_elements[r];
      }
      from += send;
      to += recv;
    }
    exchange(moves);
  }

  void do_broadcast(Tensor t, int root) override {
    std::vector<Move> moves(static_cast<size_t>(size()));
    char* data = static_cast<char*>(t.data);
    if (rank() == root)
      for (int p : order_) moves[p] = {data, t.bytes(), nullptr, 0, nullptr, nullptr};
    else
      moves[root] = {nullptr, 0, data, t.bytes(), nullptr, nullptr};
    exchange(moves);
  }

  void do_barrier() override {
    send_notes();
    compare_notes();
  }

  // ---- between two ranks: a note, then the data, both waited for ----

  uint64_t transfer_slot(uint64_t sequence, int64_t bytes) {
    return (mix(mix(0x7472616e73666572ull, sequence), static_cast<uint64_t>(bytes)) | (1ull << 63)) & ~1ull;
  }
  Buffer start_send(const Tensor& t, int p) {
    Peer& peer = peers_[p];
    peer.transfer_sent = make_note(info_);
    peer.transfer_sent.sequence = ++peer.transfers_sent;
    peer.transfer_sent.elements = t.elements();
    peer.transfer_sent.dtype = static_cast<uint8_t>(t.dtype);
    Buffer b;
    post(p, [&] {
      peer.transfer_send->send(p, kTransferNoteSlot, 0, sizeof(Note));
      if (t.bytes() == 0) return;
      b = buffer(t.data, t.bytes());
      b->send(p, transfer_slot(peer.transfers_sent, t.bytes()), 0, static_cast<size_t>(t.bytes()));
    });
    return b;
  }
  void finish_send(const Buffer& b, int p) {
    wait(peers_[p].transfer_send, Way::send, p);
    if (b) wait(b, Way::send, p);
  }
  Buffer start_recv(const Tensor& t, int p) {
    Peer& peer = peers_[p];
    ++peer.transfers_received;
    Buffer b;
    post(p, [&] {
      peer.transfer_recv->recv(p, kTransferNoteSlot, 0, sizeof(Note));
      if (t.bytes() == 0) return;
      b = buffer(t.data, t.bytes());
      b->recv(p, transfer_slot(peer.transfers_received, t.bytes()), 0, static_cast<size_t>(t.bytes()));
    });
    return b;
  }
  void finish_recv(const Buffer& b, const Tensor& t, int p) {
    Peer& peer = peers_[p];
    wait(peer.transfer_recv, Way::recv, p);
    const Note& note = peer.transfer_received;
    if (note.elements != t.elements() || note.dtype != static_cast<uint8_t>(t.dtype) ||
        note.sequence != peer.transfers_received)
      fail(ExitCode::internal,
           "group \"{}\": message {} from rank {} to rank {} has {} {}, expected message {} of {} {}", name(),
           note.sequence, p, rank(), note.elements, dtype_name(read_note(note).dtype),
           peer.transfers_received, t.elements(), dtype_name(t.dtype));
    if (b) wait(b, Way::recv, p);
  }

  void do_send(Tensor t, int p) override {
    const Buffer b = start_send(t, p);
    finish_send(b, p);
  }
  void do_recv(Tensor t, int p) override {
    const Buffer b = start_recv(t, p);
    finish_recv(b, t, p);
  }
  void do_send_recv(Tensor out, int to, Tensor in, int from) override {
    const Buffer r = start_recv(in, from);
    const Buffer s = start_send(out, to);
    finish_recv(r, in, from);
    finish_send(s, to);
  }

  std::shared_ptr<GlooTransport> transport_;
  std::shared_ptr<KeyValueStore> store_;
  std::string key_;
  GlooOptions options_;
  int64_t chunk_bytes_;
  std::vector<char> scratch_;
  GlooConnections connections_;
  std::vector<Peer> peers_;  // after connections_: its buffers are destroyed first
  std::vector<int>
      order_;  // the other ranks, starting with the next one, so that ranks start with different peers
  std::vector<const void*> sources_;
  CollectiveInfo info_;
  SteadyTime deadline_;
  int splits_ = 0;
  bool gave_up_ = false;
};

}  // namespace

int64_t gloo_scratch_bytes(int size, const GlooOptions& options) {
  return size <= 1 ? 0 : kWindow * (size - 1) * chunk_bytes(size, options);
}

std::unique_ptr<Communicator> make_gloo_group(std::shared_ptr<GlooTransport> transport,
                                              std::shared_ptr<KeyValueStore> store, const std::string& key,
                                              int rank, int size, std::string name, AxisSet axes,
                                              const GlooOptions& options) {
  if (size == 1) return make_single_group(std::move(name), axes);
  return std::make_unique<GlooGroup>(std::move(transport), std::move(store), key, rank, size, std::move(name),
                                     axes, options);
}

}  // namespace ltrain
