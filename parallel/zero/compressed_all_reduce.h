// Sums over ranks in a compressed all-reduce: gradients in 8 bits, the moments of 1-bit Adam and LAMB in one.
//
// A rank adds to its values what rounding left over last time, and rounds them. Each rank gets all ranks'
// codes of its piece, sums them, adds what its own rounding of such sums left over, and rounds the sum, whose
// codes all get. Two phases of as many bytes as the codes have, like those of an all-reduce; all ranks hold
// the same bits at the end. What was left over is kept, so that over steps nothing is lost (error feedback,
// DeepSpeed's compressed all-reduce).
#pragma once
#include <vector>

#include "kernels/optimizer/error_feedback.h"
#include "parallel/zero/owned_state.h"
#include "parallel/zero/parameter_layout.h"
#include "parallel/zero/store_context.h"

namespace ltrain {

class CompressedAllReduce {
 public:
  /// `gradients`: of every bucket that trains, in 8 bits.
  CompressedAllReduce(const StoreContext& context, const ParameterLayout& layout, bool gradients);

  /// Sums of this bucket are compressed, of gradients or of moments.
  bool applies(const Bucket& b) const;
  bool compresses_gradients(const Bucket& b) const { return gradients_ && applies(b); }
  /// Elements that are coded together; 1 where it does not apply.
  int64_t block(const Bucket& b) const { return applies(b) ? code_block(code_of(b)) : 1; }

  /// Errors of a bucket; when all buckets have theirs, memory for the codes of the largest.
  void allocate(const Bucket& b);
  void allocate_codes();
  /// Errors begin with zero again.
  void each_error(const std::function<void(const Tensor&)>& f) const;

  /// values := factor times their sum over the ranks of the bucket, of all of them or of the piece alone. Of
  /// what `where` leaves out nothing is summed. `s` is the stream of the bucket's group, which has the codes.
  void run(Stream& s, const Bucket& b, Tensor values, double factor, Tensor where, bool all);

  /// What checkpoints keep.
  std::vector<RoundingError> rounding_errors(bool owned) const;

 private:
  struct Errors {
    Tensor sent, sum;  // of what this rank sends, padded; of its piece
  };
  Code code_of(const Bucket& b) const;

  StoreContext c_;
  const ParameterLayout& layout_;
  bool gradients_;
  std::vector<Errors> errors_;  // by bucket
  Tensor codes_, received_;     // u8, of the bucket that is summed
};

}  // namespace ltrain
