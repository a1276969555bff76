#include "models/moe/expert_exchange.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "kernels/meta/placement_rules.h"
#include "kernels/tensor/staging.h"
#include "models/moe/row_slices.h"
#include "models/moe/spend.h"

namespace ltrain {
namespace {

int64_t sum(const std::vector<int64_t>& v) { return std::accumulate(v.begin(), v.end(), int64_t{0}); }

/// The only host wait of a layer.
std::vector<int64_t> host_copy(Step& step, const Tensor& t) {
  std::vector<int64_t> out(t.elements());
  step.staging ? step.staging->get(out.data(), t) : download(step.compute, out.data(), t);
  return out;
}

}  // namespace

std::vector<CopyRectangle> whole_rows(const std::vector<CopyRectangle>& parts, int64_t cols, bool back) {
  std::vector<CopyRectangle> out;
  for (CopyRectangle p : parts) {
    p.cols = cols;
    out.push_back(back ? p.reversed() : p);
  }
  return out;
}

int64_t ExpertExchange::most_rows(int64_t tokens, int64_t top_k, int64_t capacity) const {
  const int64_t together = ranks_of_samples(groups_.mesh.expert_axes);
  int64_t rows = together * tokens * std::min(top_k, local_experts());
  if (capacity > 0) rows = std::min(rows, capacity * local_experts());
  return groups_.expert.size() / together * rows;
}

int64_t ExpertExchange::ranks_of_samples(AxisSet axes) const {
  int64_t ranks = axes.has(Axis::context) ? groups_.context.size() : 1;
  if (axes.has(Axis::tensor) && groups_.mesh.expert_axes.has(Axis::tensor)) ranks *= groups_.tensor.size();
  return ranks;
}

void ExpertExchange::claim(Step& step, Tensor t, Placement from, Placement to) const {
  for (int i = 0; i < kAxisCount; ++i)
    if (const Axis a = static_cast<Axis>(i); groups_.mesh.expert_axes.has(a) && kGradientAxes.has(a))
      place_as(step.compute, kRows.op, a, t, from, to);
}

std::vector<int64_t> ExpertExchange::planned_counts(int64_t tokens, int64_t capacity) const {
  const auto part = [](int64_t rows, int64_t i, int64_t n) { return rows * (i + 1) / n - rows * i / n; };
  const int64_t local = local_experts(), first = groups_.expert.rank() * local, choices = tokens * rows_each_;
  const bool even = skew_ <= 1 || local == experts_;
  // Rows of this rank's experts: a token chooses an expert at most once.
  const double wanted = skew_ * static_cast<double>(choices * local) / static_cast<double>(experts_);
  const int64_t here = std::min({choices, local * tokens, int64_t{std::llround(wanted)}});
  std::vector<int64_t> counts(experts_);
  const int64_t share = capacity / ranks_of_samples(kAllAxes);  // rounded down: there is no memory for more
  for (int64_t e = 0; e < experts_; ++e) {
    if (even)
      counts[e] = part(choices, e, experts_);
    else if (e >= first && e < first + local)
      counts[e] = part(here, e - first, local);
    else
      counts[e] = part(choices - here, e < first ? e : e - local, experts_ - local);
    if (capacity > 0) counts[e] = std::min(counts[e], share);
  }
  return counts;
}

void ExpertExchange::check_finite(int64_t token, const std::string& name) const {
  if (token >= 0)
    fail(ExitCode::no_progress,
         "{}: the router's logits of token {} of the micro-batch on rank {} are not finite; no update was "
         "made. Lower optimizer.lr, or ask for model.moe.z_loss_coeff",
         name, token, groups_.mesh.rank);
}

ExpertRowCounts ExpertExchange::count_here(Step& step, const Routing& r, int64_t capacity,
                                           const std::string& name, const ChosenExperts& here) const {
  const int64_t ranks = groups_.expert.size(), local = local_experts();
  ExpertRowCounts c;
  if (step.compute.meta()) {
    const std::vector<int64_t> planned = planned_counts(r.slots.shape[0] / ranks, capacity);
    for (int64_t e = 0; e < local; ++e)
      c.groups.push_back(here.place(here.first + e, local) < 0 ? 0 : ranks * planned[here.first + e]);
  } else {
    c.groups = host_copy(step, r.counts);
    check_finite(c.groups.back(), name);
    c.groups.pop_back();
  }
  c.sorted = c.received = sum(c.groups);
  return c;
}

std::vector<int64_t> ExpertExchange::counts_of_ranks(Step& step, const Routing& r, int64_t capacity,
                                                     const std::string& name) const {
  const Group& g = groups_.expert;
  const int64_t ranks = g.size();
  LT_CHECK(r.counts.elements() == experts_ + 1, "expected {} counts of experts, got {}", experts_ + 1,
           r.counts.elements());
  Tensor all = r.counts;
  if (ranks > 1) {
    all = step.memory.allocate(MemoryKind::temporaries, "rows of all ranks to experts", DType::i64,
                               {ranks, experts_ + 1});
    g.all_gather(step.compute, all, r.counts, kRows);
    for (int i = 0; i < kAxisCount; ++i)
      if (groups_.mesh.expert_axes.has(static_cast<Axis>(i)))
        place_require(step.compute, "reading the rows of all ranks", all, static_cast<Axis>(i),
                      Placement::R());
  }
  std::vector<int64_t> known;
  if (step.compute.meta()) {
    const std::vector<int64_t> mine = planned_counts(r.slots.shape[0], capacity);
    for (int64_t rank = 0; rank < ranks; ++rank) known.insert(known.end(), mine.begin(), mine.end());
  } else {
    const std::vector<int64_t> read = host_copy(step, all);
    const auto of = [&](int64_t rank) { return read.begin() + rank * (experts_ + 1); };
    check_finite(of(g.rank())[experts_], name);
    for (int64_t rank = 0; rank < ranks; ++rank) known.insert(known.end(), of(rank), of(rank) + experts_);
    // A token chooses an expert at most once. Other counts would index outside the memory.
    for (const int64_t rows : known)
      LT_CHECK(rows >= 0 && rows <= r.slots.shape[0],
               "{}: expected at most {} rows of a rank for an expert, got {}", name, r.slots.shape[0], rows);
  }
  if (ranks > 1) step.release(all);
  return known;
}

ExpertRowCounts ExpertExchange::lay_out(const std::vector<int64_t>& all) const {
  const Group& g = groups_.expert;
  const int64_t ranks = g.size(), local = local_experts();
  ExpertRowCounts c;
  for (int64_t e = 0; e < experts_; ++e) c.sorted += all[g.rank() * experts_ + e];
  c.groups.assign(local, 0);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    c.send.push_back(rows_between(all, g.rank(), rank));
    c.arrive.push_back(rows_between(all, rank, g.rank()));
    for (int64_t e = 0; e < local; ++e) c.groups[e] += all[rank * experts_ + g.rank() * local + e];
  }
  c.received = sum(c.arrive);
  if (groups_.expert.size() == 1) return c;
  int64_t from = 0;
  std::vector<int64_t> to(local);
  for (int64_t e = 1; e < local; ++e) to[e] = to[e - 1] + c.groups[e - 1];
  for (int64_t rank = 0; rank < ranks; ++rank)
    for (int64_t e = 0; e < local; ++e) {
      const int64_t rows = all[rank * experts_ + g.rank() * local + e];
      if (rows > 0) c.parts.push_back({rows, 0, from, 0, to[e], 0});
      from += rows;
      to[e] += rows;
    }
  if (two_levels()) lay_out_levels(c, all);
  return c;
}

std::vector<ExpertRowCounts> ExpertExchange::lay_out(const std::vector<int64_t>& all, int64_t most) const {
  const std::vector<std::vector<int64_t>> slices = cut_rows(all, groups_.expert.size(), most);
  if (slices.size() == 1) return {lay_out(all)};
  const int64_t local = local_experts(), mine = groups_.expert.rank() * experts_;
  std::vector<int64_t> next(experts_);  // next of this rank's sorted rows of each expert
  for (int64_t e = 1; e < experts_; ++e) next[e] = next[e - 1] + all[mine + e - 1];
  std::vector<ExpertRowCounts> out;
  for (const std::vector<int64_t>& slice : slices) {
    ExpertRowCounts c = lay_out(slice);
    int64_t to = 0;
    for (int64_t rank = 0; rank < groups_.expert.size(); ++rank) {
      CopyRectangle p{.rows = 0, .cols = 0, .from_row = 0, .from_col = 0, .to_row = to, .to_col = 0};
      for (int64_t e = rank * local; e < (rank + 1) * local; ++e) {
        if (slice[mine + e] == 0) continue;
        if (p.rows == 0) p.from_row = next[e];
        LT_CHECK(next[e] == p.from_row + p.rows,
                 "expected consecutive rows of a slice, got row {} after {} rows from {} on", next[e], p.rows,
                 p.from_row);
        p.rows += slice[mine + e];
        next[e] += slice[mine + e];
      }
      if (p.rows > 0) c.own.push_back(p);
      to += p.rows;
    }
    out.push_back(std::move(c));
  }
  return out;
}

int64_t ExpertExchange::rows_between(const std::vector<int64_t>& all, int64_t from, int64_t to) const {
  const auto first = all.begin() + from * experts_ + to * local_experts();
  return std::accumulate(first, first + local_experts(), int64_t{0});
}

/// Rank (b, j) is the j-th of the b-th run of neighbours.
void ExpertExchange::lay_out_levels(ExpertRowCounts& c, const std::vector<int64_t>& all) const {
  const int64_t near = groups_.expert_intra_node.size(), far = groups_.expert_inter_node.size();
  const int64_t me = groups_.expert.rank(), first = me / near * near, place = me % near;
  int64_t to = 0;
  std::vector<int64_t> from(near * far);
  for (int64_t rank = 1; rank < near * far; ++rank) from[rank] = from[rank - 1] + c.send[rank - 1];
  for (int64_t j = 0; j < near; ++j) {  // in the order of the neighbours that they go to
    const int64_t begin = to;
    for (int64_t b = 0; b < far; ++b) {
      const int64_t rank = b * near + j, rows = c.send[rank];
      if (rows > 0) c.near.parts.push_back({rows, 0, from[rank], 0, to, 0});
      to += rows;
    }
    c.near.send.push_back(to - begin);
  }
  std::vector<int64_t> arrived(near * far);  // (i, b): begin of the rows of neighbour i for (b, place)
  int64_t at = 0;
  for (int64_t i = 0; i < near; ++i) {
    const int64_t begin = at;
    for (int64_t b = 0; b < far; ++b) {
      arrived[i * far + b] = at;
      at += rows_between(all, first + i, b * near + place);
    }
    c.near.arrive.push_back(at - begin);
  }
  to = 0;
  for (int64_t b = 0; b < far; ++b) {
    const int64_t begin = to;
    int64_t back = 0;
    for (int64_t i = 0; i < near; ++i) {
      const int64_t rows = rows_between(all, first + i, b * near + place);
      if (rows > 0) c.far.parts.push_back({rows, 0, arrived[i * far + b], 0, to, 0});
      to += rows;
      back += c.arrive[b * near + i];
    }
    c.far.send.push_back(to - begin);
    c.far.arrive.push_back(back);
  }
}

void ExpertExchange::dispatch_start(Step& step, const ExpertRowCounts& c, Tensor sorted, int64_t most,
                                    Flight& f, Tensor received) const {
  const Group& g = groups_.expert;
  const int64_t cols = sorted.cols(), sent = sorted.shape[0];
  f.lent = received.defined() && straight();
  if (f.lent) f.arrived = received;
  if (!f.arrived.defined()) f.arrived = step.temporary("rows from ranks", {most, cols});
  claim(step, sorted, Placement::V(), Placement::S(0));
  f.done = g.start(step.compute, [&](Stream& s) {
    if (!two_levels()) return g.all_to_all_v(s, f.arrived, c.arrive, sorted, c.send);
    const int64_t passing = sum(c.near.arrive);
    const Tensor out = f.hold(step, 0, "rows by neighbour", {sent, cols}),
                 in = f.hold(step, 1, "rows from neighbours", {most_passing(sent, most), cols}),
                 on = f.hold(step, 2, "rows of neighbours by place", {most_passing(sent, most), cols});
    copy_rectangles(s, out, sorted, whole_rows(c.near.parts, cols, false));
    groups_.expert_intra_node.all_to_all_v(s, in, c.near.arrive, out, c.near.send);
    copy_rectangles(s, on.narrow(0, passing), in.narrow(0, passing), whole_rows(c.far.parts, cols, false));
    groups_.expert_inter_node.all_to_all_v(s, f.arrived, c.far.arrive, on, c.far.send);
  });
}

void ExpertExchange::dispatch_finish(Step& step, const ExpertRowCounts& c, Tensor received, Flight& f) const {
  f.done.wait(step.compute);
  if (f.lent) {
    f.arrived = Tensor();
    f.lent = false;
  } else {
    copy_rectangles(step.compute, received.narrow(0, c.received), f.arrived.narrow(0, c.received),
                    whole_rows(c.parts, received.cols(), false));
  }
  end(step, f);
}

Tensor ExpertExchange::dispatch_finish(Step& step, Flight& f) const {
  f.done.wait(step.compute);
  Tensor received = std::exchange(f.arrived, Tensor());
  end(step, f);
  return received;
}

void ExpertExchange::return_rows_start(Step& step, const ExpertRowCounts& c, Tensor sorted, Tensor received,
                                       Flight& f) const {
  const Group& g = groups_.expert;
  const int64_t cols = sorted.cols(), sent = sorted.shape[0], most = received.shape[0];
  if (straight()) {
    f.arrived = received;
  } else {
    if (!f.arrived.defined()) f.arrived = step.temporary("rows to ranks", received.shape);
    copy_rectangles(step.compute, f.arrived.narrow(0, c.received), received.narrow(0, c.received),
                    whole_rows(c.parts, cols, true));
  }
  f.done = g.start(step.compute, [&](Stream& s) {
    if (!two_levels()) return g.all_to_all_v(s, sorted, c.send, f.arrived, c.arrive);
    const int64_t passing = sum(c.near.arrive);
    const Tensor in = f.hold(step, 1, "rows back by place", {most_passing(sent, most), cols}),
                 on = f.hold(step, 2, "rows back by neighbour", {most_passing(sent, most), cols}),
                 out = f.hold(step, 0, "rows back from neighbours", {sent, cols});
    groups_.expert_inter_node.all_to_all_v(s, in, c.far.send, f.arrived, c.far.arrive);
    copy_rectangles(s, on.narrow(0, passing), in.narrow(0, passing), whole_rows(c.far.parts, cols, true));
    groups_.expert_intra_node.all_to_all_v(s, out, c.near.send, on, c.near.arrive);
    copy_rectangles(s, sorted, out, whole_rows(c.near.parts, cols, true));
  });
}

void ExpertExchange::return_rows_finish(Step& step, Tensor sorted, Flight& f) const {
  f.done.wait(step.compute);
  end(step, f);
  claim(step, sorted, Placement::S(0), Placement::V());
}

void ExpertExchange::end(Step& step, Flight& f) {
  if (!f.stays) return release(step, f);
  spend(step.compute, f.arrived);
  for (const Tensor& t : f.held) spend(step.compute, t);
}

void ExpertExchange::release(Step& step, Flight& f) {
  if (f.lent) f.arrived = Tensor();
  f.lent = false;
  step.release(f.arrived);
  for (Tensor& t : f.held) step.release(t);
}

}  // namespace ltrain
