// Two micro-batches' passes (pieces of host code) that alternately enqueue work on the same streams, so that
// the compute of one overlaps with the collectives of the other. `Stream::overlap` of the compute stream is
// the run in progress.
//
// Turns change where a piece's compute stream is about to wait for a collective (AsyncHandle::wait), even if
// the collective has already ended. The order of work is therefore the same in every run, on every rank and
// on meta, and streams need not know of turns. A piece may not write memory that the other one reads.
#pragma once
#include <functional>
#include <memory>

#include "kernels/tensor/stream.h"

namespace ltrain {

class MicroBatchOverlap {
 public:
  /// Runs both pieces on the calling thread, `first` first; `second` has its own stack. Rethrows the
  /// exception of a piece; the other piece ends at its next turn. `adds_last`: index of the piece (0: first)
  /// that adds second if both add to the same tensor (after_other). `model_work` (MetaTrace::set_model_work)
  /// is called at each turn with the piece's last value, initially true.
  static void run(Stream& compute, const std::function<void()>& first, const std::function<void()>& second,
                  int adds_last = 1, const std::function<void(bool)>& model_work = {});
  /// Gives the turn to the other piece until it passes. No effect if the other has ended, or while this one
  /// keeps its turn.
  void pass();
  /// Runs the other piece to its end.
  void finish_other();
  /// Called before the running piece adds to a tensor that the other piece may add to, too. If this piece
  /// adds second, the other one runs to its end first, so that additions have the order of two sequential
  /// runs. No effect outside a run.
  static void after_other(Stream& compute);
  /// While an object lives, the piece keeps its turn at every wait. Needed for work with an amount known only
  /// at run time: turns, and with them the order on all ranks and the memory, stay as planned.
  class KeptTurn {
   public:
    explicit KeptTurn(Stream& compute) : of_(compute.overlap) {
      if (of_) ++of_->kept_;
    }
    ~KeptTurn() {
      if (of_) --of_->kept_;
    }
    KeptTurn(const KeptTurn&) = delete;
    KeptTurn& operator=(const KeptTurn&) = delete;

   private:
    MicroBatchOverlap* of_;
  };
  /// count() counts a release of this piece; wait_for_count() lets the other piece run until it has counted
  /// `n` or ends. A piece thereby takes memory no faster than the other frees it.
  void count();
  void wait_for_count(int64_t n);
  /// Index of the running piece of `compute`: 0 or 1; 0 outside a run.
  static int side(const Stream& compute);
  /// Sets the layer of the running piece, and if it does the model's work. Its next turn begins with them.
  void enter(std::string_view layer);
  void set_model_work(bool on);

  ~MicroBatchOverlap();
  MicroBatchOverlap(const MicroBatchOverlap&) = delete;
  MicroBatchOverlap& operator=(const MicroBatchOverlap&) = delete;

 private:
  struct Sides;
  MicroBatchOverlap(Stream& compute, int adds_last);
  static void run_second(unsigned high, unsigned low);
  Stream& compute_;
  int adds_last_;
  std::unique_ptr<Sides> sides_;
  int kept_ = 0;  ///< number of live KeptTurns
};

/// Names the layer of the next work on the stream, without effect on turns.
void name_layer(Stream& s, const std::string& layer);

}  // namespace ltrain
