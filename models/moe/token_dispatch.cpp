#include "models/moe/token_dispatch.h"

#include <cmath>

#include "kernels/meta/placement_rules.h"
#include "kernels/moe/token_rows.h"
#include "models/layers/tensor_parallel.h"
#include "models/moe/spend.h"

namespace ltrain {
namespace {

/// d.travelling = gradients of the rows in d.out, which is consumed.
void combine_backward_here(Step& step, Dispatched& d, Tensor dweights, Tensor dy) {
  d.travelling = step.temporary("d rows from experts", d.out.shape);
  combine_rows_backward(step.compute, d.travelling, dweights, dy, d.out, d.routing);
  step.release(d.out);
}

/// All experts are on this rank.
class LocalDispatch final : public TokenDispatch {
 public:
  using TokenDispatch::TokenDispatch;

  void start(Step&, Dispatched& d, size_t, Tensor tokens, Tensor) const override { d.leaving = tokens; }
  void finish(Step& step, Dispatched& d, size_t, Tensor rows) const override {
    permute_rows(step.compute, rows, d.leaving, d.routing, d.counts.sorted);
  }
  Tensor made(Step& step, Dispatched& d, int64_t most, int64_t columns) const override {
    return d.out = step.activation("rows from experts", {most, columns});
  }
  void return_rows_start(Step&, Dispatched&, size_t, Tensor) const override {}
  void combine(Step& step, Dispatched& d, Tensor y) const override {
    if (y.defined()) combine_rows(step.compute, y, d.out, d.routing, true);
  }
  void combine_backward_start(Step& step, Dispatched& d, Tensor dweights, Tensor dy, int64_t) const override {
    combine_backward_here(step, d, dweights, dy);
  }
  void combine_backward(Step&, Dispatched& d, size_t, Tensor, int64_t, Tensor& dmade) const override {
    dmade = d.travelling;
  }
  void permute_backward_start(Step&, Dispatched& d, size_t, Tensor drows) const override {
    d.travelling = drows;
  }
  void permute_backward(Step& step, Dispatched& d, Tensor dx) const override {
    combine_rows(step.compute, dx, d.travelling, d.routing, false);
    step.release(d.travelling);
  }
};

/// Rows are sent to the ranks of their experts. With a budget, all slices share the memory that rows pass
/// through, so that it does not depend on their number.
class ExchangeDispatch final : public TokenDispatch {
 public:
  using TokenDispatch::TokenDispatch;

  void start(Step& step, Dispatched& d, size_t slice, Tensor tokens, Tensor rows) const override {
    if (!d.leaving.defined()) d.leaving = step.temporary("rows by expert", {d.most_sent, tokens.cols()});
    const ExpertRowCounts& c = d.slice(slice);
    // all slices or none
    if (c.own.empty()) permute_rows(step.compute, d.leaving, tokens, d.routing, c.sorted);
    for (const CopyRectangle& p : c.own) {
      Routing some = d.routing;
      some.sources = d.routing.sources.flat(p.from_row, {p.rows});
      permute_rows(step.compute, d.leaving.narrow(p.to_row, p.rows), tokens, some, p.rows);
    }
    d.flight.stays = d.budgeted;
    exchange_.dispatch_start(step, c, d.leaving, rows.shape[0], d.flight, rows);
  }
  void finish(Step& step, Dispatched& d, size_t slice, Tensor rows) const override {
    exchange_.dispatch_finish(step, d.slice(slice), rows, d.flight);
    if (!d.budgeted) return step.release(d.leaving);
    spend(step.compute, d.leaving);
  }
  Tensor made(Step& step, Dispatched&, int64_t most, int64_t columns) const override {
    return step.temporary("made by experts", {most, columns});
  }
  void return_rows_start(Step& step, Dispatched& d, size_t slice, Tensor made) const override {
    if (!d.out.defined()) d.out = step.activation("rows from experts", {d.most_sent, made.cols()});
    exchange_.return_rows_start(step, d.slice(slice), d.slices() > 1 ? d.leaving : d.out, made, d.flight);
    if (slice == 0 && !exchange_.straight()) step.release(made);
  }
  void return_rows_finish(Step& step, Dispatched& d, size_t slice) const override {
    take_back(step, d, slice, d.out);
  }
  void combine(Step& step, Dispatched& d, Tensor y) const override {
    take_back(step, d, 0, d.out);
    release_memory(step, d);
    if (y.defined()) combine_rows(step.compute, y, d.out, d.routing, true);
  }
  void combine_backward_start(Step& step, Dispatched& d, Tensor dweights, Tensor dy,
                              int64_t most) const override {
    d.travelling = step.temporary("d rows from experts", d.out.shape);
    combine_rows_backward(step.compute, d.travelling, dweights, dy, d.out, d.routing);
    if (d.budgeted) {
      std::swap(d.leaving, d.out);
      spend(step.compute, d.leaving);
    }
    step.release(d.out);
    combine_backward_next(step, d, 0, most, {});
  }
  void combine_backward_next(Step& step, Dispatched& d, size_t slice, int64_t most,
                             Tensor dmade) const override {
    const ExpertRowCounts& c = d.slice(slice);
    if (d.slices() > 1)
      copy_rectangles(step.compute, d.leaving, d.travelling, whole_rows(c.own, d.travelling.cols(), false));
    d.flight.stays = d.budgeted;
    exchange_.dispatch_start(step, c, d.slices() > 1 ? d.leaving : d.travelling, most, d.flight, dmade);
  }
  void combine_backward(Step& step, Dispatched& d, size_t slice, Tensor, int64_t most,
                        Tensor& dmade) const override {
    if (exchange_.straight() && slice == 0) {
      dmade = exchange_.dispatch_finish(step, d.flight);
    } else {
      if (slice == 0) dmade = step.temporary("d made by experts", {most, d.travelling.cols()});
      exchange_.dispatch_finish(step, d.slice(slice), dmade, d.flight);
    }
    if (!d.budgeted) return step.release(d.travelling);
    spend(step.compute, d.slices() > 1 ? d.leaving : d.travelling);
  }
  /// With a budget, gradients of rows arrive in the memory of the sent gradients of outputs: d.out is this
  /// memory again, with its layout.
  void permute_backward_start(Step& step, Dispatched& d, size_t slice, Tensor drows) const override {
    if (!d.budgeted) d.travelling = step.temporary("d rows by expert", {d.most_sent, drows.cols()});
    if (slice == 0 && d.slices() > 1) {
      d.out = place_apart(step.compute, d.travelling, "d rows by expert");
      spend(step.compute, d.out);
    }
    exchange_.return_rows_start(step, d.slice(slice), d.slices() > 1 ? d.leaving : d.travelling, drows,
                                d.flight);
    if (slice + 1 == d.slices() && !exchange_.straight()) step.release(drows);
  }
  void permute_backward_next(Step& step, Dispatched& d, size_t slice) const override {
    take_back(step, d, slice, d.out);
  }
  void permute_backward(Step& step, Dispatched& d, Tensor dx) const override {
    const Tensor rows = d.slices() > 1 ? d.out : d.travelling;
    take_back(step, d, d.slices() - 1, rows);
    release_memory(step, d);
    combine_rows(step.compute, dx, rows, d.routing, false);
    d.out = Tensor();
    step.release(d.travelling);
  }

 private:
  /// rows = the rows of return_rows_start(), at their positions among this rank's rows.
  void take_back(Step& step, Dispatched& d, size_t slice, Tensor rows) const {
    exchange_.return_rows_finish(step, d.slices() > 1 ? d.leaving : rows, d.flight);
    if (d.slices() == 1) return;
    copy_rectangles(step.compute, rows, d.leaving, whole_rows(d.slice(slice).own, rows.cols(), true));
    spend(step.compute, d.leaving);
  }
  static void release_memory(Step& step, Dispatched& d) {
    ExpertExchange::release(step, d.flight);
    step.release(d.leaving);
  }
};

/// Every rank gets all tokens, and computes a summand of each result: for small groups, whose tokens choose
/// experts of most ranks.
class GatherDispatch final : public TokenDispatch {
 public:
  using TokenDispatch::TokenDispatch;

  void count(Step& step, Dispatched& d, const Routing& r, TokenRange range, int64_t capacity,
             const std::string& name) const override {
    count_some(step, d, r, range, capacity, name, {}, {});
  }
  void count_some(Step& step, Dispatched& d, const Routing& r, TokenRange range, int64_t capacity,
                  const std::string& name, const ChosenExperts& which, std::vector<int64_t>) const override {
    LT_CHECK(range.first == 0 && range.tokens == r.slots.shape[0],
             "expected a gather of all {} tokens, got {} from {} on", r.slots.shape[0], range.tokens,
             range.first);
    const Group& g = groups_.expert;
    const auto of_all = [&](const char* name, const Tensor& own) {
      const MemoryKind kind = step.training ? MemoryKind::activations : MemoryKind::temporaries;
      return step.memory.allocate(kind, name, own.dtype, {own.shape[0] * g.size(), own.cols()});
    };
    Tensor kept = of_all("kept choices of all ranks", r.slots);
    Tensor experts = d.routing.experts = of_all("chosen experts of all ranks", r.experts);
    d.weights = d.routing.weights = of_all("weights of all ranks", r.weights);
    gather(step, kept, r.slots);
    gather(step, experts, r.experts);
    gather(step, d.weights, r.weights);
    const int64_t local = exchange_.local_experts();
    own_rows(step, d, r.slots.shape[0] * g.size(), r.slots.shape[1], local);
    ChosenExperts here = which;
    here.first = g.rank() * local;
    sort_choices(step.compute, d.routing, kept, r.counts, here);
    step.release(kept);
    step.release(experts);
    for (const Tensor& t : {d.routing.slots, d.routing.sources, d.routing.counts})
      claim(step, t, Placement::R(), Placement::S(0));  // slices for the rank's experts
    d.counts = exchange_.count_here(step, d.routing, capacity, name, here);
  }
  void start(Step& step, Dispatched& d, size_t, Tensor tokens, Tensor) const override {
    d.leaving = gather_all(step, tokens, "tokens of all ranks");
  }
  void finish(Step& step, Dispatched& d, size_t, Tensor rows) const override {
    permute_rows(step.compute, rows, d.leaving, d.routing, d.counts.received);
    step.release(d.leaving);
  }
  Tensor made(Step& step, Dispatched& d, int64_t most, int64_t columns) const override {
    return d.out = step.activation("rows from experts", {most, columns});
  }
  void return_rows_start(Step&, Dispatched&, size_t, Tensor) const override {}
  void combine(Step& step, Dispatched& d, Tensor y) const override {
    if (y.defined()) sum_back(step, d, y, d.out, true);
  }
  void combine_backward_start(Step& step, Dispatched& d, Tensor, Tensor dy, int64_t) const override {
    d.travelling = gather_all(step, dy, "gradients of all ranks");
  }
  void combine_backward(Step& step, Dispatched& d, size_t, Tensor dweights, int64_t most,
                        Tensor& dmade) const override {
    dmade = step.temporary("d made by experts", {most, d.travelling.cols()});
    Tensor all = step.memory.allocate(MemoryKind::temporaries, "d weights of all ranks", dweights.dtype,
                                      d.routing.weights.shape);
    combine_rows_backward(step.compute, dmade, all, d.travelling, d.out, d.routing);
    claim(step, dmade, Placement::R(), Placement::S(0));
    scatter(step, dweights, all);
    step.release(all);
    step.release(d.travelling);
    step.release(d.out);
  }
  void permute_backward_start(Step&, Dispatched& d, size_t, Tensor drows) const override {
    d.travelling = drows;
  }
  void permute_backward(Step& step, Dispatched& d, Tensor dx) const override {
    sum_back(step, d, dx, d.travelling, false);
    step.release(d.travelling);
  }

 private:
  /// Reinterprets `t` on all axes over which experts are sharded.
  void claim(Step& step, Tensor t, Placement from, Placement to) const {
    for (int i = 0; i < kAxisCount; ++i)
      if (const Axis a = static_cast<Axis>(i); groups_.mesh.expert_axes.has(a))
        place_as(step.compute, "tokens of all ranks", a, t, from, to);
  }
  void gather(Step& step, Tensor all, Tensor own) const {
    const Tensor mine = place_apart(step.compute, own, "this rank's of all ranks'");
    groups_.expert.all_gather(step.compute, all, mine, ExpertExchange::kRows);
  }
  Tensor gather_all(Step& step, Tensor own, const char* name) const {
    const Tensor all = step.temporary(name, {own.shape[0] * groups_.expert.size(), own.cols()});
    gather(step, all, own);
    return all;
  }
  /// own = this rank's part of the sum of `all`, whose rows vary by the experts that made them.
  void scatter(Step& step, Tensor own, Tensor all) const {
    claim(step, all, Placement::S(0), Placement::P());
    groups_.expert.reduce_scatter(step.compute, own, all, ExpertExchange::kRows);
  }
  void sum_back(Step& step, const Dispatched& d, Tensor y, Tensor rows, bool weighted) const {
    Tensor all = step.temporary("summands of all ranks", {y.shape[0] * groups_.expert.size(), y.cols()});
    combine_rows(step.compute, all, rows, d.routing, weighted);
    scatter(step, y, all);
    step.release(all);
  }
};

}  // namespace

std::unique_ptr<TokenDispatch> TokenDispatch::make(const Groups& groups, int64_t experts, int64_t top_k,
                                                   int64_t rows_each, const DispatchOptions& options) {
  std::unique_ptr<TokenDispatch> d;
  if (groups.expert.size() == 1) {
    d = std::make_unique<LocalDispatch>(groups, experts, top_k, rows_each);
  } else if (options.gather) {
    d = std::make_unique<GatherDispatch>(groups, experts, top_k, rows_each);
  } else {
    d = std::make_unique<ExchangeDispatch>(groups, experts, top_k, rows_each);
  }
  d->balanced_ = options.balanced;
  LT_CHECK(options.row_budget == 0 || !options.gather, "expected no row budget with gathered tokens, got {}",
           options.row_budget);
  d->row_budget_ = options.row_budget;
  d->exchange_.plan_at(options.skew);
  return d;
}

int64_t TokenDispatch::most_rows(int64_t tokens, int64_t capacity) const {
  const int64_t worst = exchange_.most_rows(tokens, top_k_, capacity);
  if (balanced_) return even_rows(tokens);
  if (row_budget_ == 0 || groups_.expert.size() == 1) return worst;
  const double most = std::ceil(row_budget_ * static_cast<double>(even_rows(tokens)));
  return most < static_cast<double>(worst) ? static_cast<int64_t>(most) : worst;
}

void TokenDispatch::lay_out(Dispatched& d, const std::vector<int64_t>& all, int64_t tokens,
                            int64_t capacity) const {
  const int64_t most = most_rows(tokens, capacity);
  d.budgeted = row_budget_ > 0 && !balanced_ && most < exchange_.most_rows(tokens, top_k_, capacity);
  if (!d.budgeted) {
    d.counts = exchange_.lay_out(all);
    return;
  }
  d.beyond = exchange_.lay_out(all, most);
  d.counts = std::move(d.beyond.front());
  d.beyond.erase(d.beyond.begin());
}

void TokenDispatch::count(Step& step, Dispatched& d, const Routing& r, TokenRange range, int64_t capacity,
                          const std::string& name) const {
  d.routing = r;
  if (range.tokens != r.slots.shape[0]) sort_some(step, d, r, range, {});
  lay_out(d, exchange_.counts_of_ranks(step, d.routing, capacity, name), range.tokens, capacity);
  d.most_sent = exchange_.most_sent(d.routing, capacity);
}

void TokenDispatch::count_some(Step& step, Dispatched& d, const Routing& r, TokenRange range,
                               int64_t capacity, const std::string& name, const ChosenExperts& which,
                               std::vector<int64_t> all) const {
  d.routing = r;
  sort_some(step, d, r, range, which);
  if (range.tokens != r.slots.shape[0]) all = exchange_.counts_of_ranks(step, d.routing, capacity, name);
  for (size_t i = 0; i < all.size(); ++i)
    if (which.place(static_cast<int64_t>(i) % experts_, experts_) < 0) all[i] = 0;
  lay_out(d, all, range.tokens, capacity);
  d.most_sent = exchange_.most_sent(d.routing, capacity);
}

void TokenDispatch::sort_some(Step& step, Dispatched& d, const Routing& r, TokenRange range,
                              const ChosenExperts& which) const {
  d.routing.experts = r.experts.narrow(range.first, range.tokens);
  d.routing.weights = r.weights.narrow(range.first, range.tokens);
  own_rows(step, d, range.tokens, r.slots.shape[1], experts_);
  sort_choices(step.compute, d.routing, r.slots.narrow(range.first, range.tokens), r.counts, which);
}

void TokenDispatch::own_rows(Step& step, Dispatched& d, int64_t tokens, int64_t top_k, int64_t experts) {
  const auto make = [&](const char* name, DType type, Shape shape) {
    const MemoryKind kind = step.training ? MemoryKind::activations : MemoryKind::temporaries;
    return step.memory.allocate(kind, name, type, shape);
  };
  d.own_rows = true;
  d.routing.slots = make("rows of choices", DType::i32, {tokens, top_k});
  d.routing.sources = make("choices of rows", DType::i32, {tokens * top_k});
  d.routing.counts = make("rows of experts", DType::i64, {experts + 1});
}

void TokenDispatch::release(Step& step, Dispatched& d) {
  step.release(d.out);
  step.release(d.weights);
  if (!d.own_rows) return;
  Routing& r = d.routing;
  for (Tensor* t : {&r.slots, &r.sources, &r.counts}) step.release(*t);
}

}  // namespace ltrain
