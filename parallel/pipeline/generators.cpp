#include "parallel/pipeline/generators.h"

#include <algorithm>
#include <array>
#include <deque>
#include <utility>

namespace ltrain::pipeline {
namespace {

constexpr ActionKind F = ActionKind::forward, B = ActionKind::backward, I = ActionKind::backward_input,
                     W = ActionKind::backward_weight;

/// Order of a rank with two chunks. The schedule is the sequence of kinds and chunks; micro-batches of a kind
/// and chunk count up automatically.
class TwoChunks {
 public:
  TwoChunks(int rank, int ranks) : stage_{rank, 2 * ranks - 1 - rank} {}

  void forward(int chunk) { order_.push_back({F, stage_[chunk], forwards_[chunk]++}); }
  void backward(int chunk) { order_.push_back({B, stage_[chunk], backwards_[chunk]++}); }
  /// An interleaved forward of one chunk and backward of the other.
  void pair(int forward_chunk) {
    forward(forward_chunk);
    order_.back().with_next = true;
    backward(1 - forward_chunk);
  }
  /// Runs I now; its W waits in the queue.
  void input(int chunk) {
    owed_.push_back({W, stage_[chunk], backwards_[chunk]});
    order_.push_back({I, stage_[chunk], backwards_[chunk]++});
  }
  void input_or_backward(int chunk, bool split) { split ? input(chunk) : backward(chunk); }
  /// Runs the oldest waiting W, if there is one.
  void weight() {
    if (owed_.empty()) return;
    order_.push_back(owed_.front());
    owed_.pop_front();
  }
  void weights() {
    while (!owed_.empty()) weight();
  }
  int forwards(int chunk) const { return forwards_[chunk]; }
  Order take() { return std::move(order_); }

 private:
  std::array<int, 2> stage_, forwards_{}, backwards_{};
  std::deque<Action> owed_;
  Order order_;
};

}  // namespace

std::vector<int> placed_in_loops(int ranks, int chunks) {
  std::vector<int> rank_of(static_cast<size_t>(ranks) * chunks);
  for (size_t s = 0; s < rank_of.size(); ++s) rank_of[s] = static_cast<int>(s % ranks);
  return rank_of;
}

std::vector<int> placed_in_v(int ranks) {
  std::vector<int> rank_of(2 * static_cast<size_t>(ranks));
  for (int r = 0; r < ranks; ++r) rank_of[r] = rank_of[2 * ranks - 1 - r] = r;
  return rank_of;
}

Order gpipe_order(int rank, int micros) {
  Order order;
  for (int m = 0; m < micros; ++m) order.push_back({F, rank, m});
  for (int m = 0; m < micros; ++m) order.push_back({B, rank, m});
  return order;
}

Order one_f_one_b_order(int rank, int ranks, int micros) {
  Order order;
  const int lead = std::min(ranks - rank, micros);
  for (int m = 0; m < lead; ++m) order.push_back({F, rank, m});
  for (int m = 0; m < micros; ++m) {
    order.push_back({B, rank, m});
    if (lead + m < micros) order.push_back({F, rank, lead + m});
  }
  return order;
}

Order interleaved_order(int rank, int ranks, int chunks, int micros) {
  // The i-th forward of a rank: groups of `ranks` micro-batches, chunk by chunk within a group; backward the
  // same with reversed chunks.
  const int total = micros * chunks, group = ranks * chunks;
  const auto action = [&](ActionKind kind, int i) {
    const int in_group = i % group, chunk = in_group / ranks;
    return Action{kind, (kind == F ? chunk : chunks - 1 - chunk) * ranks + rank,
                  i / group * ranks + in_group % ranks};
  };
  const int lead = std::min(2 * (ranks - rank - 1) + (chunks - 1) * ranks + 1, total);
  Order order;
  for (int i = 0; i < lead; ++i) order.push_back(action(F, i));
  for (int i = 0; i < total; ++i) {
    order.push_back(action(B, i));
    if (lead + i >= total) continue;
    order.back().with_next = true;  // Megatron-LM's overlap of expert communication
    order.push_back(action(F, lead + i));
  }
  return order;
}

Order zero_bubble_order(int rank, int micros, int lead, int lag) {
  Order order;
  lead = std::min(lead, micros);
  for (int m = 0; m < lead; ++m) order.push_back({F, rank, m});
  for (int m = 0; m < micros; ++m) {
    order.push_back({I, rank, m});
    if (m >= lag) order.push_back({W, rank, m - lag});
    if (lead + m < micros) order.push_back({F, rank, lead + m});
  }
  for (int m = std::max(0, micros - lag); m < micros; ++m) order.push_back({W, rank, m});
  return order;
}

Order zbv_order(int rank, int ranks, int micros) {
  // The phases need 2 * ranks - 1 micro-batches. With fewer, an order for that many is made and the missing
  // ones are removed: no remaining action waits for a removed one.
  const int enough = std::max(micros, 2 * ranks - 1);
  TwoChunks o(rank, ranks);
  for (int i = 0; i < 2 * (ranks - rank) - 1; ++i) o.forward(0);
  for (int i = 0; i < rank; ++i) o.forward(1), o.forward(0);
  for (int i = 0; i < ranks - rank; ++i) o.forward(1), o.input(1), o.weight();
  while (o.forwards(1) < enough) {
    if (o.forwards(0) < enough) o.forward(0);
    o.input(0), o.weight();
    o.forward(1), o.input(1), o.weight();
  }
  for (int i = 0; i < rank; ++i) o.input(0), o.input(1);
  for (int i = 0; i < ranks - rank; ++i) o.input(0), o.weight();
  o.weights();
  Order order = o.take();
  std::erase_if(order, [&](const Action& a) { return a.micro >= micros; });
  return order;
}

Order dualpipev_order(int rank, int ranks, int micros) {
  const int after = ranks - rank - 1;  // ranks further down the V
  TwoChunks o(rank, ranks);
  for (int i = 0; i < 2 * after; ++i) o.forward(0);
  for (int i = 0; i <= rank; ++i) o.forward(0), o.forward(1);
  for (int i = 0; i < after; ++i) o.input(1), o.weight(), o.forward(1);
  // Pairs F0 B1 and F1 B0: DualPipe overlaps their computation and communication. At the bottom of the V the
  // first F0 is sent on before B1, with nothing to overlap yet (as in DeepSeek's DualPipeV).
  for (int i = 0; i < micros - 2 * ranks + rank + 1; ++i) {
    if (i == 0 && after == 0)
      o.forward(0), o.backward(1);
    else
      o.pair(0);
    o.pair(1);
  }
  for (int i = 0; i < after; ++i) o.backward(1), o.pair(1);
  // From the middle of the drain, backward is split so that W fills the bubbles of the last phases.
  bool split = false;
  for (int i = 0; i <= rank; ++i) {
    const bool middle = i == (rank + 1) / 2;
    split = split || (middle && rank % 2 == 1);
    o.input_or_backward(1, split);
    split = split || (middle && rank % 2 == 0);
    o.input_or_backward(0, split);
  }
  for (int i = 0; i < after; ++i) o.weight(), o.input_or_backward(0, split);
  o.weights();
  return o.take();
}

}  // namespace ltrain::pipeline
