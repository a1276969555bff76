#include "kernels/meta/placement_rules.h"

#include "base/interned.h"

namespace ltrain {
namespace {

std::string where(Stream& s, std::string_view op) {
  return fmt::format("placement error: {} in {}", op,
                     s.meta()->layer().empty() ? std::string_view("the step") : s.meta()->layer());
}

[[noreturn]] void refuse(Stream& s, std::string_view op, Axis a, const std::string& what,
                         const std::string& fix) {
  fail(ExitCode::internal, "{}, axis {}: {}\n  fix: {}", where(s, op), axis_name(a), what, fix);
}

std::string describe(const Tensor& t, Placement p) {
  std::string text = fmt::format("'{}' is {}", t.record->name, to_string(p));
  if (p.kind == Placement::partial && !t.record->made_partial.none())
    text += fmt::format(" (made partial by {})", t.record->made_partial.text());
  return text;
}

WrittenBy current(Stream& s, std::string_view op) { return {interned(op), s.meta()->layer()}; }

void store(Stream& s, std::string_view op, Axis a, const Tensor& out, Placement p, bool accumulate) {
  TensorRecord& r = *out.record;
  if (accumulate && !r.zero && !(r.place[a] == p))
    refuse(s, op, a, fmt::format("adds {} to {}", to_string(p), describe(out, r.place[a])),
           "reduce the partial one first, or accumulate before the reduction");
  r.place[a] = p;
  if (p.kind == Placement::partial) r.made_partial = current(s, op);
}

void finish(Stream& s, std::string_view op, const Tensor& out) {
  out.record->zero = false;
  out.record->written = true;
  out.record->last_writer = current(s, op);
}

/// Checks that `t` was written before `op` reads it.
void read(Stream& s, std::string_view op, const Tensor& t) {
  t.record->unread = false;
  if (!t.record->written && !t.record->zero)
    fail(ExitCode::internal,
         "{}: '{}' is read but nothing has written it\n  fix: make the collective or op that fills it",
         where(s, op), t.record->name);
}

/// Placement of a joint result on axis `a`.
Placement join(Stream& s, std::string_view op, Rule rule, Axis a, TensorList ins) {
  Placement result = Placement::R();
  const Tensor* from = nullptr;
  for (const Tensor& t : ins) {
    const Placement p = t.record->place[a];
    read(s, op, t);
    if (t.record->zero && rule == Rule::linear) continue;
    if (p.kind == Placement::partial && rule != Rule::linear)
      refuse(s, op, a, describe(t, p) + fmt::format("; {} is not linear in it", op),
             fmt::format("all-reduce or reduce-scatter '{}' over {} before", t.record->name, axis_name(a)));
    if (p.kind == Placement::replicated) {
      if (result.kind == Placement::partial)
        refuse(s, op, a,
               describe(*from, result) +
                   fmt::format(" but '{}' is R: the sum counts it once a rank", t.record->name),
               fmt::format("reduce '{}' over {} first", from->record->name, axis_name(a)));
      if (!from) from = &t;
      continue;
    }
    if (result.kind == Placement::replicated) {
      if (p.kind == Placement::partial && from)
        refuse(
            s, op, a,
            describe(t, p) + fmt::format(" but '{}' is R: the sum counts it once a rank", from->record->name),
            fmt::format("reduce '{}' over {} first", t.record->name, axis_name(a)));
      result = p;
      from = &t;
    } else if (!(result == p)) {
      refuse(s, op, a, describe(*from, result) + " but " + describe(t, p), "bring both to one placement");
    }
  }
  const bool rows_cut = result.kind == Placement::varying || result == Placement::S(0);
  if ((rule == Rule::sum_rows || rule == Rule::sum_to_rows) && rows_cut) return Placement::P();
  if (rule == Rule::sum_columns && result == Placement::S(1)) return Placement::P();
  if (rule == Rule::sum_rows && result.kind == Placement::sharded)
    return Placement::S(result.dim - 1);  // dim 0 is summed away
  return result;
}

template <class F>
void each_axis(Stream& s, F&& f) {
  for (int i = 0; i < kAxisCount; ++i)
    if (const Axis a = static_cast<Axis>(i); s.meta()->axis_size(a) > 1) f(a);
}

}  // namespace

void place(Stream& s, std::string_view op, Rule rule, TensorList outs, TensorList ins, bool accumulate) {
  if (!s.meta()) return;
  for (const Tensor& t : ins) t.record->unread = false;  // also where no axis has several ranks
  each_axis(s, [&](Axis a) {
    const Placement p = join(s, op, rule, a, ins);
    for (const Tensor& out : outs) store(s, op, a, out, p, accumulate);
  });
  for (const Tensor& out : outs) finish(s, op, out);
}

void place_add_vector(Stream& s, std::string_view op, Tensor out, Tensor vector) {
  read(s, op, out);
  read(s, op, vector);
  each_axis(s, [&](Axis a) {
    const Placement have = out.record->place[a];
    if (have.kind == Placement::partial)
      refuse(s, op, a,
             describe(out, have) + fmt::format(": '{}' would be added once a rank", vector.record->name),
             "add it after the reduction");
  });
  place_vector_of_columns(s, op, out, vector, false);
  finish(s, op, out);
}

void place_vector_of_columns(Stream& s, std::string_view op, Tensor t, Tensor vector, bool of_more) {
  read(s, op, vector);
  each_axis(s, [&](Axis a) {
    const Placement have = t.record->place[a], v = vector.record->place[a];
    const bool part = of_more && v == Placement::R();
    const Placement want = have == Placement::S(1) && !part ? Placement::S(0) : Placement::R();
    if (!(v == want))
      refuse(s, op, a, describe(t, have) + " but " + describe(vector, v),
             "cut the vector as the columns are cut");
  });
}

void place_gradient_of_columns(Stream& s, std::string_view op, Tensor gradient, Tensor vector, TensorList ins,
                               bool of_more, bool accumulate) {
  each_axis(s, [&](Axis a) {
    Placement p = join(s, op, Rule::sum_rows, a, ins);
    const bool part = of_more && vector.record->place[a] == Placement::R();
    if (part && p == Placement::S(0)) p = Placement::P();  // a rank has the numbers of its columns, and zeros
    store(s, op, a, gradient, p, accumulate);
  });
  finish(s, op, gradient);
}

void place_gradient_of_products(Stream& s, std::string_view op, Tensor gradient, Tensor vector, Tensor a,
                                Tensor b, bool accumulate) {
  place_vector_of_columns(s, op, a, vector, false);
  read(s, op, b);
  each_axis(s, [&](Axis axis) {
    const bool summand = b.record->place[axis].kind == Placement::partial;
    if (summand && !(a.record->place[axis] == Placement::R()))
      refuse(s, op, axis, describe(b, b.record->place[axis]) + " but " + describe(a, a.record->place[axis]),
             "each summand needs the whole other factor");
    store(s, op, axis, gradient, summand ? Placement::P() : join(s, op, Rule::sum_rows, axis, {a, b}),
          accumulate);
  });
  finish(s, op, gradient);
}

void place_grouped_bias(Stream& s, std::string_view op, Tensor y, Tensor bias) {
  read(s, op, y);
  read(s, op, bias);
  using P = Placement;
  each_axis(s, [&](Axis a) {
    const P have = y.record->place[a], b = bias.record->place[a];
    const bool fits = b == P::R()    ? have.kind == P::replicated || have.kind == P::varying
                      : b == P::S(0) ? have == P::S(0)
                      : b == P::P()  ? have == P::P()
                                     : have == P::S(1);
    if (!fits)
      refuse(s, op, a, describe(y, have) + " but " + describe(bias, b),
             "add a bias of the rank's groups and columns, on one of the ranks whose results are summed");
  });
  finish(s, op, y);
}

void place_grouped_bias_gradient(Stream& s, std::string_view op, Tensor gradient, Tensor dy,
                                 bool accumulate) {
  read(s, op, dy);
  using P = Placement;
  each_axis(s, [&](Axis a) {
    const P p = dy.record->place[a];
    if (p.kind == P::partial) refuse(s, op, a, describe(dy, p), "reduce it first");
    store(s, op, a, gradient,
          p.kind == P::varying ? P::P()
          : p == P::S(1)       ? P::S(gradient.shape.rank - 1)
                               : p,
          accumulate);
  });
  finish(s, op, gradient);
}

void place_matmul(Stream& s, Tensor out, Tensor a, bool trans_a, Tensor b, bool trans_b, bool accumulate) {
  read(s, "matmul", a);
  read(s, "matmul", b);
  each_axis(s, [&](Axis axis) {
    const Placement pa = a.record->place[axis], pb = b.record->place[axis];
    const int a_row = trans_a ? 1 : 0, a_sum = 1 - a_row;  // dims of a: result rows, contraction
    const int b_sum = trans_b ? 1 : 0, b_col = 1 - b_sum;
    Placement p = Placement::R();
    const auto is = [](Placement x, Placement::Kind k) { return x.kind == k; };
    const auto mismatch = [&] {
      refuse(s, "matmul", axis, describe(a, pa) + " but " + describe(b, pb),
             "shard both along the contraction, or one of them along an outer dim and replicate the other");
    };
    if (is(pa, Placement::partial) || is(pb, Placement::partial)) {
      const bool other_replicated =
          is(pa, Placement::partial) ? is(pb, Placement::replicated) : is(pa, Placement::replicated);
      if (!other_replicated)
        refuse(s, "matmul", axis,
               describe(a, pa) + " and " + describe(b, pb) + ": a product of P is linear only with R",
               "reduce the partial one first");
      p = Placement::P();
    } else if (is(pa, Placement::varying) || is(pb, Placement::varying)) {
      if (is(pa, Placement::varying) && is(pb, Placement::varying)) {
        if (!(trans_a && !trans_b)) mismatch();  // only token rows vary, and only a^T b contracts over them
        p = Placement::P();
      } else if (is(pa, Placement::replicated) || is(pb, Placement::replicated)) {
        p = Placement::V();
      } else {
        mismatch();
      }
    } else if (is(pa, Placement::sharded) || is(pb, Placement::sharded)) {
      const bool sum_a = pa == Placement::S(a_sum), sum_b = pb == Placement::S(b_sum);
      if (sum_a && sum_b) {
        p = Placement::P();
      } else if (pa == Placement::S(a_row) && is(pb, Placement::replicated)) {
        p = Placement::S(0);
      } else if (pb == Placement::S(b_col) && is(pa, Placement::replicated)) {
        p = Placement::S(1);
      } else {
        mismatch();
      }
    }
    store(s, "matmul", axis, out, p, accumulate);
  });
  finish(s, "matmul", out);
}

void place_grouped_matmul(Stream& s, Tensor out, Tensor a, Tensor b, GroupedProduct kind, bool accumulate) {
  constexpr std::string_view op = "grouped matmul";
  read(s, op, a);
  read(s, op, b);
  const bool gradient = kind == GroupedProduct::weight_gradient;
  const Tensor& w = gradient ? out : b;
  const int last = w.shape.rank - 1;
  each_axis(s, [&](Axis axis) {
    const Placement pa = a.record->place[axis], pb = b.record->place[axis];
    const auto mismatch = [&] {
      refuse(s, op, axis, describe(a, pa) + " but " + describe(b, pb),
             "exchange rows so that each rank has those of its groups, or cut one of the two");
    };
    using P = Placement;
    P p = P::R();
    if (gradient) {  // a: dy, b: x
      const bool rows_a = pa == P::S(0), rows_b = pb == P::S(0);
      if ((pa == P::P() && pb == P::R()) || (pa == P::R() && pb == P::P()))
        p = P::P();  // linear in each
      else if (rows_a && rows_b)
        p = P::S(0);  // each rank's own groups
      else if (pa.kind == P::varying && pb.kind == P::varying)
        p = P::P();
      else if (pa == P::S(1) && pb == P::R())
        p = P::S(last - 1);
      else if (pa == P::R() && pb == P::S(1))
        p = P::S(last);
      else if (!(pa == P::R() && pb == P::R()))
        mismatch();
    } else if (pb == P::R()) {
      if (pa.kind == P::sharded) mismatch();
      p = pa;
    } else if (pb == P::S(0)) {
      if (!(pa == P::S(0))) mismatch();
      p = pa;
    } else if (pb.kind == P::sharded) {
      const bool contracted = (pb.dim == last) == (kind == GroupedProduct::forward);
      if (!(pa == (contracted ? P::S(1) : P::R()))) mismatch();
      p = contracted ? P::P() : P::S(1);
    } else {
      mismatch();
    }
    store(s, op, axis, out, p, accumulate);
  });
  finish(s, op, out);
}

void place_operand_gradient(Stream& s, std::string_view op, Tensor gradient, Tensor operand,
                            TensorList others, bool accumulate) {
  read(s, op, operand);
  each_axis(s, [&](Axis a) {
    Placement p = join(s, op, Rule::elementwise, a, others);
    const Placement have = operand.record->place[a];
    if (have.kind == Placement::replicated) {
      if (p.kind != Placement::replicated) p = Placement::P();
    } else if (p.kind == Placement::replicated || p == have) {
      p = have;
    } else {
      refuse(s, op, a, describe(operand, have) + " but another operand is " + to_string(p),
             "bring both to one placement");
    }
    store(s, op, a, gradient, p, accumulate);
  });
  finish(s, op, gradient);
}

void place_as(Stream& s, std::string_view op, Axis axis, Tensor t, Placement from, Placement to) {
  if (!s.meta() || s.meta()->axis_size(axis) == 1) return;
  read(s, op, t);
  const Placement have = t.record->place[axis];
  if (!(have == from))
    refuse(s, op, axis, fmt::format("takes {} but {}", to_string(from), describe(t, have)),
           "check the collective before");
  t.record->place[axis] = to;
}

void place_row_statistics(Stream& s, Tensor t) {
  if (!s.meta()) return;
  each_axis(s, [&](Axis a) {
    if (t.record->place[a] == Placement::S(1)) t.record->place[a] = Placement::S(0);
  });
}

namespace {
Axis first_axis(AxisSet axes) {
  for (int i = 0; i < kAxisCount; ++i)
    if (axes.has(static_cast<Axis>(i))) return static_cast<Axis>(i);
  return Axis::data;
}
}  // namespace

void place_spent(Stream& s, Tensor t) {
  if (!s.meta()) return;
  t.record->written = t.record->zero = false;
}

namespace {
/// Sets the placement that a collective leaves in `out`.
void give_result(Stream& s, std::string_view op, AxisSet axes, const Tensor& out, const Tensor& in,
                 const Placements& result) {
  // An unread result would be overwritten: one of the two collectives is superfluous.
  if (out.record->unread && out.record != in.record)
    refuse(s, op, first_axis(axes),
           fmt::format("writes '{}' again, which {} wrote and nothing has read", out.record->name,
                       out.record->last_writer.text()),
           "remove one of the two");
  read(s, op, in);
  out.record->place = result;
  finish(s, op, out);
  out.record->unread = true;
}
}  // namespace

void place_collective(Stream& s, std::string_view op, AxisSet axes, Tensor out, Tensor in, Placement from,
                      Placement to) {
  Placements result = in.record->place;
  each_axis(s, [&](Axis axis) {
    if (!axes.has(axis)) return;
    const Placement have = in.record->place[axis];
    if (!(have == from)) {
      const bool twice = have.kind == Placement::replicated && from.kind == Placement::partial;
      refuse(s, op, axis,
             fmt::format(
                 "takes {} but {}{}", to_string(from), describe(in, have),
                 twice ? fmt::format(": it was reduced before, by {}", in.record->last_writer.text()) : ""),
             twice ? "remove one of the two reductions"
                   : "check the group of this collective and of the one before");
    }
    result[axis] = to;
  });
  give_result(s, op, axes, out, in, result);
}

void place_broadcast(Stream& s, std::string_view op, AxisSet axes, Tensor out, Tensor in) {
  Placements result = in.record->place;
  each_axis(s, [&](Axis axis) {
    if (!axes.has(axis)) return;
    const Placement have = in.record->place[axis];
    if (have.kind != Placement::sharded && have.kind != Placement::varying)
      refuse(s, op, axis, fmt::format("takes what each rank has of its own but {}", describe(in, have)),
             "check the group of this broadcast");
    result[axis] = Placement::R();
  });
  give_result(s, op, axes, out, in, result);
}

void place_transfer(Stream& s, std::string_view op, Tensor out, Tensor in) {
  if (in.defined()) {
    read(s, op, in);
    ++in.record->sent;
  }
  if (!out.defined()) return;
  if (out.record->unread)
    refuse(s, op, Axis::pipeline, fmt::format("writes '{}' again, which nothing has read", out.record->name),
           "remove one of the two");
  finish(s, op, out);
  out.record->unread = true;
}

void place_received(Stream& s, Tensor t, Axis axis, Placement p) {
  if (s.meta() && s.meta()->axis_size(axis) > 1) t.record->place[axis] = p;
}

void place_update(Stream& s, std::string_view op, Tensor parameter, Tensor gradient, Placements shard) {
  read(s, op, gradient);
  each_axis(s, [&](Axis a) {
    const Placement g = gradient.record->place[a];
    if (!(g == shard[a]))
      refuse(s, op, a,
             fmt::format("parameter '{}' is stored as {} but its gradient {}", parameter.record->name,
                         to_string(shard[a]), describe(gradient, g)),
             g.kind == Placement::partial
                 ? fmt::format("{} the gradient over {}",
                               shard[a].kind == Placement::sharded ? "reduce-scatter" : "all-reduce",
                               axis_name(a))
                 : "cut the gradient as the parameter is cut");
  });
  parameter.record->place = shard;
  finish(s, op, parameter);
}

void place_require(Stream& s, std::string_view op, Tensor t, Axis a, Placement want) {
  if (!s.meta() || s.meta()->axis_size(a) == 1) return;
  read(s, op, t);
  const Placement have = t.record->place[a];
  if (have == want) return;
  const bool owed = have.kind == Placement::partial;
  refuse(s, op, a, fmt::format("needs {} but {}", to_string(want), describe(t, have)),
         fmt::format("{} '{}' over {}", owed ? "all-reduce" : "all-gather", t.record->name, axis_name(a)));
}

void place_require(Stream& s, std::string_view op, Tensor t, Placement want) {
  if (!s.meta()) return;
  each_axis(s, [&](Axis a) { place_require(s, op, t, a, want); });
}

void place_set(Stream& s, Tensor t, AxisSet axes, Placement p) {
  if (!s.meta()) return;
  each_axis(s, [&](Axis a) {
    if (axes.has(a)) t.record->place[a] = p;
  });
  t.record->zero = false;
  t.record->written = true;
}

Tensor place_apart(Stream& s, Tensor t, std::string_view name) {
  if (!s.meta() || !t.defined()) return t;
  const TensorRecord* whole = t.record;
  t.record = s.meta()->new_record(name);
  t.record->place = whole->place;
  t.record->zero = whole->zero;
  t.record->written = whole->written;
  t.record->made_partial = whole->made_partial;
  t.record->last_writer = whole->last_writer;
  return t;
}

Tensor place_apart(Stream& s, Tensor t) { return place_apart(s, t, t.record ? t.record->name : ""); }

void place_joined(Stream& s, std::string_view op, Tensor whole, const std::vector<Tensor>& parts) {
  if (!s.meta()) return;
  for (const Tensor& part : parts) {
    read(s, op, part);
    each_axis(s, [&](Axis a) {
      const Placement first = parts.front().record->place[a], have = part.record->place[a];
      if (!(have == first))
        refuse(s, op, a, describe(parts.front(), first) + " but " + describe(part, have),
               "make the collective of each part");
    });
  }
  whole.record->place = parts.front().record->place;
  finish(s, op, whole);
}

void place_max(Stream& s, std::string_view op, Tensor out, Tensor in) {
  each_axis(s, [&](Axis a) {
    const Placement have = in.record->place[a];
    if (have.kind == Placement::partial)
      refuse(s, op, a, describe(in, have) + fmt::format("; {} is not linear in it", op),
             fmt::format("reduce '{}' over {} before", in.record->name, axis_name(a)));
    if (!(have == Placement::R())) out.record->place[a] = Placement::V();
  });
  read(s, op, in);
  finish(s, op, out);
}

void place_zero(Tensor t) {
  t.record->zero = t.record->written = true;
  t.record->place = Placements{};
}

OpCost op_cost(std::string_view name, OpClass cls, double flops, TensorList outs, TensorList ins) {
  OpCost c;
  c.name = name;
  c.cls = cls;
  c.flops = flops;
  if (cls == OpClass::matmul || cls == OpClass::attention) c.model_flops = flops;
  for (const Tensor& t : outs) c.bytes += static_cast<double>(t.bytes());
  for (const Tensor& t : ins) c.bytes += static_cast<double>(t.bytes());
  if (outs.size()) c.dtype = outs.begin()->dtype;
  return c;
}

}  // namespace ltrain
