#include "parallel/nccl/communicator_nccl.h"

#include <algorithm>

#include "kernels/tensor/device.h"
#include "kernels/tensor/out_of_memory.h"
#include "parallel/nccl/nccl_world.h"

namespace ltrain {
namespace {

using nccl::Status;

class NcclGroup final : public Communicator {
 public:
  NcclGroup(std::shared_ptr<NcclWorld> world, std::shared_ptr<NcclWorld::Watched> watched, int rank, int size,
            std::string name, AxisSet axes)
      : Communicator(rank, size, std::move(name), axes),
        world_(std::move(world)),
        watched_(std::move(watched)) {
    world_->watch_completions(*watched_, [this] { complete(); });
  }
  ~NcclGroup() override { world_->leave(*watched_); }

  std::unique_ptr<Communicator> split(int, int, std::string name, AxisSet) override {
    fail(ExitCode::internal, "group \"{}\": groups of NCCL are split from the world (\"{}\" is not)",
         Communicator::name(), name);
  }
  void check() const override { world_->check(); }
  void connect(Stream& s, int from, int to) override {
    const MemoryPurpose purpose("a first transfer between two ranks");
    const auto memory = device_memory(s.device(), 64);
    CollectiveInfo info;
    info.op = rank() == from ? CollectiveOp::send : CollectiveOp::recv;
    info.elements = 1, info.dtype = DType::u8, info.peer = rank() == from ? to : from;
    const auto body = [&](nccl::Library& n, nccl::Comm c) {
      return rank() == from ? n.send(c, s, memory.get(), 1, DType::u8, to)
                            : n.recv(c, s, memory.get(), 1, DType::u8, from);
    };
    world_->enqueue(*watched_, info, s, body, false);  // not a call of the step; its bytes are not counted
    s.synchronize();
    check();
  }

 private:
  bool enqueues() const override { return true; }
  void check_same(const CollectiveInfo& info) override { info_ = info; }

  /// Enqueues the calls of `body(library, comm, stream)`, and watches them.
  template <class F>
  void call(F&& body) {
    Stream& s = *stream();
    if (world_->options().wait_before_calls) s.synchronize();
    world_->enqueue(*watched_, info_, s, [&](nccl::Library& n, nccl::Comm c) { return body(n, c, s); });
  }
  void watch_recorded(Stream& s, const CollectiveInfo& last, size_t calls) override {
    world_->enqueue_recorded(*watched_, last, s, calls);
  }

  void do_all_reduce(Tensor t, ReduceOp op) override {
    call([&](auto& n, auto c, auto& s) { return n.all_reduce(c, s, t.data, t.elements(), t.dtype, op); });
  }
  void do_all_gather(Tensor out, Tensor in) override {
    call([&](auto& n, auto c, auto& s) {
      return n.all_gather(c, s, out.data, in.data, in.elements(), in.dtype);
    });
  }
  void do_reduce_scatter(Tensor out, Tensor in) override {
    call([&](auto& n, auto c, auto& s) {
      return n.reduce_scatter(c, s, out.data, in.data, out.elements(), in.dtype);
    });
  }
  void do_broadcast(Tensor t, int root) override {
    call([&](auto& n, auto c, auto& s) { return n.broadcast(c, s, t.data, t.elements(), t.dtype, root); });
  }
  void do_reduce(Tensor t, int root) override {
    call([&](auto& n, auto c, auto& s) { return n.reduce(c, s, t.data, t.elements(), t.dtype, root); });
  }
  void do_send(Tensor t, int peer) override {
    call([&](auto& n, auto c, auto& s) { return n.send(c, s, t.data, t.elements(), t.dtype, peer); });
  }
  void do_recv(Tensor t, int peer) override {
    call([&](auto& n, auto c, auto& s) { return n.recv(c, s, t.data, t.elements(), t.dtype, peer); });
  }
  void do_send_recv(Tensor out, int to, Tensor in, int from) override {
    call([&](auto& n, auto c, auto& s) {
      return together(n, [&](auto&& add) {
        add(n.send(c, s, out.data, out.elements(), out.dtype, to));
        add(n.recv(c, s, in.data, in.elements(), in.dtype, from));
      });
    });
  }
  void do_all_to_all_v(Tensor out, const std::vector<int64_t>& out_elements, Tensor in,
                       const std::vector<int64_t>& in_elements) override {
    char* to = static_cast<char*>(out.data);
    const char* from = static_cast<const char*>(in.data);
    const int64_t width = dtype_size(in.dtype);
    call([&](auto& n, auto c, auto& s) {
      return together(n, [&](auto&& add) {
        for (int r = 0; r < size(); ++r) {
          // NCCL waits for an empty message like for any other: both sides skip it.
          if (in_elements[r] > 0 && r == rank()) s.copy(to, from, in_elements[r] * width);
          if (in_elements[r] > 0 && r != rank()) add(n.send(c, s, from, in_elements[r], in.dtype, r));
          if (out_elements[r] > 0 && r != rank()) add(n.recv(c, s, to, out_elements[r], in.dtype, r));
          from += in_elements[r] * width;
          to += out_elements[r] * width;
        }
      });
    });
  }
  void do_barrier() override {
    fail(ExitCode::internal, "group \"{}\": a barrier of GPUs has no data to wait for; agree on the host",
         name());
  }

  /// First failure of grouped calls, else the result of their end.
  template <class F>
  static Status together(nccl::Library& n, F&& calls) {
    Status failed = n.group_start();
    if (failed.failed) return failed;
    calls([&](Status s) {
      if (s.failed && !failed.failed) failed = std::move(s);
    });
    Status end = n.group_end();
    return failed.failed ? failed : end;
  }

  std::shared_ptr<NcclWorld> world_;
  std::shared_ptr<NcclWorld::Watched> watched_;
  CollectiveInfo info_;
};

}  // namespace

std::shared_ptr<NcclWorld> make_nccl_world(std::shared_ptr<nccl::Library> library, KeyValueStore& store,
                                           const std::string& key, int rank, int size,
                                           const NcclOptions& options) {
  auto world = std::make_shared<NcclWorld>(std::move(library), rank, options);
  world->connect(store, key, size);
  return world;
}

void abort_nccl_world(NcclWorld& world, const std::string& why) { world.abort(why); }

int most_nccl_channels(GroupMessages messages) {
  switch (messages) {
    case GroupMessages::tensors:
      return 0;
    case GroupMessages::transfers:
      // Their kernels wait on the GPU for the other stage's: each channel is a block that computes nothing
      // meanwhile.
      return 4;
    case GroupMessages::numbers:
      // Some KiB, which one channel moves within the latency of a message.
      return 1;
  }
  fail(ExitCode::internal, "a group of {} messages", static_cast<int>(messages));
}

std::unique_ptr<Communicator> make_nccl_group(std::shared_ptr<NcclWorld> world, const std::vector<int>& ranks,
                                              std::string name, AxisSet axes, GroupMessages messages) {
  const auto here = std::find(ranks.begin(), ranks.end(), world->rank());
  LT_CHECK(ranks.empty() || here != ranks.end(),
           "expected world rank {} among the ranks of its group \"{}\", got a list without it", world->rank(),
           name);
  const int size = static_cast<int>(ranks.size()), place = static_cast<int>(here - ranks.begin());
  auto watched = world->split(size > 1 ? *std::min_element(ranks.begin(), ranks.end()) : -1, place, name,
                              place, most_nccl_channels(messages));
  if (size == 0) return nullptr;
  if (size == 1) return make_single_group(std::move(name), axes);
  return std::make_unique<NcclGroup>(std::move(world), std::move(watched), place, size, std::move(name),
                                     axes);
}

}  // namespace ltrain
