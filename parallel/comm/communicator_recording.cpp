// Group of the meta device: checks placements, records bytes and order, moves nothing.
#include <cstdlib>

#include "kernels/meta/placement_rules.h"
#include "parallel/comm/communicator.h"
#include "parallel/comm/recorded_calls.h"

namespace ltrain {
namespace {

class RecordingGroup final : public Communicator {
 public:
  RecordingGroup(int rank, int size, std::string name, AxisSet axes, bool whole, double network_share,
                 std::vector<int> members)
      : Communicator(rank, size, std::move(name), axes),
        whole_(whole),
        network_share_(network_share),
        recorded_{std::move(members), {}} {}

  const RecordedCalls& recorded() const { return recorded_; }

  std::unique_ptr<Communicator> split(int color, int key, std::string name, AxisSet axes) override {
    fail(ExitCode::internal, "a recording group is made with its size, not split");
  }

 private:
  /// Cost of a call on the axes of this group. `longer`: those with several ranks.
  OpCost cost_of(const CollectiveCall& call, AxisSet longer) const {
    OpCost cost;
    cost.name = cost.collective = collective_name(call.info.op);
    cost.axis = axis_set_name(longer.bits ? longer : axes());
    cost.axes = axes();
    cost.cls = OpClass::collective;
    cost.dtype = call.info.dtype;
    cost.bytes = static_cast<double>(call.info.elements * dtype_size(call.info.dtype));
    // In an all_to_all, `elements` is the length of a row, on which all ranks agree.
    if (call.info.op == CollectiveOp::all_to_all) cost.bytes = static_cast<double>(call.in.bytes());
    cost.wire_bytes = static_cast<double>(call.wire_bytes);
    cost.received_bytes = static_cast<double>(call.received_bytes);
    cost.group_size = size();
    cost.network_bytes = cost.wire_bytes * network_share_;
    if (!recorded_.members.empty()) cost.ranks = &recorded_.members;
    return cost;
  }

  /// Records what a call between all ranks of the group does to placements.
  void place_by_kind(Stream& s, const std::string& op, const CollectiveCall& call) const {
    switch (call.info.op) {
      case CollectiveOp::all_reduce:
        // A maximum or minimum of varying values becomes equal on all ranks; only sums need P.
        place_collective(s, op, axes(), call.out, call.in,
                         call.info.reduce == ReduceOp::sum ? Placement::P() : Placement::V(), Placement::R());
        break;
      case CollectiveOp::reduce_scatter:
        place_collective(s, op, axes(), call.out, call.in, Placement::P(), Placement::S(0));
        break;
      case CollectiveOp::all_gather:
        place_collective(s, op, axes(), call.out, call.in, Placement::S(0), Placement::R());
        break;
      case CollectiveOp::all_to_all:
      case CollectiveOp::send_recv:
        // Each rank's own values before and after. Varying values must first be declared slices (place_as),
        // so that a call on another axis on which they also vary is an error.
        place_collective(s, op, axes(), call.out, call.in, Placement::S(0), Placement::S(0));
        break;
      case CollectiveOp::broadcast:
        place_broadcast(s, op, axes(), call.out, call.in);
        break;
      // each rank is the root of one of several calls, and ends with a block of its own
      case CollectiveOp::reduce:
        place_collective(s, op, axes(), call.out, call.in, Placement::P(), Placement::V());
        break;
      default:
        break;
    }
  }

  void record_meta(Stream& s, const CollectiveCall& call) override {
    recorded_.calls.push_back({call.info, s.meta()->layer()});
    const AxisSet longer = long_axes(axes(), [&](Axis a) { return s.meta()->axis_size(a); });
    int span = 1;
    for (int i = 0; i < kAxisCount; ++i)
      if (const Axis a = static_cast<Axis>(i); longer.has(a)) span *= s.meta()->axis_size(a);
    const OpCost cost = cost_of(call, longer);
    s.meta()->add(s, cost);
    if (whole_ && size() != span)  // a collective over some ranks of an axis is not one over the axis
      fail(ExitCode::internal,
           "placement error: {} in {}, axis {}: group \"{}\" has {} ranks but the axis has {}\n  fix: use "
           "the mesh's group of the axis",
           cost.name, s.meta()->layer().empty() ? "the step" : s.meta()->layer(), cost.axis, name(), size(),
           span);
    const bool transfer = call.info.op == CollectiveOp::send || call.info.op == CollectiveOp::recv;
    if (transfer && axes() == Axis::pipeline) {
      if (whole_)
        fail(ExitCode::internal, "placement error: {} in {}: group \"{}\" is no link between two stages",
             cost.name, s.meta()->layer(), name());
      return place_transfer(s, cost.name, call.out, call.in);
    }
    if (const TensorRecord* in = call.in.record; in && in->copies && in->copies != size())
      fail(ExitCode::internal,
           "placement error: {} in {}: '{}' is P over {} neighbours but group \"{}\" has {} ranks\n  fix: "
           "use the "
           "group of its copies",
           cost.name, s.meta()->layer(), in->name, in->copies, name(), size());
    if (size() == 1) return;
    place_by_kind(s, cost.name.empty() ? "collective" : std::string(cost.name), call);
  }

  static void none() { LT_CHECK(false, "expected a meta stream for a recording group, got another one"); }
  void do_all_reduce(Tensor, ReduceOp) override { none(); }
  void do_all_gather(Tensor, Tensor) override { none(); }
  void do_reduce_scatter(Tensor, Tensor) override { none(); }
  void do_all_to_all_v(Tensor, const std::vector<int64_t>&, Tensor, const std::vector<int64_t>&) override {
    none();
  }
  void do_broadcast(Tensor, int) override { none(); }
  void do_reduce(Tensor, int) override { none(); }
  void do_send(Tensor, int) override { none(); }
  void do_recv(Tensor, int) override { none(); }
  void do_send_recv(Tensor, int, Tensor, int) override { none(); }
  void do_barrier() override { none(); }

  bool whole_;
  double network_share_;
  RecordedCalls recorded_;
};

}  // namespace

std::unique_ptr<Communicator> make_recording_group(int rank, int size, std::string name, AxisSet axes,
                                                   bool whole, double network_share,
                                                   std::vector<int> members) {
  return std::make_unique<RecordingGroup>(rank, size, std::move(name), axes, whole, network_share,
                                          std::move(members));
}

const RecordedCalls* recorded_calls(const Communicator& group) {
  const auto* recording = dynamic_cast<const RecordingGroup*>(&group);
  return recording ? &recording->recorded() : nullptr;
}

}  // namespace ltrain
