// Orders of the published schedules. Use make_schedule, which checks the rules first.
#pragma once
#include "parallel/pipeline/schedule.h"

namespace ltrain::pipeline {

/// Stage s on rank s % ranks: chunk c of rank r is stage c * ranks + r.
std::vector<int> placed_in_loops(int ranks, int chunks);
/// Two chunks for each rank, down the ranks and up again: rank r holds stages r and 2 * ranks - 1 - r.
std::vector<int> placed_in_v(int ranks);

using Order = std::vector<Action>;
Order gpipe_order(int rank, int micros);
Order one_f_one_b_order(int rank, int ranks, int micros);
/// Interleaved 1F1B, with pairs marked.
Order interleaved_order(int rank, int ranks, int chunks, int micros);
/// ZB-H1 and ZB-H2: `lead` forwards before the first backward, W `lag` micro-batches after I.
Order zero_bubble_order(int rank, int micros, int lead, int lag);
Order zbv_order(int rank, int ranks, int micros);
/// DualPipeV, with pairs marked.
Order dualpipev_order(int rank, int ranks, int micros);

}  // namespace ltrain::pipeline
