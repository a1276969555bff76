// The parameters of a rank, in flat buckets, and what data parallelism and ZeRO-1 do with them.
//
// Layers declare units: parameters that are contiguous in memory, so that q, k and v are three named tensors
// and one matrix. Units fill buckets in the reverse of their declaration, the order in which backward
// finishes them. A bucket of n elements is cut into one piece a data rank. A rank owns its piece: with ZeRO-1
// it keeps optimizer state for that piece alone; without, for all of it. Either way the gradient norm is
// summed over owned pieces and a checkpoint is written from them, so both give the same bits.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "kernels/core/arena.h"
#include "kernels/core/stream.h"
#include "kernels/ops/adamw.h"
#include "parallel/communicator.h"

namespace ltrain {

enum class Init : uint8_t { normal, zeros, ones };

struct ParameterSpec {
  std::string name;  ///< Hugging Face's name
  Shape shape;
  Init init = Init::normal;
  double std = 0.02;
  bool decay = true;  ///< weight decay applies
};

/// Element types of a parameter's forms. f32: {f32, f32, f32}; bf16: {bf16, f32, f32}; f64: all f64.
struct PrecisionPolicy {
  DType compute = DType::f32;  ///< weights and activations in the step
  DType master = DType::f32;   ///< weights and moments in the optimizer
  DType grad = DType::f32;     ///< accumulated and reduced gradients
  bool has_master() const { return compute != master; }
};

/// Consecutive elements of one parameter that a rank owns, and where its states lie.
struct OwnedPiece {
  int id = 0;
  int64_t begin = 0, end = 0;  ///< elements of the parameter, row-major
  Tensor master, exp_avg, exp_avg_sq;
};

class ParameterStore {
 public:
  /// Declares a unit; returns the id of its first parameter, the others follow. All have one number of
  /// columns when they are to be used as one matrix.
  int add(std::vector<ParameterSpec> unit);

  struct Layout {
    PrecisionPolicy precision;
    int zero_stage = 0;                 ///< 0 or 1
    int64_t bucket_elements = 4 << 20;  ///< a bucket is closed when it reaches this
    bool for_training = true;           ///< false: no gradients, no optimizer state
  };
  /// Carves everything out of `memory`; `data` is the data-parallel group.
  void allocate(Stream& compute, Stream& comm, Memory& memory, Communicator& data, const Layout& layout);

  /// Everything to zero, padding included. On meta nothing.
  void clear();
  /// Fills parameters and optimizer state from the counter generator: a function of (seed, name, element).
  void initialize(uint64_t seed);

  int count() const { return static_cast<int>(parameters_.size()); }
  const ParameterSpec& spec(int id) const { return parameters_[id].spec; }
  int64_t elements() const;               ///< of all parameters, without padding
  int find(std::string_view name) const;  ///< -1 if there is none

  /// The parameter, or `n` of one unit as one matrix (sum of rows, columns).
  Tensor value(int id, int n = 1) const;
  Tensor grad(int id, int n = 1) const;

  // ---- the step ----
  /// Called at the start of each micro-step: the first overwrites gradients, the last reduces them as they
  /// appear.
  void begin_micro_step(bool first, bool last);
  bool accumulating() const { return !first_micro_step_; }
  /// A backward has added its last contribution of this micro-step to `n` parameters from `id` on.
  void grad_ready(int id, int n = 1);
  /// After the last backward: waits for the reductions.
  void finish_gradients();
  /// total[0] (f64) += sum of squares of the gradients that this rank owns: P over the data axis.
  void add_grad_squares(Tensor total);
  /// One optimizer step on what this rank owns, then the gather of what others own.
  void update(const AdamwArgs& args);

  // ---- state ----
  std::vector<OwnedPiece> owned_pieces() const;   ///< what this rank writes to a checkpoint
  std::vector<OwnedPiece> stored_pieces() const;  ///< what this rank keeps states of, and must read from one
  /// After stored_pieces were filled: low-precision copies, and the pieces of other ranks.
  void publish_loaded();

 private:
  struct Parameter {
    ParameterSpec spec;
    int unit = 0, bucket = 0;
    int64_t offset = 0;  // in the bucket
  };
  struct Bucket {
    std::vector<int> ids;
    int64_t used = 0, padded = 0, piece = 0;          // elements: used, rounded up, of one rank
    Tensor value, grad, master, exp_avg, exp_avg_sq;  // states: (stored)
    int waiting = 0;  // parameters whose gradient is not complete in this micro-step
    Event reduced;
  };
  int64_t own_begin(const Bucket& b) const;     // first element that this rank owns
  int64_t stored_begin(const Bucket& b) const;  // first element that this rank keeps states of
  int64_t stored_count(const Bucket& b) const;
  void reduce(Bucket& b);
  std::vector<OwnedPiece> pieces(bool owned) const;

  std::vector<Parameter> parameters_;
  std::vector<std::vector<int>> units_;
  std::vector<Bucket> buckets_;
  Layout layout_;
  Stream* compute_ = nullptr;
  Stream* comm_ = nullptr;
  Memory* memory_ = nullptr;
  Communicator* data_ = nullptr;
  bool first_micro_step_ = true, last_micro_step_ = true;
};

}  // namespace ltrain
