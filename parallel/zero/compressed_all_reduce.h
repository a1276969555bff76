// Compressed all-reduce: gradients in 8 bits or one, moments of 1-bit Adam and LAMB in one bit.
//
// A rank adds the rounding error of the last time to its values, and rounds them. Each rank gets all ranks'
// codes of its piece, sums them, adds the rounding error of its last sum, and rounds the sum; all ranks get
// its codes. The two phases move as many bytes as an all-reduce of the codes, and all ranks end with the same
// bits. Errors are kept, so that nothing is lost over steps (error feedback, DeepSpeed's compressed
// all-reduce).
#pragma once
#include <optional>
#include <vector>

#include "kernels/optimizer/onebit/error_feedback.h"
#include "parallel/zero/owned_state.h"
#include "parallel/zero/parameter_layout.h"
#include "parallel/zero/store_context.h"

namespace ltrain {

/// The tensors of one compressed all-reduce over a group. Elements that `where` excludes are not summed.
struct CompressedSum {
  Code code = Code::int8;
  Tensor values;          ///< (n) f32 or f64, n a multiple of the group's size times the block
  Tensor sent_error;      ///< (n), of what this rank sends
  Tensor sum_error;       ///< (n / size), of the sums of its piece
  Tensor sent, received;  ///< (coded_bytes of n) u8
  Tensor where;           ///< (n), or undefined
};
/// values = factor * their sum over the ranks of `g`; on all of them, or on this rank's piece only. `s`:
/// stream of the group, which uses the codes.
void compressed_all_reduce(Stream& s, const Group& g, const CompressedSum& sum, double factor, bool all);

class CompressedAllReduce {
 public:
  /// `gradients`: code for the gradients of every bucket that trains; nullopt: they are not compressed.
  CompressedAllReduce(const StoreContext& context, const ParameterLayout& layout,
                      std::optional<Code> gradients);

  /// True if sums of this bucket are compressed, of gradients or of moments.
  bool applies(const Bucket& b) const;
  bool compresses_gradients(const Bucket& b) const { return gradients_.has_value() && applies(b); }
  /// Elements that are coded together; 1 without compression.
  int64_t block(const Bucket& b) const { return applies(b) ? code_block(code_of(b)) : 1; }

  /// Allocates the errors of a bucket; after all buckets, allocate_codes() allocates codes for the largest
  /// one.
  void allocate(const Bucket& b);
  void allocate_codes();
  /// Calls f with all errors, which start at zero.
  void each_error(const std::function<void(const Tensor&)>& f) const;

  /// values = factor * their sum over the ranks of the bucket; on all of the bucket, or on the piece only.
  /// Elements that `where` excludes are not summed. `s`: stream of the bucket's group, which uses the codes.
  void run(Stream& s, const Bucket& b, Tensor values, double factor, Tensor where, bool all);

  /// Errors for checkpoints.
  std::vector<RoundingError> rounding_errors(bool owned) const;

 private:
  struct Errors {
    Tensor sent, sum;  // error of this rank's values, padded; error of the sums of its piece
  };
  Code code_of(const Bucket& b) const;
  /// Zeroes what belongs to no parameter in elements [begin, ...) of a bucket: a sign has no code for zero.
  void clear_gaps(Stream& s, const Bucket& b, const Tensor& elements, int64_t begin) const;

  StoreContext c_;
  const ParameterLayout& layout_;
  std::optional<Code> gradients_;
  std::vector<Errors> errors_;  // indexed by bucket
  Tensor codes_, received_;     // u8, for the bucket in progress
};

}  // namespace ltrain
