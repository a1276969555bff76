// The teacher of distillation: a frozen model of any family and size with the student's vocabulary. It has
// weights without gradients and optimizer states, sharded as the student's: over tensor ranks, and with
// ZeRO-3 over data ranks.
#pragma once
#include "models/decoder/decoder.h"

namespace ltrain {

class FrozenTeacher : public Teacher {
 public:
  FrozenTeacher(const ModelConfig& config, const Groups& groups, bool sequence_parallel);

  /// Allocates weights in `precision.compute`, and tables for sequences of `seq` tokens.
  void allocate(Stream& compute, Memory& memory, const Groups& groups, const PrecisionPolicy& precision,
                const ShardingPolicy& sharding, int64_t bucket_elements, int64_t seq);
  ParameterStore& parameters() { return store_; }
  int64_t weight_bytes() const;  ///< weights that this rank holds
  /// On meta: compute seconds of all forwards and logits so far.
  double seconds() const { return seconds_; }

  void forward(const Step& student, const MicroBatch& mb) override;
  void begin_logits(const Step& student) override;
  void logits(const Step& student, Tensor out, int64_t first_row) override;
  void end_logits(const Step& student) override;

 private:
  /// The student's step with this model's weights.
  Step step_of(const Step& student);
  class Timed;

  ParameterStore store_;
  Decoder decoder_;
  Tensor rows_, whole_;  // the output layer's input: rows of the stream, and all
  double seconds_ = 0;
};

}  // namespace ltrain
