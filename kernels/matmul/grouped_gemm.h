// Products of groups of rows in one launch, on a GPU's tensor cores: what grouped_matmul.h does there with
// two-byte types. Each element of the result is summed by one block in a fixed order, whatever the groups.
#pragma once
#include <string>
#include <string_view>

#include "kernels/matmul/grouped_matmul.h"
#include "kernels/meta/placement_rules.h"

namespace ltrain {

/// Groups of one launch: as many as its parameters hold.
inline constexpr int64_t kGroupsALaunch = 256;

enum class GroupedGemm : uint8_t {
  each,   ///< no kernel of all groups: a product for each
  mma,    ///< tensor cores of any card since A100 (grouped_gemm_mma_cuda.cu)
  wgmma,  ///< those of Hopper, as Hopper wants them used (grouped_gemm_wgmma_cuda.cu)
};
std::string_view grouped_gemm_name(GroupedGemm kernel);

/// What the choice hangs on.
struct GroupedGemmTraits {
  DType type = DType::f32;
  int64_t n = 0, k = 0;  ///< rows and columns of a group's matrix
  int capability = 0;    ///< of the GPU: 90 for sm_90
  bool aligned = true;   ///< all operands begin at multiples of 16 bytes
};
/// Empty where the kernel can do it; else what stands against it.
std::string_view grouped_gemm_obstacle(GroupedGemm kernel, const GroupedGemmTraits& traits);
/// The fastest that can, or what LTRAIN_GROUPED_GEMM (each, mma, wgmma) asks for; fails where that one
/// cannot.
GroupedGemm choose_grouped_gemm(const GroupedGemmTraits& traits);
/// Whether LTRAIN_GROUPED_GEMM says which.
bool grouped_gemm_is_forced();

/// The operands of a product of `kind`, as grouped_matmul.h names them: forward y = x w^T, input_gradient
/// dx = dy w, weight_gradient dw = dy^T x. n, k: of the matrix of one group.
struct GroupedOperands {
  GroupedProduct kind;
  Tensor out, a, b;
  int64_t n, k;
  bool accumulate = false;
};
/// By `kernel`, mma or wgmma. Where wgmma is not to be used on this GPU (grouped_gemm_check.h), that is told
/// on stderr and mma is used (asked for by name, wgmma fails).
LT_CUDA_KERNEL(grouped_gemm, const GroupedOperands& o, const GroupRows& rows, GroupedGemm kernel)
LT_CUDA_KERNEL(grouped_gemm_mma, const GroupedOperands& o, const GroupRows& rows)
LT_CUDA_KERNEL(grouped_gemm_wgmma, const GroupedOperands& o, const GroupRows& rows)

/// Where the tiles of a launch's groups lie; a parameter of the kernels. Tiles are numbered through, group
/// after group, within a group first along the rows of the result.
struct GroupTable {
  int32_t groups = 0, tiles = 0;
  int32_t row[kGroupsALaunch], rows[kGroupsALaunch];
  int32_t first_tile[kGroupsALaunch];
  uint16_t group[kGroupsALaunch];
};

/// The tables of one product, one for each launch. A tile of the result has `tile_rows` x `tile_cols`
/// elements. Groups without rows have tiles where the product writes zeros for them. Where tiles of groups
/// take different times (weight_gradient), those of most rows come first.
std::vector<GroupTable> group_tables(const GroupedOperands& o, const GroupRows& rows, int64_t tile_rows,
                                     int64_t tile_cols);

}  // namespace ltrain
