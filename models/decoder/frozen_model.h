// A frozen model beside the one that trains: the teacher of distillation, or the reference of preference
// training. It has weights without gradients and optimizer states, sharded as those of the model that trains:
// over tensor ranks and pipeline stages, and with ZeRO-3 over data ranks.
#pragma once
#include "models/decoder/decoder.h"

namespace ltrain {

class FrozenModel {
 public:
  FrozenModel(const ModelConfig& config, const Groups& groups, const DecoderOptions& options)
      : decoder_(config, store_, groups, options) {}

  /// Allocates weights in `precision.compute`, and tables for sequences of `seq` tokens.
  void allocate(Stream& compute, Memory& memory, const Groups& groups, const PrecisionPolicy& precision,
                const ShardingPolicy& sharding, int64_t bucket_elements, int64_t seq);
  ParameterStore& parameters() { return store_; }
  const Decoder& decoder() const { return decoder_; }
  int64_t weight_bytes() const;  ///< weights that this rank holds
  /// On meta: compute seconds of all its work so far.
  double seconds() const { return seconds_; }
  /// The step of the model that trains, with this model's weights and without training.
  Step step_of(const Step& trained);

  /// Counts the time of a scope on meta; it has none of the trained model's work.
  class Timed {
   public:
    Timed(FrozenModel& model, Stream& compute);
    ~Timed();
    Timed(const Timed&) = delete;
    Timed& operator=(const Timed&) = delete;

   private:
    FrozenModel& model_;
    Stream& compute_;
    double begin_;
  };

 private:
  ParameterStore store_;
  Decoder decoder_;
  double seconds_ = 0;
};

}  // namespace ltrain
