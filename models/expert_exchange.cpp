#include "models/expert_exchange.h"

#include <numeric>

#include "kernels/core/placement_rules.h"
#include "kernels/core/staging.h"

namespace ltrain {
namespace {

int64_t sum(const std::vector<int64_t>& v) { return std::accumulate(v.begin(), v.end(), int64_t{0}); }

/// As even as it goes: what a plan counts on.
std::vector<int64_t> even(int64_t rows, int64_t parts) {
  std::vector<int64_t> out(parts);
  for (int64_t i = 0; i < parts; ++i) out[i] = rows * (i + 1) / parts - rows * i / parts;
  return out;
}

std::vector<int64_t> host_copy(Stream& s, const Tensor& t) {
  std::vector<int64_t> out(t.elements());
  download(s, out.data(), t);
  return out;
}

}  // namespace

int64_t ExpertExchange::most_rows(int64_t tokens, int64_t top_k, int64_t capacity) const {
  const int64_t ranks = groups_.expert.size();
  int64_t rows = tokens * std::min(top_k, local_experts());
  if (capacity > 0) rows = std::min(rows, capacity * local_experts());
  return ranks * rows;
}

/// Rows that vary over ranks are slices of all rows, sorted by expert; and back.
void ExpertExchange::claim(Step& step, Tensor t, Placement from, Placement to) const {
  for (int i = 0; i < kAxisCount; ++i)
    if (const Axis a = static_cast<Axis>(i); groups_.mesh.expert_axes.has(a) && kGradientAxes.has(a))
      place_as(step.compute, "exchange of experts", a, t, from, to);
}

ExpertRowCounts ExpertExchange::count(Step& step, const Routing& r, int64_t capacity,
                                      const std::string& name) const {
  const Group& g = groups_.expert;
  const int64_t ranks = g.size(), local = local_experts();
  std::vector<int64_t> mine;
  if (step.compute.meta()) {
    mine = even(r.sources.elements(), experts_);
    for (int64_t& rows : mine)
      if (capacity > 0) rows = std::min(rows, capacity);
  } else {
    mine = host_copy(step.compute, r.counts);
    if (mine.back() >= 0)
      fail(ExitCode::no_progress,
           "{}: the router's logits of token {} of the micro-batch on rank {} are not finite; no update was "
           "made. Lower optimizer.lr, or ask for model.moe.z_loss_coeff",
           name, mine.back(), groups_.mesh.rank);
    mine.pop_back();
  }
  ExpertRowCounts c;
  c.sorted = sum(mine);
  c.groups = mine;
  c.received = c.sorted;
  if (!many()) return c;
  // Counts, by rank and expert.
  Tensor out = step.memory.allocate(MemoryKind::temporaries, "rows to experts", DType::i64, {experts_});
  Tensor in = step.memory.allocate(MemoryKind::temporaries, "rows from ranks", DType::i64, {experts_});
  std::vector<int64_t> theirs;
  if (step.compute.meta()) {
    place(step.compute, "rows to experts", Rule::elementwise, {out}, {r.counts});
  } else {
    step.compute.copy(out.data, r.counts.data, out.bytes());
  }
  claim(step, out, Placement::V(), Placement::S(0));
  g.stream->wait(step.compute.record());
  g.comm->all_to_all(*g.stream, in, out);
  step.compute.wait(g.stream->record());
  if (step.compute.meta()) {
    for (int i = 0; i < kAxisCount; ++i)
      if (groups_.mesh.expert_axes.has(static_cast<Axis>(i)))
        place_require(step.compute, "reading the rows from ranks", in, static_cast<Axis>(i), Placement::S(0));
    for (int64_t rank = 0; rank < ranks; ++rank)
      theirs.insert(theirs.end(), mine.begin() + g.rank() * local, mine.begin() + (g.rank() + 1) * local);
  } else {
    theirs = host_copy(step.compute, in);
  }
  step.release(out);
  step.release(in);
  c.groups.assign(local, 0);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    c.send.push_back(
        std::accumulate(mine.begin() + rank * local, mine.begin() + (rank + 1) * local, int64_t{0}));
    c.arrive.push_back(
        std::accumulate(theirs.begin() + rank * local, theirs.begin() + (rank + 1) * local, int64_t{0}));
    for (int64_t e = 0; e < local; ++e) c.groups[e] += theirs[rank * local + e];
  }
  c.received = sum(c.arrive);
  int64_t from = 0;
  std::vector<int64_t> to(local);
  for (int64_t e = 1; e < local; ++e) to[e] = to[e - 1] + c.groups[e - 1];
  for (int64_t i = 0; i < experts_; ++i) {
    if (theirs[i] > 0) c.parts.push_back({theirs[i], 0, from, 0, to[i % local], 0});
    from += theirs[i];
    to[i % local] += theirs[i];
  }
  return c;
}

std::vector<CopyPart> ExpertExchange::parts(const ExpertRowCounts& c, int64_t cols, bool back) const {
  std::vector<CopyPart> out;
  for (CopyPart p : c.parts) {
    p.cols = cols;
    out.push_back(back ? p.reversed() : p);
  }
  return out;
}

ExpertExchange::Flight ExpertExchange::dispatch_start(Step& step, const ExpertRowCounts& c, Tensor sorted,
                                                      int64_t most) const {
  const Group& g = groups_.expert;
  Flight f;
  f.arrived = step.temporary("rows from ranks", {most, sorted.cols()});
  claim(step, sorted, Placement::V(), Placement::S(0));
  g.stream->wait(step.compute.record());
  g.comm->all_to_all_v(*g.stream, f.arrived, c.arrive, sorted, c.send);
  f.done = g.stream->record();
  return f;
}

void ExpertExchange::dispatch_finish(Step& step, const ExpertRowCounts& c, Tensor received, Flight& f) const {
  step.compute.wait(f.done);
  copy_parts(step.compute, received.narrow(0, c.received), f.arrived.narrow(0, c.received),
             parts(c, received.cols(), false));
  step.release(f.arrived);
}

void ExpertExchange::give_back(Step& step, const ExpertRowCounts& c, Tensor sorted, Tensor received) const {
  const Group& g = groups_.expert;
  Tensor leaving = step.temporary("rows to ranks", received.shape);
  copy_parts(step.compute, leaving.narrow(0, c.received), received.narrow(0, c.received),
             parts(c, received.cols(), true));
  g.stream->wait(step.compute.record());
  g.comm->all_to_all_v(*g.stream, sorted, c.send, leaving, c.arrive);
  step.compute.wait(g.stream->record());
  step.release(leaving);
  claim(step, sorted, Placement::S(0), Placement::V());
}

}  // namespace ltrain
