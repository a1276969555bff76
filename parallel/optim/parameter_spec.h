// The declaration of a parameter, and the types of its forms.
#pragma once
#include <string>

#include "kernels/optimizer/round_stochastic.h"
#include "parallel/mesh/groups.h"
#include "parallel/mesh/sharding.h"

namespace ltrain {

enum class Init : uint8_t { normal, zeros, ones };

struct ParameterSpec {
  std::string name;  ///< Hugging Face's name; several specs may have one name and disjoint slices
  Shape shape;       ///< of this rank's part, padding rows included
  Init init = Init::normal;
  double std = 0.02;
  bool decay = true;       ///< weight decay applies
  bool embedding = false;  ///< a table of tokens or positions, or the projection to the vocabulary
  bool router = false;     ///< chooses experts: may be frozen, or move alone at first
  /// This rank's part of the named tensor: a box, whose elements are the first ones of `shape`; what is
  /// beyond them is padding that stays zero. Undefined: the whole tensor.
  Slice slice = {};
  /// The matrix that Muon makes orthogonal, before tensor-parallel ranks cut it. Undefined: the named tensor,
  /// of a stack its last two dims; given where that holds several matrices behind each other (gpt2's q, k and
  /// v).
  Shape matrix = {};
  /// How it lies on the tensor-parallel axes (kTensorAxes) and, of an expert, on those that experts are cut
  /// over: cut, S(dim), or every rank of the axis has the whole, R.
  Placements place = {};
  bool copied = false;  ///< cut, but each part is held by a group of neighbours: gradients summed over it
  AxisSet sum = {};  ///< axes whose ranks have the whole, and gradients of it from different tokens: summed
  bool vectors = false;      ///< a stack of vectors: two dims of it are no matrix
  bool tied_stages = false;  ///< the first and the last stage have a copy each: gradients summed over both

  bool is_stack() const { return slice.global.rank > 2 && !vectors; }
  bool is_matrix() const { return slice.global.rank == 2 && !vectors; }
};

/// The part of rank `rank` of `parts` when `axis` cuts dim `dim`: ceil(n / parts) rows or columns each, the
/// last ones padded where it does not divide (dim 0 only). Of what another axis has cut, part of that part.
ParameterSpec cut_over(Axis axis, ParameterSpec whole, int dim, int rank, int parts);

/// Which elements of the named tensor lie from element `begin` of this rank's part on.
BoxElements elements_of(const ParameterSpec& spec, int64_t begin);

/// Element types of a parameter's forms. f32: all f32; bf16: {bf16, f32, f32, f32}, and without
/// master weights {bf16, bf16, f32, f32}; f64: all f64.
struct PrecisionPolicy {
  DType compute = DType::f32;  ///< weights and activations in the step
  DType master = DType::f32;   ///< weights in the optimizer
  DType grad = DType::f32;     ///< accumulated and reduced gradients; bf16: rounded after each micro-batch
  DType state = DType::f32;    ///< moments, between updates
  /// The weights of the optimizer are others than those of the step.
  bool has_master() const { return compute != master; }
  /// What updates compute in.
  DType wide() const { return compute == DType::f64 ? DType::f64 : DType::f32; }
};

}  // namespace ltrain
