// Measures this machine: every op of small reference models at several sizes, and collectives between processes.
#pragma once
#include <functional>
#include <string>

#include "runtime/plan/machine_profile.h"

namespace ltrain {

class Job;

/// Times ops on ranks of `threads` threads, with as many ranks at once as the cores hold. `say` gets a line a model.
RankProfile bench_rank(int threads, int cores, const std::function<void(const std::string&)>& say);

/// On each rank of a job: times collectives; the samples on every rank.
std::vector<CollectiveSample> bench_collectives(Job& job);

/// Resident memory of a rank that has joined a job and run a step, without its arena and planned scratch.
int64_t bench_process_bytes();

/// One line of /proc/self/status in bytes: "VmRSS", "VmHWM".
int64_t process_memory(const char* field);

}  // namespace ltrain
