// A group of one: every collective is the identity.
#include "parallel/comm/communicator.h"

namespace ltrain {
namespace {

class SingleGroup final : public Communicator {
 public:
  SingleGroup(std::string name, AxisSet axes) : Communicator(0, 1, std::move(name), axes) {}
  std::unique_ptr<Communicator> split(int color, int, std::string name, AxisSet axes) override {
    return color < 0 ? nullptr : make_single_group(std::move(name), axes);
  }

 private:
  bool enqueues() const override { return true; }  // copies on the device
  void move(const Tensor& out, const Tensor& in, int64_t bytes) {
    if (bytes > 0 && out.data != in.data) stream()->copy(out.data, in.data, bytes);
    complete();
  }
  void do_all_reduce(Tensor, ReduceOp) override { complete(); }
  void do_all_gather(Tensor out, Tensor in) override { move(out, in, in.bytes()); }
  void do_reduce_scatter(Tensor out, Tensor in) override { move(out, in, in.bytes()); }
  void do_all_to_all_v(Tensor out, const std::vector<int64_t>&, Tensor in,
                       const std::vector<int64_t>& n) override {
    move(out, in, n[0] * dtype_size(in.dtype));
  }
  void do_broadcast(Tensor, int) override { complete(); }
  void do_reduce(Tensor, int) override { complete(); }
  // A group of one has no peer: the public functions throw before these are reached.
  void do_send(Tensor, int) override {}
  void do_recv(Tensor, int) override {}
  void do_send_recv(Tensor, int, Tensor, int) override {}
  void do_barrier() override { complete(); }
};

}  // namespace

std::unique_ptr<Communicator> make_single_group(std::string name, AxisSet axes) {
  return std::make_unique<SingleGroup>(std::move(name), axes);
}

}  // namespace ltrain
