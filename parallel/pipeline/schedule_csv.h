// Schedule files as torch.distributed.pipelining reads and writes them: one line a rank, one cell an action,
// such as 0F0, 1B3, 2I0, 2W0 (stage, kind, micro-batch); an empty cell is a step without an action.
//
// Read as well: pairs that PyTorch overlaps, (0F4;7B1)OVERLAP_F_B, which run here one after the other. Passed
// over, with a note: SEND_F, RECV_F, SEND_B, RECV_B, UNSHARD, RESHARD and REDUCE_GRAD. The same tensors are
// sent here, and when follows from the order of the computation; sharding is parallel.zero_stage's.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "parallel/pipeline/schedule.h"

namespace ltrain::pipeline {

/// Ranks, chunks, micro-batches and the place of each stage follow from the cells. Throws Error (usage) with
/// "SOURCE:LINE: cell 3, 0X1: ..." for what is not a schedule, and check()'s error for one that cannot run.
Schedule read_schedule_csv(std::string_view text, const std::string& source,
                           std::vector<std::string>* notes = nullptr);

/// For PyTorch too: lines end in a line feed, actions only, without empty cells.
std::string write_schedule_csv(const Schedule& schedule);

}  // namespace ltrain::pipeline
