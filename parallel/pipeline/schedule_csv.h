// Schedule files in the format of torch.distributed.pipelining: one line for each rank, one cell for each
// action, such as 0F0, 1B3, 2I0, 2W0 (stage, kind, micro-batch); an empty cell is a step without an action.
//
// Reading also accepts pairs that PyTorch overlaps, (0F4;7B1)OVERLAP_F_B, which run here one after the other.
// It skips, with a note: SEND_F, RECV_F, SEND_B, RECV_B, UNSHARD, RESHARD and REDUCE_GRAD. The same tensors
// are sent here, at times that follow from the order of the computation; parallel.zero_stage sets sharding.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "parallel/pipeline/schedule.h"

namespace ltrain::pipeline {

/// Derives ranks, chunks, micro-batches and stage placement from the cells. Throws Error (usage) with
/// "SOURCE:LINE: cell 3, 0X1: ..." for invalid text, and check()'s error for a schedule that cannot run.
Schedule read_schedule_csv(std::string_view text, const std::string& source,
                           std::vector<std::string>* notes = nullptr);

/// Readable by PyTorch: lines end in a line feed, actions only, no empty cells.
std::string write_schedule_csv(const Schedule& schedule);

}  // namespace ltrain::pipeline
