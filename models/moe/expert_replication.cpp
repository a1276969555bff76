// Replicas of hot experts in an MoE layer.
#include "kernels/elementwise/tensor_ops.h"
#include "kernels/matmul/grouped_bias.h"
#include "kernels/meta/placement_rules.h"
#include "kernels/moe/token_rows.h"
#include "models/moe/moe_layer.h"

namespace ltrain {
namespace {

/// If tensor ranks have their own rows, these are slices of all rows: for a replica they vary, like those of
/// data ranks.
void claim(Step& step, Tensor t, Placement from, Placement to) {
  if (step.groups.mesh.expert_axes.has(Axis::tensor))
    place_as(step.compute, ExpertExchange::kRows.op, Axis::tensor, t, from, to);
}

}  // namespace

void MoeLayer::copies_forward(Step& step, Tensor tokens, Saved& saved) const {
  saved.copied.assign(saved.copies.size(), {});
  for (size_t i = 0; i < saved.copies.size(); ++i) {
    const ExpertReplicas::Copy& copy = saved.copies[i];
    Chunk& c = saved.copied[i];
    c.dispatched = copy.dispatched;
    c.rows = step.activation("rows of a copied expert", tokens.shape);
    c.dispatched.out = step.activation("rows from a copied expert", tokens.shape);
    if (copy.expert >= 0) {
      permute_rows(step.compute, c.rows, tokens, c.dispatched.routing, c.dispatched.counts.sorted);
      claim(step, c.rows, Placement::S(0), Placement::V());
      copy.arrived.wait(step.compute);
    }
    run_experts(step, c, 0, c.dispatched.out, copied(step, copy));
    claim(step, c.dispatched.out, Placement::V(), Placement::S(0));
  }
}

void MoeLayer::copies_combine(Step& step, Tensor y, Saved& saved) const {
  for (size_t i = 0; i < saved.copies.size(); ++i) {
    Dispatched& d = saved.copied[i].dispatched;
    if (y.defined()) {
      Tensor more = step.temporary("tokens of a copied expert", y.shape);
      if (saved.copies[i].expert >= 0) {
        combine_rows(step.compute, more, d.out, d.routing, true);
        add_to(step.compute, y, more);
      }
      step.release(more);
    }
    if (!step.keeps()) step.release(d.out);
  }
}

std::vector<Tensor> MoeLayer::copies_backward(Step& step, Tensor dweights, Tensor dy, Saved& saved) const {
  std::vector<Tensor> all;
  if (saved.copies.empty()) return all;
  const GradBuffer gate_up = step.params.accumulate(gate_up_), down = step.params.accumulate(down_);
  GradBuffer gate_up_bias, down_bias;
  if (gate_up_bias_ >= 0)
    gate_up_bias = step.params.accumulate(gate_up_bias_), down_bias = step.params.accumulate(down_bias_);
  for (size_t i = 0; i < saved.copies.size(); ++i) {
    ExpertReplicas::Copy& copy = saved.copies[i];
    Chunk& c = saved.copied[i];
    const auto room = [&](const char* name, const GradBuffer& to, Shape shape) {
      return step.memory.allocate(MemoryKind::temporaries, name, to.tensor.dtype, shape);
    };
    Tensor dout = step.temporary("d rows from a copied expert", c.dispatched.out.shape);
    Tensor more = step.memory.allocate(MemoryKind::temporaries, "d weights of a copied expert",
                                       dweights.dtype, dweights.shape);
    Tensor drows = step.temporary("d rows of a copied expert", c.rows.shape);
    Tensor dgate_up = room("d copy of gate and up", gate_up, copy.stacks.gate_up.shape),
           ddown = room("d copy of down", down, copy.stacks.down.shape);
    Tensor dgate_up_bias, ddown_bias;
    if (gate_up_bias_ >= 0) {
      dgate_up_bias = room("d copy of the bias of gate and up", gate_up_bias, copy.stacks.gate_up_bias.shape);
      ddown_bias = room("d copy of the bias of down", down_bias, copy.stacks.down_bias.shape);
    }
    if (copy.expert >= 0) {
      combine_rows_backward(step.compute, dout, more, dy, c.dispatched.out, c.dispatched.routing);
      add_to(step.compute, dweights, more);
      claim(step, dout, Placement::S(0), Placement::V());
    }
    rows_backward(step, drows, dout, c, 0, copied(step, copy));
    claim(step, drows, Placement::V(), Placement::S(0));
    if (copy.expert >= 0) {
      const GroupRows& groups = c.dispatched.counts.groups;
      experts_dw(step, ddown, down_slot_, dout, c.act, groups, false);
      experts_dw(step, dgate_up, gate_up_slot_, c.hidden, c.rows, groups, false);
      std::vector<std::pair<Tensor, Tensor>> sums{{down.tensor, ddown}, {gate_up.tensor, dgate_up}};
      if (gate_up_bias_ >= 0) {
        grouped_sum_rows(step.compute, ddown_bias, dout, groups, false);
        grouped_sum_rows(step.compute, dgate_up_bias, c.hidden, groups, false);
        sums.insert(sums.end(), {{down_bias.tensor, ddown_bias}, {gate_up_bias.tensor, dgate_up_bias}});
      }
      for (auto& [stack, dcopy] : sums) {
        replicas_->sum_gradient(step, copy, dcopy);
        claim(step, dcopy, Placement::V(), Placement::S(0));
        replicas_->give_gradient(step, copy, stack, dcopy);
      }
    }
    for (Tensor* t : {&dout, &more, &dgate_up, &ddown, &dgate_up_bias, &ddown_bias, &c.rows, &c.hidden,
                      &c.act, &c.dispatched.out})
      step.release(*t);
    all.push_back(drows);
  }
  for (const int id : {down_, gate_up_, down_bias_, gate_up_bias_})
    if (id >= 0) step.params.grad_ready(id);
  return all;
}

void MoeLayer::copies_permute_backward(Step& step, Tensor dx, std::vector<Tensor>& drows,
                                       Saved& saved) const {
  for (size_t i = 0; i < drows.size(); ++i) {
    Tensor more = step.temporary("d tokens of a copied expert", dx.shape);
    if (saved.copies[i].expert >= 0) {
      combine_rows(step.compute, more, drows[i], saved.copied[i].dispatched.routing, false);
      add_to(step.compute, dx, more);
    }
    step.release(more);
    step.release(drows[i]);
    ExpertReplicas::release(step, saved.copies[i]);
  }
}

}  // namespace ltrain
