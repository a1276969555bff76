#include "tests/parity/mutant_group.h"

namespace ltrain::test {

MutantGroup::MutantGroup(std::unique_ptr<Communicator> inner, Mutation mutation, int64_t target,
                         std::unique_ptr<Communicator> other)
    : Communicator(inner->rank(), inner->size(), inner->name(), inner->axes()),
      inner_(std::move(inner)),
      other_(std::move(other)),
      mutation_(mutation),
      target_(target) {}

std::unique_ptr<Communicator> MutantGroup::split(int, int, std::string, AxisSet) { unknown(); }

template <class F>
void MutantGroup::mutate(const char* name, F&& call) {
  const bool now = calls_++ == target_;
  if (now) target_name_ = name;
  if (!now || mutation_ == Mutation::none) return call(*inner_);
  if (mutation_ == Mutation::remove) return;
  if (mutation_ == Mutation::elsewhere) return call(*other_);
  call(*inner_);
  call(*inner_);
}

void MutantGroup::record_meta(Stream& s, const CollectiveCall& call) {
  mutate(collective_name(call.info.op), [&](Communicator& group) {
    switch (call.info.op) {
      case CollectiveOp::all_reduce:
        return group.all_reduce(s, call.out, call.info.reduce);
      case CollectiveOp::all_gather:
        return group.all_gather(s, call.out, call.in);
      case CollectiveOp::reduce_scatter:
        return group.reduce_scatter(s, call.out, call.in);
      case CollectiveOp::all_to_all: {  // placements do not depend on the parts
        const std::vector<int64_t> none(static_cast<size_t>(group.size()), 0);
        return group.all_to_all_v(s, call.out, none, call.in, none);
      }
      case CollectiveOp::send_recv: {
        const int peer = (group.rank() + 1) % group.size();
        return group.send_recv(s, call.in, peer, call.out, peer);
      }
      case CollectiveOp::send:
        return group.send(s, call.in, call.info.peer);
      case CollectiveOp::recv:
        return group.recv(s, call.out, call.info.peer);
      case CollectiveOp::broadcast:
        return group.broadcast(s, call.out, call.in, call.info.peer);
      case CollectiveOp::reduce:
        return group.reduce(s, call.out, call.info.peer);
      default:
        unknown();
    }
  });
}

void MutantGroup::do_all_reduce(Tensor t, ReduceOp op) {
  mutate("all_reduce", [&](Communicator& group) { group.all_reduce(*inline_, t, op); });
}
void MutantGroup::do_all_gather(Tensor out, Tensor in) {
  mutate("all_gather", [&](Communicator& group) { group.all_gather(*inline_, out, in); });
}
void MutantGroup::do_send(Tensor t, int peer) {
  mutate("send", [&](Communicator& group) { group.send(*inline_, t, peer); });
}
void MutantGroup::do_recv(Tensor t, int peer) {
  mutate("recv", [&](Communicator& group) { group.recv(*inline_, t, peer); });
}
void MutantGroup::do_reduce_scatter(Tensor out, Tensor in) {
  mutate("reduce_scatter", [&](Communicator& group) { group.reduce_scatter(*inline_, out, in); });
}

void MutantGroup::do_broadcast(Tensor t, int root) {
  mutate("broadcast", [&](Communicator& group) { group.broadcast(*inline_, t, root); });
}
void MutantGroup::do_reduce(Tensor t, int root) {
  mutate("reduce", [&](Communicator& group) { group.reduce(*inline_, t, root); });
}

void MutantGroup::do_all_to_all_v(Tensor out, const std::vector<int64_t>& out_elements, Tensor in,
                                  const std::vector<int64_t>& in_elements) {
  mutate("all_to_all", [&](Communicator& group) {
    group.all_to_all_v(*inline_, out.view({out.elements()}), out_elements, in.view({in.elements()}),
                       in_elements);
  });
}
void MutantGroup::do_send_recv(Tensor out, int to, Tensor in, int from) {
  mutate("send_recv", [&](Communicator& group) { group.send_recv(*inline_, out, to, in, from); });
}

}  // namespace ltrain::test
