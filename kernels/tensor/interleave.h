// Two pieces of host code that give work to the same streams by turns, so that the one computes while the
// other's collective travels.
//
// Turns change where a piece says so, which is where its compute stream is about to wait for a collective
// (AsyncHandle::wait), whether or not the collective has ended by then: the order of work is the same in
// every run, on every rank and on meta, and streams need not know. What one piece reads the other may not
// write.
#pragma once
#include <functional>
#include <memory>

#include "kernels/tensor/stream.h"

namespace ltrain {

class Interleave {
 public:
  /// Runs both on the calling thread, `first` first; `second` on a stack of its own. Rethrows what one of
  /// them throws; the other then ends at its next turn.
  /// `adds_last`: the side (0: first) whose sums come second where both add to the same (after_other).
  /// `model_work` (MetaTrace::set_model_work) is told at each turn what the piece has said last, first true.
  static void run(Stream& compute, const std::function<void()>& first, const std::function<void()>& second,
                  int adds_last = 1, const std::function<void(bool)>& model_work = {});
  /// That the calling thread is in; null: none.
  static Interleave* of_thread();

  Stream& compute() const { return compute_; }
  /// Lets the other piece go on until it passes. Nothing when it has ended, or while this one keeps its turn.
  void pass();
  /// Lets it go on to its end.
  void finish_other();
  /// The calling thread adds to what the other piece may add to, too: of a piece whose sums come second the
  /// other ends first, so that the order of additions is that of one piece after the other. Nothing where
  /// no pieces take turns.
  static void after_other();
  /// While one lives the piece keeps its turn, whatever it waits for: so that work whose amount only a run
  /// knows leaves turns, and with them the order of all ranks and the memory, as they are planned.
  class KeptTurn {
   public:
    KeptTurn() : of_(of_thread()) {
      if (of_) ++of_->kept_;
    }
    ~KeptTurn() {
      if (of_) --of_->kept_;
    }
    KeptTurn(const KeptTurn&) = delete;
    KeptTurn& operator=(const KeptTurn&) = delete;

   private:
    Interleave* of_;
  };
  /// Counts what the piece has given back, and lets the other go on until it has counted `n`, or ends: so
  /// that one takes memory no faster than the other gives it.
  void count();
  void wait_for_count(int64_t n);
  /// Which of the two pieces the calling thread is in: 0, or 1 in the second; 0 in neither.
  static int side();
  /// The layer of the piece that runs, and whether it does the model's work: its next turn begins with them.
  void enter(std::string_view layer);
  void set_model_work(bool on);

  ~Interleave();
  Interleave(const Interleave&) = delete;
  Interleave& operator=(const Interleave&) = delete;

 private:
  struct Sides;
  Interleave(Stream& compute, int adds_last);
  static void run_second();
  Stream& compute_;
  int adds_last_;
  std::unique_ptr<Sides> sides_;
  int kept_ = 0;  ///< turns that are kept
};

/// Names the layer of what comes next on the stream, whoever has it done.
void name_layer(Stream& s, const std::string& layer);

}  // namespace ltrain
