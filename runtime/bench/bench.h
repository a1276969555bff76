// Measures this machine: every op of reference models at several sizes, on the CPU or a GPU, and collectives
// between processes.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "kernels/attention/attention.h"
#include "runtime/machines/machine_profile.h"
#include "runtime/program/train_program.h"

namespace ltrain {

class Job;

/// A model of one layer whose ops are timed.
struct BenchModel {
  std::string name;
  ProgramOptions options;
};
BenchModel bench_model(const std::string& name, const char* architecture, int64_t hidden, int64_t inner,
                       int64_t heads, int64_t vocab, int64_t batch, int64_t seq);

/// Times ops on ranks of `threads` threads, with as many ranks at once as the cores hold. `say` gets a line a
/// model.
RankProfile bench_rank(int threads, int cores, const std::function<void(const std::string&)>& say);

/// Times the blocks of attention that context parallelism makes of such sequences in each of `types`, on
/// `threads` threads of the CPU, or on the GPU that this thread uses; `beside` more do the same at once.
void bench_attention_blocks(DeviceKind device, int threads, int beside,
                            const std::vector<AttentionShape>& shapes, const std::vector<DType>& types,
                            RankProfile& profile);

/// The profile of the GPU that this thread uses: its ops timed on it in `precisions` (values of the recipe's
/// key); links between cards as in its datasheet. Without `models`: the sizes that people train; one that
/// does not fit is left out, and `say` gets a line. `blocks`: of context parallelism's attention; without
/// them two that people train.
MachineProfile bench_card(const std::function<void(const std::string&)>& say,
                          const std::vector<std::string>& precisions, std::vector<BenchModel> models = {},
                          std::vector<AttentionShape> blocks = {});

/// Fills the rates of files in `folder`, as offload.* writes and reads them: half a GiB each way.
void bench_disk(MachineProfile& profile, const std::string& folder);

/// On each rank of a job: times collectives; the samples on every rank.
std::vector<CollectiveSample> bench_collectives(Job& job);

}  // namespace ltrain
