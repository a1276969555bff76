// Declaration of a parameter, and the dtypes of its forms.
#pragma once
#include <string>

#include "kernels/optimizer/round_stochastic.h"
#include "parallel/mesh/groups.h"
#include "parallel/mesh/sharding.h"

namespace ltrain {

enum class Init : uint8_t { normal, zeros, ones };

struct ParameterSpec {
  std::string name;  ///< Hugging Face's name; several specs may have one name and disjoint slices
  Shape shape;       ///< shape of this rank's part, padding rows included
  Init init = Init::normal;
  double std = 0.02;
  bool decay = true;       ///< weight decay applies
  bool embedding = false;  ///< a table of tokens or positions, or the projection to the vocabulary
  bool router = false;     ///< chooses experts: may be frozen, or move alone at first
  bool adapter = false;    ///< factor of LoRA: initial values that no file of a model has
  bool nf4 = false;        ///< a matrix that is held in NF4 if it is frozen (kernels/matmul/nf4.h)
  /// This rank's part of the named tensor: a box. Its elements are the first ones of `shape`; the rest is
  /// padding that stays zero. Undefined: the full tensor.
  Slice slice = {};
  /// Matrix that Muon orthogonalizes, before tensor-parallel sharding. Undefined: the named tensor, or the
  /// last two dims of a stack. Set if the tensor holds several matrices one after the other (gpt2's q, k and
  /// v).
  Shape matrix = {};
  /// Placement on the tensor-parallel axes (kTensorAxes) and, for an expert, on the axes over which experts
  /// are sharded: sharded, S(dim), or the full tensor on every rank of the axis, R.
  Placements place = {};
  bool copied = false;  ///< sharded, with each part on a group of neighbours: gradients are summed over it
  /// axes with the full tensor on every rank, but different tokens: gradients are summed over them
  AxisSet sum = {};
  int64_t expert_layer = -1;  ///< layer whose experts are stacked in dim 0; -1: none
  bool vectors = false;       ///< a stack of vectors: two of its dims are not a matrix
  /// the first and the last stage have a copy each: gradients are summed over both
  bool tied_stages = false;

  bool is_stack() const { return slice.global.rank > 2 && !vectors; }
  bool is_matrix() const { return slice.global.rank == 2 && !vectors; }
  /// A matrix of a linear layer: neither a table, the projection to the vocabulary nor a router.
  bool is_linear() const { return is_matrix() && !embedding && !router; }
};

/// Part of rank `rank` of `parts` if `axis` shards dim `dim`: ceil(n / parts) rows or columns each, the last
/// ones padded if it does not divide (dim 0 only). If another axis shards it already, a part of that part.
ParameterSpec cut_over(Axis axis, ParameterSpec whole, int dim, int rank, int parts);

/// Elements of the named tensor from element `begin` of this rank's part on.
BoxElements elements_of(const ParameterSpec& spec, int64_t begin);

/// Dtypes of a parameter's forms. f32: all f32; bf16: {bf16, f32, f32, f32}, and without master weights
/// {bf16, bf16, f32, f32}; f64: all f64.
struct PrecisionPolicy {
  DType compute = DType::f32;  ///< weights and activations in the step
  DType master = DType::f32;   ///< weights in the optimizer
  DType grad = DType::f32;     ///< accumulated and reduced gradients; bf16: rounded after each micro-batch
  DType state = DType::f32;    ///< moments, between updates
  /// True if the optimizer has separate weights from the step's.
  bool has_master() const { return compute != master; }
  /// Dtype of the arithmetic of updates.
  DType wide() const { return compute == DType::f64 ? DType::f64 : DType::f32; }
};

}  // namespace ltrain
