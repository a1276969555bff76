#include "parallel/shm/communicator_shm.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "parallel/comm/call_description.h"
#include "parallel/comm/split_members.h"
#include "parallel/shm/handshake.h"
#include "parallel/shm/segment.h"
#include "parallel/shm/signals.h"

namespace ltrain {
namespace {

using shm::Blocked;
using shm::kWindows;
using shm::RankControl;

/// Up to this size every rank sums the full tensor itself; above, each rank sums a part and the others copy
/// it. Two ranks always sum everything: that moves no more bytes and saves a round.
constexpr int64_t kSumAllBytes = 16 << 10;

shm::Layout layout_of(int size, const ShmOptions& o) {
  LT_CHECK(
      o.slot_bytes > 0 && o.slot_bytes % 4096 == 0 && o.transfer_bytes > 0 && o.transfer_bytes % 4096 == 0,
      "expected shared slots in multiples of 4096 bytes, got {} for collectives and {} for transfers",
      o.slot_bytes, o.transfer_bytes);
  return {size, o.slot_bytes, o.transfer_bytes};
}

double spin_seconds(int size, const ShmOptions& o) {
  if (o.spin_seconds >= 0) return o.spin_seconds;
  // With more ranks than cores, the awaited rank cannot run while this one spins.
  return size <= static_cast<int>(std::thread::hardware_concurrency()) ? 20e-6 : 1e-6;
}

void copy(char* to, const char* from, int64_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, static_cast<size_t>(bytes));
}

class ShmGroup final : public Communicator {
 public:
  ShmGroup(std::shared_ptr<KeyValueStore> store, std::string key, shm::Membership members, int rank, int size,
           std::string name, AxisSet axes, const ShmOptions& options)
      : Communicator(rank, size, std::move(name), axes),
        store_(std::move(store)),
        key_(std::move(key)),
        options_(options),
        segment_(members.memory, layout_of(size, options),
                 fmt::format("group \"{}\": rank 0", Communicator::name())),
        signals_(segment_, rank, std::move(members.own_life), std::move(members.others_life),
                 spin_seconds(size, options)),
        sources_(static_cast<size_t>(size)),
        last_offer_(static_cast<size_t>(size)),
        messages_to_(static_cast<size_t>(size)),
        messages_from_(static_cast<size_t>(size)) {
    for (int i = 1; i < size; ++i) order_.push_back((rank + i) % size);
  }

  std::unique_ptr<Communicator> split(int color, int key, std::string name, AxisSet axes) override {
    const std::string base = fmt::format("{}/split{}/", key_, ++splits_);
    const SplitPlace s =
        agree_on_split(*store_, base, rank(), size(), color, key, options_.connect_timeout_seconds);
    if (color < 0) return nullptr;
    return make_shm_group(store_, fmt::format("{}color{}", base, color), s.place, s.count, std::move(name),
                          axes, options_);
  }

 private:
  RankControl& control(int r) const { return segment_.control(r); }

  // ---- waits ----

  template <class F>
  void wait(F&& blocked) {
    const shm::Lost lost = signals_.wait(blocked, options_.timeout_seconds);
    if (lost.rank >= 0) [[unlikely]]
      fail_lost(lost);
  }

  [[noreturn]] void fail_lost(const shm::Lost& lost) {
    culprit_ = lost.rank;
    switch (lost.how) {
      case shm::Lost::How::timed_out:
        fail(ExitCode::rank_lost, "group \"{}\": rank {} waited {:g} s for rank {} in {}", name(), rank(),
             options_.timeout_seconds, lost.rank, to_string(info_));
      case shm::Lost::How::died:
        fail(ExitCode::rank_lost, "group \"{}\": rank {} lost rank {} in {}: its process has ended", name(),
             rank(), lost.rank, to_string(info_));
      case shm::Lost::How::left:
        fail(ExitCode::rank_lost, "group \"{}\": rank {} lost rank {} in {}: it has left the group", name(),
             rank(), lost.rank, to_string(info_));
      case shm::Lost::How::gave_up:
        fail(ExitCode::rank_lost, "group \"{}\": rank {} lost rank {} in {}: it has failed{}", name(), rank(),
             lost.rank, to_string(info_),
             lost.culprit >= 0 ? fmt::format(" waiting for rank {}", lost.culprit) : "");
    }
    LT_CHECK(false, "expected a known end of a wait, got another one");
    std::abort();
  }

  /// Runs a call. If it throws, the others learn that this rank stops.
  template <class F>
  void call(F&& body) {
    try {
      body();
    } catch (...) {
      const bool transfer = info_.op == CollectiveOp::send || info_.op == CollectiveOp::recv ||
                            info_.op == CollectiveOp::send_recv;
      signals_.give_up(transfer ? entered_ + 1 : info_.sequence, culprit_);
      throw;
    }
  }

  // ---- begin of a collective: all ranks publish their call, and compare ----

  void check_same(const CollectiveInfo& info) override { info_ = info; }

  /// Enters the collective and returns after all ranks have. `fill(0)` puts this rank's first piece into the
  /// slot of chunk 0, if this rank `posts` any. If that slot is already free, this happens before the others
  /// are woken, so that a small call takes one round.
  ///
  /// Free slots: all ranks have entered the previous collective, so that all have finished the ones before
  /// it; after all have entered this one, they have also finished the previous.
  template <class Fill>
  void begin(bool posts, Fill&& fill) {
    RankControl& me = control(rank());
    first_ = next_;
    const bool early = posts && first_ < previous_ + kWindows;
    if (early) {
      fill(0);
      me.posted.store(first_ + 1, std::memory_order_release);
    }
    me.notes[info_.sequence % 2].note = make_note(info_);
    entered_ = info_.sequence;
    signals_.publish(me.entered, entered_);
    wait([&] {
      for (int p : order_)
        if (control(p).entered.load(std::memory_order_seq_cst) < entered_) return Blocked{p};
      return Blocked{};
    });
    compare();
    if (posts && !early) {
      fill(0);
      signals_.publish(me.posted, first_ + 1);
    }
  }
  /// Sets the number of chunks, on which all ranks agree.
  void set_chunks(int64_t chunks) {
    previous_ = first_;
    next_ = first_ + static_cast<uint64_t>(chunks);
  }

  CollectiveInfo call_of(int r) const {
    return r == rank() ? info_ : read_note(control(r).notes[info_.sequence % 2].note);
  }

  /// Every rank has all notes by now, and all compare with rank 0, so that all report the same.
  void compare() {
    const CollectiveInfo first = call_of(0);
    for (int r = 1; r < size(); ++r)
      if (const CollectiveInfo other = call_of(r); !same_call(first, other))
        throw Error(ExitCode::internal, mismatch_text(name(), 0, first, r, other));
    if (info_.op == CollectiveOp::all_to_all) compare_pairs();
    if (const shm::Lost lost = signals_.gave_up(info_.sequence); lost.rank >= 0) fail_lost(lost);
  }

  int64_t sends(int from, int to) const { return segment_.pair_table(from, info_.sequence)[to]; }
  int64_t expects(int to, int from) const { return segment_.pair_table(to, info_.sequence)[size() + from]; }
  void compare_pairs() {
    for (int from = 0; from < size(); ++from)
      for (int to = 0; to < size(); ++to)
        if (const int64_t sent = sends(from, to), wanted = expects(to, from); sent != wanted)
          fail(ExitCode::internal, "group \"{}\", {}: rank {} sends {} elements to rank {}, which expects {}",
               name(), to_string(info_), from, sent, to, wanted);
  }

  // ---- chunks in the slots ----

  char* slot(int r, int64_t k) const { return segment_.slot(r, first_ + static_cast<uint64_t>(k)); }

  /// Waits until `counter` of all ranks (or of `only`) is past chunk k.
  void wait_past(std::atomic<uint64_t> RankControl::*counter, int64_t k, int only = -1) {
    const uint64_t wanted = first_ + static_cast<uint64_t>(k) + 1;
    wait([&] {
      for (int p : order_)
        if ((only < 0 || p == only) && (control(p).*counter).load(std::memory_order_seq_cst) < wanted)
          return Blocked{p};
      return Blocked{};
    });
  }
  void publish(std::atomic<uint64_t> RankControl::*counter, int64_t k) {
    signals_.publish(control(rank()).*counter, first_ + static_cast<uint64_t>(k) + 1);
  }

  template <class Fill>
  void post(int64_t k, Fill& fill) {
    if (k >= kWindows) wait_past(&RankControl::consumed, k - kWindows);
    fill(k);
    publish(&RankControl::posted, k);
  }
  /// Published only if a rank waits for it: entering the next call implies it for the last chunks.
  void consumed(int64_t k, int64_t chunks) {
    if (k + kWindows < chunks) publish(&RankControl::consumed, k);
  }

  /// One round for each chunk: each rank (or only `root`) fills its slot, then reads the others'.
  template <class Fill, class Take>
  void exchange(int64_t chunks, Fill&& fill, Take&& take, int root = -1) {
    const bool posts = chunks > 0 && (root < 0 || root == rank());
    const bool takes = root != rank();
    begin(posts, fill);
    set_chunks(chunks);
    run_chunks(chunks, posts, takes, fill, take, root);
  }
  template <class Fill, class Take>
  void run_chunks(int64_t chunks, bool posts, bool takes, Fill& fill, Take& take, int root = -1) {
    for (int64_t k = 0; k < chunks; ++k) {
      if (posts && k + 1 < chunks) post(k + 1, fill);
      if (!takes) continue;
      wait_past(&RankControl::posted, k, root);
      take(k);
      consumed(k, chunks);
    }
  }

  /// A slot divided into one lane for each other rank.
  int64_t lane_bytes() const { return options_.slot_bytes / (size() - 1) / 64 * 64; }
  char* lane(int from, int to, int64_t k) const {
    return slot(from, k) + (to - from - 1 + size()) % size() * lane_bytes();
  }
  static int64_t chunks_of(int64_t bytes, int64_t chunk) { return (bytes + chunk - 1) / chunk; }
  static int64_t piece(int64_t bytes, int64_t chunk, int64_t k) {
    return std::clamp<int64_t>(bytes - k * chunk, 0, chunk);
  }

  // ---- reductions ----

  void do_all_reduce(Tensor t, ReduceOp op) override {
    call([&] {
      if (size() == 2 || t.bytes() <= kSumAllBytes)
        sum_all(t, op);
      else
        sum_parts(t, op);
    });
  }

  /// `out` may be `own`, this rank's summand; the others' are in their slots at `at` of chunk k.
  template <class At>
  void reduce(char* out, const char* own, int64_t bytes, DType dtype, ReduceOp op, At&& at) {
    if (bytes <= 0) return;
    for (int p : order_) sources_[static_cast<size_t>(p)] = at(p);
    sources_[static_cast<size_t>(rank())] = own;
    reduce_ordered(out, sources_.data(), size(), bytes / dtype_size(dtype), dtype, op);
  }

  void sum_all(const Tensor& t, ReduceOp op) {
    char* data = static_cast<char*>(t.data);
    const int64_t bytes = t.bytes(), chunk = options_.slot_bytes;
    exchange(
        chunks_of(bytes, chunk),
        [&](int64_t k) { copy(slot(rank(), k), data + k * chunk, piece(bytes, chunk, k)); },
        [&](int64_t k) {
          char* at = data + k * chunk;
          reduce(at, at, piece(bytes, chunk, k), t.dtype, op, [&](int p) { return slot(p, k); });
        });
  }

  /// Chunk by chunk: a rank sums its part of the chunk from all slots and writes the sum to its own slot,
  /// which need not hold its own summand; then all copy each other's sums.
  void sum_parts(const Tensor& t, ReduceOp op) {
    char* data = static_cast<char*>(t.data);
    const int64_t width = dtype_size(t.dtype), chunk = options_.slot_bytes;
    const int64_t bytes = t.bytes(), chunks = chunks_of(bytes, chunk);
    auto part = [&](int64_t k, int r) {  // part of rank r in chunk k, in bytes
      const PartRange p = part_of(piece(bytes, chunk, k) / width, size(), r);
      return PartRange{p.begin * width, p.count * width};
    };
    auto fill = [&](int64_t k) {
      const char* from = data + k * chunk;
      const PartRange own = part(k, rank());
      const int64_t end = own.begin + own.count;
      copy(slot(rank(), k), from, own.begin);
      copy(slot(rank(), k) + end, from + end, piece(bytes, chunk, k) - end);
    };
    auto collect = [&](int64_t k) {
      wait_past(&RankControl::reduced, k);
      for (int p : order_) {
        const PartRange theirs = part(k, p);
        copy(data + k * chunk + theirs.begin, slot(p, k) + theirs.begin, theirs.count);
      }
      consumed(k, chunks);
    };
    begin(true, fill);
    set_chunks(chunks);
    for (int64_t k = 0; k < chunks; ++k) {
      if (k + 1 < chunks) post(k + 1, fill);
      wait_past(&RankControl::posted, k);
      const PartRange own = part(k, rank());
      char* at = data + k * chunk + own.begin;
      reduce(at, at, own.count, t.dtype, op, [&](int p) { return slot(p, k) + own.begin; });
      copy(slot(rank(), k) + own.begin, at, own.count);
      publish(&RankControl::reduced, k);
      if (k > 0) collect(k - 1);
    }
    collect(chunks - 1);
  }

  void do_reduce_scatter(Tensor out, Tensor in) override {
    call([&] {
      const char* from = static_cast<const char*>(in.data);
      const int64_t bytes = out.bytes(), chunk = lane_bytes();
      exchange(
          chunks_of(bytes, chunk),
          [&](int64_t k) {
            for (int p : order_)
              copy(lane(rank(), p, k), from + p * bytes + k * chunk, piece(bytes, chunk, k));
          },
          [&](int64_t k) {
            reduce(static_cast<char*>(out.data) + k * chunk, from + rank() * bytes + k * chunk,
                   piece(bytes, chunk, k), in.dtype, ReduceOp::sum,
                   [&](int p) { return lane(p, rank(), k); });
          });
    });
  }

  void do_reduce(Tensor t, int root) override {
    call([&] {
      char* data = static_cast<char*>(t.data);
      const int64_t bytes = t.bytes(), chunk = options_.slot_bytes, chunks = chunks_of(bytes, chunk);
      const bool posts = chunks > 0 && rank() != root;
      auto fill = [&](int64_t k) { copy(slot(rank(), k), data + k * chunk, piece(bytes, chunk, k)); };
      begin(posts, fill);
      set_chunks(chunks);
      for (int64_t k = 0; k < chunks; ++k) {
        if (posts && k + 1 < chunks) post(k + 1, fill);
        if (!posts) {
          wait_past(&RankControl::posted, k);
          char* at = data + k * chunk;
          reduce(at, at, piece(bytes, chunk, k), t.dtype, ReduceOp::sum, [&](int p) { return slot(p, k); });
        }
        consumed(k, chunks);  // all except the root have not read it, and no rank waits for them
      }
    });
  }

  // ---- moves ----

  void do_all_gather(Tensor out, Tensor in) override {
    call([&] {
      const char* from = static_cast<const char*>(in.data);
      char* to = static_cast<char*>(out.data);
      const int64_t bytes = in.bytes(), chunk = options_.slot_bytes;
      exchange(
          chunks_of(bytes, chunk),
          [&](int64_t k) { copy(slot(rank(), k), from + k * chunk, piece(bytes, chunk, k)); },
          [&](int64_t k) {
            for (int p : order_) copy(to + p * bytes + k * chunk, slot(p, k), piece(bytes, chunk, k));
          });
      copy(to + rank() * bytes, from, bytes);
    });
  }

  void do_broadcast(Tensor t, int root) override {
    call([&] {
      char* data = static_cast<char*>(t.data);
      const int64_t bytes = t.bytes(), chunk = options_.slot_bytes;
      exchange(
          chunks_of(bytes, chunk),
          [&](int64_t k) { copy(slot(root, k), data + k * chunk, piece(bytes, chunk, k)); },
          [&](int64_t k) { copy(data + k * chunk, slot(root, k), piece(bytes, chunk, k)); }, root);
    });
  }

  void do_all_to_all_v(Tensor out, const std::vector<int64_t>& out_elements, Tensor in,
                       const std::vector<int64_t>& in_elements) override {
    call([&] {
      const int64_t width = dtype_size(in.dtype), chunk = lane_bytes();
      std::vector<const char*> from;
      std::vector<char*> to;
      const char* next_from = static_cast<const char*>(in.data);
      char* next_to = static_cast<char*>(out.data);
      int64_t* table = segment_.pair_table(rank(), info_.sequence);
      for (int r = 0; r < size(); ++r) {
        from.push_back(next_from), to.push_back(next_to);
        next_from += in_elements[r] * width, next_to += out_elements[r] * width;
        table[r] = in_elements[r], table[size() + r] = out_elements[r];
      }
      auto fill = [&](int64_t k) {
        for (int p : order_)
          copy(lane(rank(), p, k), from[p] + k * chunk, piece(in_elements[p] * width, chunk, k));
      };
      auto take = [&](int64_t k) {
        for (int p : order_)
          copy(to[p] + k * chunk, lane(p, rank(), k), piece(out_elements[p] * width, chunk, k));
      };
      begin(true, fill);
      int64_t chunks = 1;  // chunk 0 always exists
      for (int a = 0; a < size(); ++a)
        for (int b = 0; b < size(); ++b)
          if (a != b) chunks = std::max(chunks, chunks_of(sends(a, b) * width, chunk));
      set_chunks(chunks);
      run_chunks(chunks, true, true, fill, take);
      copy(to[rank()], from[rank()], in_elements[rank()] * width);
    });
  }

  void do_barrier() override {
    call([&] {
      begin(false, [](int64_t) {});
      set_chunks(0);
    });
  }

  // ---- between two ranks ----
  //
  // A rank sends one message at a time and continues after all of it is taken. One row of slots is therefore
  // enough for any receiver, and the offer stands until the receiver has seen it.

  struct Sending {
    const char* data = nullptr;
    int64_t bytes = 0, chunks = 0, k = 0;
    int to = -1;
    bool offered = false;
  };
  struct Receiving {
    char* data = nullptr;
    int64_t bytes = 0, chunks = 0, k = 0;
    int from = -1;
    bool seen = false;
    uint64_t first = 0;  // first slot of the message on the sender
    Tensor tensor;
  };

  static int64_t transfer_chunks(int64_t bytes, int64_t chunk) {
    return std::max<int64_t>(1, chunks_of(bytes, chunk));  // an empty message takes a slot, too
  }
  Sending start_send(const Tensor& t, int to) {
    RankControl& me = control(rank());
    me.transfer_note = make_note(info_);
    me.transfer_note.sequence = ++messages_to_[static_cast<size_t>(to)];
    me.transfer_note.elements = t.elements();
    me.transfer_note.dtype = static_cast<uint8_t>(t.dtype);
    return {static_cast<const char*>(t.data),
            t.bytes(),
            transfer_chunks(t.bytes(), options_.transfer_bytes),
            0,
            to,
            false};
  }
  Receiving start_recv(const Tensor& t, int from) {
    ++messages_from_[static_cast<size_t>(from)];
    Receiving r{.data = static_cast<char*>(t.data),
                .bytes = t.bytes(),
                .chunks = transfer_chunks(t.bytes(), options_.transfer_bytes),
                .k = 0,
                .from = from,
                .seen = false,
                .first = 0,
                .tensor = t};
    return r;
  }

  uint64_t taken() const { return control(rank()).transfer_taken.load(std::memory_order_seq_cst); }
  bool done(const Sending& s) const { return s.k == s.chunks && taken() == sent_slots_; }
  bool can_go_on(const Sending& s) const {
    return s.k < s.chunks ? sent_slots_ - taken() < shm::kTransferWindows : taken() == sent_slots_;
  }
  void go_on(Sending& s) {
    if (s.k == s.chunks) return;
    RankControl& me = control(rank());
    const int64_t chunk = options_.transfer_bytes;
    copy(segment_.transfer_slot(rank(), sent_slots_), s.data + s.k * chunk, piece(s.bytes, chunk, s.k));
    ++s.k, ++sent_slots_;
    if (s.offered) return signals_.publish_to(s.to, me.transfer_posted, sent_slots_);
    s.offered = true;
    me.transfer_posted.store(sent_slots_, std::memory_order_release);
    signals_.publish_to(s.to, me.offer, ++offers_ << 16 | static_cast<uint64_t>(s.to));
  }

  bool done(const Receiving& r) const { return r.k == r.chunks; }
  bool can_go_on(const Receiving& r) const {
    RankControl& c = control(r.from);
    if (r.seen)
      return c.transfer_posted.load(std::memory_order_seq_cst) > r.first + static_cast<uint64_t>(r.k);
    const uint64_t offer = c.offer.load(std::memory_order_seq_cst);
    return (offer & 0xffff) == static_cast<uint64_t>(rank()) &&
           offer >> 16 > last_offer_[static_cast<size_t>(r.from)];
  }
  void go_on(Receiving& r) {
    RankControl& c = control(r.from);
    if (!r.seen) {
      r.seen = true;
      last_offer_[static_cast<size_t>(r.from)] = c.offer.load(std::memory_order_seq_cst) >> 16;
      r.first = c.transfer_taken.load(std::memory_order_seq_cst);
      compare_message(c.transfer_note, r);
    }
    const int64_t chunk = options_.transfer_bytes;
    const uint64_t n = r.first + static_cast<uint64_t>(r.k);
    copy(r.data + r.k * chunk, segment_.transfer_slot(r.from, n), piece(r.bytes, chunk, r.k));
    ++r.k;
    signals_.publish_to(r.from, c.transfer_taken, n + 1);
  }
  void compare_message(const Note note, const Receiving& r) {
    const uint64_t wanted = messages_from_[static_cast<size_t>(r.from)];
    if (note.elements != r.tensor.elements() || note.dtype != static_cast<uint8_t>(r.tensor.dtype) ||
        note.sequence != wanted)
      fail(ExitCode::internal,
           "group \"{}\": message {} from rank {} to rank {} has {} {}, expected message {} of {} {}", name(),
           note.sequence, r.from, rank(), note.elements, dtype_name(read_note(note).dtype), wanted,
           r.tensor.elements(), dtype_name(r.tensor.dtype));
  }

  template <class Half>
  void finish(Half& h, int peer) {
    while (!done(h)) {
      wait([&] { return can_go_on(h) ? Blocked{} : Blocked{peer}; });
      go_on(h);
    }
  }
  void do_send(Tensor t, int p) override {
    call([&] {
      Sending s = start_send(t, p);
      finish(s, p);
    });
  }
  void do_recv(Tensor t, int p) override {
    call([&] {
      Receiving r = start_recv(t, p);
      finish(r, p);
    });
  }
  void do_send_recv(Tensor out, int to, Tensor in, int from) override {
    call([&] {
      Sending s = start_send(out, to);
      Receiving r = start_recv(in, from);
      while (!done(s) && !done(r)) {
        wait([&] { return can_go_on(s) || can_go_on(r) ? Blocked{} : Blocked{from, to}; });
        if (can_go_on(s)) go_on(s);
        if (can_go_on(r)) go_on(r);
      }
      finish(r, from);
      finish(s, to);
    });
  }

  std::shared_ptr<KeyValueStore> store_;
  const std::string key_;
  const ShmOptions options_;
  shm::Segment segment_;
  shm::Signals signals_;    // after segment_: its destructor writes there
  std::vector<int> order_;  // the other ranks, starting with the next one
  std::vector<const void*> sources_;
  CollectiveInfo info_;
  int culprit_ = -1;
  uint64_t entered_ = 0;
  uint64_t first_ = 0, next_ = 0;  // chunks before this call, and before the next
  uint64_t previous_ = 0;          // chunks before the previous call
  uint64_t sent_slots_ = 0, offers_ = 0;
  std::vector<uint64_t> last_offer_, messages_to_, messages_from_;  // indexed by rank
  int splits_ = 0;
};

}  // namespace

int shm_max_ranks() { return shm::kMaxRanks; }
int64_t shm_segment_bytes(int size, const ShmOptions& options) {
  return size <= 1 ? 0 : layout_of(size, options).total_bytes();
}
std::string shm_unavailable() { return shm::unavailable(); }

std::unique_ptr<Communicator> make_shm_group(std::shared_ptr<KeyValueStore> store, const std::string& key,
                                             int rank, int size, std::string name, AxisSet axes,
                                             const ShmOptions& options) {
  if (size == 1) return make_single_group(std::move(name), axes);
  LT_CHECK(size <= shm::kMaxRanks, "group \"{}\": expected at most {} ranks for shared memory, got {}", name,
           shm::kMaxRanks, size);
  shm::Membership members =
      shm::meet(*store, key, name, rank, layout_of(size, options), options.connect_timeout_seconds);
  return std::make_unique<ShmGroup>(std::move(store), key, std::move(members), rank, size, std::move(name),
                                    axes, options);
}

}  // namespace ltrain
