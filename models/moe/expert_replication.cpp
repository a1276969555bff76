// Replicas of hot experts in an MoE layer.
#include "kernels/elementwise/tensor_ops.h"
#include "kernels/matmul/grouped/grouped_bias.h"
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
  struct Part {
    int id, slot;
    bool bias, of_down;
    const char* name;
    GradBuffer to = {};
  };
  std::vector<Part> parts;
  for (Part p : {Part{down_, down_slot_, false, true, "d copy of down"},
                 Part{gate_up_, gate_up_slot_, false, false, "d copy of gate and up"},
                 Part{down_bias_, -1, true, true, "d copy of the bias of down"},
                 Part{gate_up_bias_, -1, true, false, "d copy of the bias of gate and up"}}) {
    if (p.id < 0 || !step.params.trains(p.id)) continue;
    p.to = step.params.accumulate(p.id);
    parts.push_back(p);
  }
  for (size_t i = 0; i < saved.copies.size(); ++i) {
    ExpertReplicas::Copy& copy = saved.copies[i];
    Chunk& c = saved.copied[i];
    Tensor dout = step.temporary("d rows from a copied expert", c.dispatched.out.shape);
    Tensor more = step.memory.allocate(MemoryKind::temporaries, "d weights of a copied expert",
                                       dweights.dtype, dweights.shape);
    Tensor drows = step.temporary("d rows of a copied expert", c.rows.shape);
    std::vector<Tensor> dcopies;
    for (const Part& p : parts) {
      Shape one = p.to.tensor.shape;
      one.dims[0] = 1;
      dcopies.push_back(step.memory.allocate(MemoryKind::temporaries, p.name, p.to.tensor.dtype, one));
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
      for (size_t k = 0; k < parts.size(); ++k) {
        const Part& p = parts[k];
        const Tensor dy = p.of_down ? dout : c.hidden, x = p.of_down ? c.act : c.rows;
        if (p.bias)
          grouped_sum_rows(step.compute, dcopies[k], dy, groups, false);
        else
          experts_dw(step, dcopies[k], p.slot, dy, x, groups, false);
        replicas_->sum_gradient(step, copy, dcopies[k]);
        claim(step, dcopies[k], Placement::V(), Placement::S(0));
        replicas_->give_gradient(step, copy, p.to.tensor, dcopies[k]);
      }
    }
    for (Tensor& t : dcopies) step.release(t);
    for (Tensor* t : {&dout, &more, &c.rows, &c.hidden, &c.act, &c.dispatched.out}) step.release(*t);
    all.push_back(drows);
  }
  for (const Part& p : parts) step.params.grad_ready(p.id);
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
