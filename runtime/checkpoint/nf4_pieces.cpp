#include "runtime/checkpoint/nf4_pieces.h"

#include "base/error.h"
#include "base/exit_codes.h"
#include "kernels/matmul/nf4.h"

namespace ltrain {
namespace {

/// The slice of weights of which `s` is the slice of codes or magnitudes, each for `each` weights. Sizes of a
/// manifest are at most 2^62.
Slice of_weights(Slice s, int64_t each) {
  const int last = s.global.rank - 1;
  for (int64_t* n : {&s.global.dims[last], &s.offset.dims[last], &s.extent.dims[last], &s.begin, &s.end})
    *n *= each;
  return s;
}

}  // namespace

std::map<std::string, TensorParts> join_nf4(std::map<std::string, TensorParts> tensors,
                                            const std::string& path) {
  constexpr int64_t kMost = int64_t{1} << 55;  // elements of a tensor, so that no product overflows
  for (auto& [name, codes] : tensors) {
    if (codes.dtype != DType::u8) continue;
    const auto absmax = tensors.find(name + kNf4Absmax);
    if (absmax == tensors.end()) continue;
    const auto refuse = [&, name = name](const std::string& why) {
      fail(ExitCode::storage, "{}: {} and {}{} are not a matrix in NF4: {}", path, name, name, kNf4Absmax,
           why);
    };
    const TensorParts& scales = absmax->second;
    if (scales.dtype != DType::f32 || codes.shape.rank != 2 || scales.shape.rank != 2)
      refuse(fmt::format("expected two matrices of u8 and f32, got {} {} and {} {}", dtype_name(codes.dtype),
                         to_string(codes.shape), dtype_name(scales.dtype), to_string(scales.shape)));
    if (codes.shape.elements() > kMost || scales.shape.elements() > kMost ||
        codes.pieces.size() != scales.pieces.size())
      refuse(fmt::format("expected at most {} codes in as many pieces as magnitudes, got {} in {} and {}",
                         kMost, codes.shape.elements(), codes.pieces.size(), scales.pieces.size()));
    for (size_t i = 0; i < codes.pieces.size(); ++i) {
      Piece& piece = codes.pieces[i];
      const Piece& of = scales.pieces[i];
      piece.slice = of_weights(piece.slice, kNf4Pair);
      if (!(piece.slice == of_weights(of.slice, kNf4Block)))
        refuse(fmt::format("piece {} has {}, and its magnitudes are of {}", i, to_string(piece.slice),
                           to_string(of_weights(of.slice, kNf4Block))));
      piece.order.kind = FileOrder::nf4;
      piece.order.scales = of.key;
      piece.order.scales_file = of.file;
    }
    codes.dtype = DType::f32;
    codes.shape.dims[1] *= kNf4Pair;
    tensors.erase(absmax);
  }
  return tensors;
}

bool is_nf4(const TensorParts& tensor) {
  return !tensor.pieces.empty() && tensor.pieces.front().order.kind == FileOrder::nf4;
}

}  // namespace ltrain
