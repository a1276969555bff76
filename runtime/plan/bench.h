// Measures this machine: every op of small reference models at several sizes, and collectives between
// processes.
#pragma once
#include <functional>
#include <string>

#include "runtime/plan/machine_profile.h"

namespace ltrain {

class Job;

/// Times ops on ranks of `threads` threads, with as many ranks at once as the cores hold. `say` gets a line a
/// model.
RankProfile bench_rank(int threads, int cores, const std::function<void(const std::string&)>& say);

/// On each rank of a job: times collectives; the samples on every rank.
std::vector<CollectiveSample> bench_collectives(Job& job);

}  // namespace ltrain
