// Values that a step sums over all ranks, in one collective: the loss, gradient norms, statistics of routers.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/tensor/arena.h"
#include "kernels/tensor/staging.h"
#include "parallel/mesh/groups.h"
#include "runtime/program/program_options.h"
#include "runtime/program/replica_sums.h"

namespace ltrain {

/// Neighbouring values of StepSums.
struct StepSum {
  Tensor tensor;      ///< f64, this rank's summand; undefined if the program has no such sum
  int64_t first = 0;  ///< index of its first value among all values
  bool on() const { return tensor.defined(); }
};

/// A new sum needs a member, a row of `slices` (step_sums.cpp), and the code that adds to it. A row with a
/// metric is also written to metrics.jsonl.
class StepSums {
 public:
  /// Values of a step after the collective, read back to the host.
  struct Values {
    std::vector<double> all;
    /// First value of a sum that is on.
    double operator[](const StepSum& sum) const { return all[static_cast<size_t>(sum.first)]; }
    std::span<const double> of(const StepSum& sum) const {
      return std::span(all).subspan(static_cast<size_t>(sum.first),
                                    static_cast<size_t>(sum.tensor.elements()));
    }
  };

  StepSums(Stream& stream, Memory& memory, const ProgramOptions& options);

  /// Number of values that a program sums.
  static int64_t count(const ProgramOptions& options);

  /// Sets all values to zero.
  void clear();
  /// Sums the values over all ranks in place. Values that ranks of the inner axis have alike are added once.
  /// `reading`: what the sums are read for, in messages of the placement check.
  void reduce(const Groups& groups, const char* reading);
  /// After reduce(): sums requests to stop and news over sites, too; or all values.
  void reduce_requests_over_sites(const Groups& groups);
  /// After reduce(): sums over replicas what each has of its own micro-batches. Squares are of gradients that
  /// are summed already, and each replica stops by itself.
  void reduce_over_replicas(ReplicaSums& replicas);
  void reduce_over_sites(const Groups& groups) { groups.sum_over_sites(stream_, all_); }
  /// A sum on the device after the collective.
  Tensor reduced(const StepSum& sum) const { return all_.flat(sum.first, sum.tensor.shape); }
  /// Waits for the values and returns them.
  Values read(Staging& staging) const;
  /// Names and values of the sums with a metric; 0 without counted tokens.
  std::vector<std::pair<std::string, double>> means(const Values& values, int64_t tokens) const;

  StepSum loss;        ///< (1) sum of token losses
  StepSum stop;        ///< (1) ranks that ask to stop
  StepSum news;        ///< (1) ranks that have news for all
  StepSum squares;     ///< (segments) squares of gradients
  StepSum experts;     ///< (layers, moe_sums) sums of routers; on in MoE models
  StepSum z_loss;      ///< (1) sum of z-losses on output logits
  StepSum mtp_loss;    ///< (1) sum of token losses of multi-token prediction
  StepSum pairs;       ///< (PreferenceTotals::count) sums over preference pairs
  StepSum divergence;  ///< (1) sum of the tokens' divergences from a teacher
  StepSum mask_flips;  ///< (2) SparseMasks::add_flips

 private:
  struct Slice {
    StepSum StepSums::*sum;
    const char* name;  ///< for messages of the placement check
    Shape shape;
    /// Ranks of the inner axis have equal values.
    bool replicated = true;
    const char* metric = nullptr;  ///< name in metrics.jsonl of the sum divided by the counted tokens
    int64_t each = 1;              ///< summands of a token, by which its mean is divided, too
  };
  static std::vector<Slice> slices(const ProgramOptions& options);
  const Tensor& tensor(const Slice& slice) const { return (this->*slice.sum).tensor; }
  /// On meta: the placements of the sums before the collective.
  void place_summands(Axis inner);

  Stream& stream_;
  std::vector<Slice> slices_;
  Tensor all_;  // (count) f64
};

}  // namespace ltrain
