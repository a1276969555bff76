// Grouped GEMM: matmuls of groups of rows in one launch, on a GPU's tensor cores. grouped_matmul.h uses it
// for 16-bit types. One block sums each element of the output in a fixed order, independent of the groups.
#pragma once
#include <string>
#include <string_view>

#include "kernels/matmul/grouped/grouped_matmul.h"
#include "kernels/meta/placement_rules.h"

namespace ltrain {

/// Most groups of one launch, limited by kernel parameters.
inline constexpr int64_t kGroupsALaunch = 256;

enum class GroupedGemm : uint8_t {
  each,   ///< one matmul for each group
  mma,    ///< tensor cores, A100 and later (grouped_gemm_mma_cuda.cu)
  wgmma,  ///< Hopper's tensor cores with wgmma and bulk copies (grouped_gemm_wgmma_cuda.cu)
};
std::string_view grouped_gemm_name(GroupedGemm kernel);

/// Inputs of the choice.
struct GroupedGemmTraits {
  DType type = DType::f32;
  int64_t n = 0, k = 0;  ///< rows and columns of a group's matrix
  int capability = 0;    ///< compute capability of the GPU: 90 for sm_90
  bool aligned = true;   ///< all operands begin at multiples of 16 bytes
};
/// Empty if the kernel supports the traits, else the reason why it does not.
std::string_view grouped_gemm_obstacle(GroupedGemm kernel, const GroupedGemmTraits& traits);
/// The fastest kernel that supports the traits, or the kernel that LTRAIN_GROUPED_GEMM (each, mma, wgmma)
/// names. Throws if that kernel does not support them.
GroupedGemm choose_grouped_gemm(const GroupedGemmTraits& traits);
/// True if LTRAIN_GROUPED_GEMM names a kernel.
bool grouped_gemm_is_forced();

/// Operands of a grouped matmul of `kind`, named as in grouped_matmul.h: forward y = x w^T, input_gradient dx
/// = dy w, weight_gradient dw = dy^T x. n, k: rows and columns of one group's matrix.
struct GroupedOperands {
  GroupedProduct kind;
  Tensor out, a, b;
  int64_t n, k;
  bool accumulate = false;
};
/// Runs `kernel`, mma or wgmma. If wgmma is unusable on this GPU (grouped_gemm_check.h), prints the reason on
/// stderr and runs mma; throws if LTRAIN_GROUPED_GEMM names wgmma.
LT_CUDA_KERNEL(grouped_gemm, const GroupedOperands& o, const GroupRows& rows, GroupedGemm kernel)
LT_CUDA_KERNEL(grouped_gemm_mma, const GroupedOperands& o, const GroupRows& rows)
LT_CUDA_KERNEL(grouped_gemm_wgmma, const GroupedOperands& o, const GroupRows& rows)

/// Tiles of the groups of a launch, a kernel parameter. Tiles are numbered group by group, and within a group
/// first along the rows of the output.
struct GroupTable {
  int32_t groups = 0, tiles = 0;
  int32_t row[kGroupsALaunch], rows[kGroupsALaunch];
  int32_t first_tile[kGroupsALaunch];
  uint16_t group[kGroupsALaunch];
};

/// Tables of one grouped matmul, one for each launch. An output tile has `tile_rows` x `tile_cols` elements.
/// Groups without rows have tiles only if zeros must be written for them. For weight_gradient, where the time
/// of a tile depends on its group's rows, groups with most rows come first.
std::vector<GroupTable> group_tables(const GroupedOperands& o, const GroupRows& rows, int64_t tile_rows,
                                     int64_t tile_cols);

}  // namespace ltrain
