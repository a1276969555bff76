// Measurements of this machine: every op of reference models at several sizes, on the CPU or a GPU, and
// collectives between processes.
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

/// Times ops on ranks of `threads` threads, with as many concurrent ranks as fit on the cores. Calls `say`
/// with one line per model.
RankProfile bench_rank(int threads, int cores, const std::function<void(const std::string&)>& say);

/// Times context parallelism's attention blocks for these sequences in each of `types`, on `threads` CPU
/// threads or on the GPU that this thread uses. `beside`: number of other ranks that do the same at once.
void bench_attention_blocks(DeviceKind device, int threads, int beside,
                            const std::vector<AttentionShape>& shapes, const std::vector<DType>& types,
                            RankProfile& profile);

/// Profile of the GPU that this thread uses, with ops timed in `precisions` (values of the recipe's key).
/// Links between cards are those of its datasheet. `models`: default: common training sizes; one that does
/// not fit is skipped with a line to `say`. `blocks`: attention blocks of context parallelism; default: two
/// common sizes.
MachineProfile bench_card(const std::function<void(const std::string&)>& say,
                          const std::vector<std::string>& precisions, std::vector<BenchModel> models = {},
                          std::vector<AttentionShape> blocks = {});

/// Measures the file rates of `folder` with the I/O of offload.*: half a GiB in each direction.
void bench_disk(MachineProfile& profile, const std::string& folder);

/// Measures the rate at which this thread's cores read and write memory in AdamW, for updates on the host.
void bench_host_memory(MachineProfile& profile, int64_t elements = int64_t{1} << 26);

/// Measures MachineProfile::sparse_matmul_speedup on one thread: y = x W^T, dx = dy W and dW = dy^T x, each
/// beside the dense matmul of the same values, with `size` channels and half as many rows. Matmuls of the
/// default take a millisecond, which other work on the machine seldom interrupts.
void bench_sparse_matmul(MachineProfile& profile, int64_t size = 512);

/// Times collectives. Called on each rank of a job; returns the samples on every rank.
std::vector<CollectiveSample> bench_collectives(Job& job);

}  // namespace ltrain
