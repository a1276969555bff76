// Whole training jobs on the CUDA device, against the CPU's. Where the device is emulated, several ranks
// share it through in-process groups, its memory is closed to the host, and its work runs as late as it may.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <numeric>

#include "kernels/elementwise/tensor_ops.h"
#include "kernels/storage/offload.h"
#include "kernels/tensor/device.h"
#include "tests/cuda/twin.h"
#include "tests/parity/parity.h"
#include "tests/support/temporary_folder.h"

#ifdef LTRAIN_CUDA_EMULATED
#include "kernels/cuda/emulation_cuda.h"
#endif

using namespace ltrain;
using namespace ltrain::test;

namespace {

/// Small enough for fibres, with all that a step has: accumulation, clipping, odd sizes.
TinyOptions small_job(const std::string& architecture, const std::string& precision) {
  TinyOptions o;
  o.architecture = architecture;
  o.precision = precision;
  o.hidden = 16, o.heads = 2, o.intermediate = 24, o.vocab = 37, o.seq = 10;
  o.kv_heads = architecture == "gpt2" ? 2 : 1;
  o.global_batch = 4, o.micro_batch = 2, o.steps = 2;
  o.padded_targets = true;
  return o;
}

TinyOptions on_cuda(TinyOptions o) {
  o.device = DeviceKind::cuda;
  return o;
}

void require_exact_memory(const TinyResult& r) {
  CHECK(r.used_bytes == r.plan_bytes);
  CHECK(r.used_host == r.plan_host);
  CHECK(r.used_host[0] > 0);
}

double cosine(const std::vector<double>& a, const std::vector<double>& b) {
  const auto dot = [](const auto& x, const auto& y) {
    return std::inner_product(x.begin(), x.end(), y.begin(), 0.0);
  };
  return dot(a, b) / std::sqrt(dot(a, a) * dot(b, b));
}

/// Losses and the gradients of the first step, within what 16-bit types round.
void require_close_training(const TinyResult& cpu, const TinyResult& cuda) {
  for (size_t i = 0; i < cpu.losses.size(); ++i) CHECK(std::abs(cuda.losses[i] / cpu.losses[i] - 1) < 2e-3);
  double largest = 0;
  for (const auto& [name, values] : cpu.gradients)
    for (double v : values) largest = std::max(largest, std::abs(v));
  for (const auto& [name, values] : cpu.gradients) {
    CAPTURE(name);
    const double most = std::abs(*std::max_element(
        values.begin(), values.end(), [](double a, double b) { return std::abs(a) < std::abs(b); }));
    if (most > 1e-3 * largest) CHECK(cosine(values, cuda.gradients.at(name)) > 0.999);
  }
}

}  // namespace

TEST_CASE("a step has one launch of AdamW, as planned, however many buckets a rank has") {
  if (!have_cuda()) return;
  const auto launches = [](const std::vector<std::string>& ops) {
    return std::count_if(ops.begin(), ops.end(),
                         [](const std::string& op) { return op.ends_with(": adamw"); });
  };
  TinyOptions o = on_cuda(small_job("llama", "bf16"));
  o.timeline = true;
  o.bucket_elements = 1;  // a bucket for each unit
  const TinyResult many = train_tiny(o);
  CHECK(launches(many.plan_ops[0]) == 1);
  CHECK(launches(many.used_ops[0]) == 1);
  CHECK(many.used_bytes == many.plan_bytes);
  // Sums of squares go bucket by bucket: of other buckets the norm may have another last bit.
  o.bucket_elements = 1 << 20;
  const TinyResult few = train_tiny(o);
  CHECK(few.losses == many.losses);
  for (size_t i = 0; i < many.norms.size(); ++i) CHECK(std::abs(few.norms[i] / many.norms[i] - 1) < 1e-14);
  // Windows of states that come and go are updated one by one.
  o.bucket_elements = 1;
  o.offload = {0.5, 96};
  const TinyResult windows = train_tiny(o);
  CHECK(launches(windows.used_ops[0]) > 3);
  CHECK(windows.losses == many.losses);
}

TEST_CASE("8-bit AdamW on cuda: one launch a step, exact memory, losses of the CPU's") {
  if (!have_cuda()) return;
  TinyOptions o = small_job("llama", "fp32");
  o.optimizer.rule = UpdateRule::adamw8bit;
  o.timeline = true;
  o.bucket_elements = 1;  // a bucket for each unit
  o.ema_decay = 0.5;
  o.steps = 3;
  const TinyResult cpu = train_tiny(o), cuda = train_tiny(on_cuda(o));
  require_exact_memory(cuda);
  CHECK(cuda.used_bytes == cpu.used_bytes);
  for (const auto& ops : {cuda.plan_ops[0], cuda.used_ops[0]})
    CHECK(std::count_if(ops.begin(), ops.end(),
                        [](const std::string& op) { return op.ends_with(": adamw_8bit"); }) == 1);
  const auto close = [](const TinyResult& a, const TinyResult& b) {
    for (size_t i = 0; i < a.losses.size(); ++i) CHECK(std::abs(a.losses[i] / b.losses[i] - 1) < 1e-5);
    CHECK(worst_relative(a.averages, b.averages) < 3e-2);  // a code may be the next one
  };
  close(cpu, cuda);
  TinyOptions plain = o;
  plain.optimizer.rule = UpdateRule::adamw;
  CHECK(std::abs(train_tiny(plain).losses[2] / cuda.losses[2] - 1) > 4e-5);  // a comparison that can fail
  if (!kSeveralRanks) return;
  o.ranks = 2, o.micro_batch = 1;
  for (const int stage : {1, 3}) {
    o.zero_stage = stage;
    const TinyResult several = train_tiny(on_cuda(o));
    close(train_tiny(o), several);
    require_exact_memory(several);
  }
}

TEST_CASE("training on cuda equals the CPU: losses, norms, gradients, parameters in fp64") {
  if (!have_cuda()) return;
  for (const std::string architecture : {"llama", "gpt2", "gemma2", "gemma3_text", "deepseek_v2"})
    for (bool more : {false, true}) {
      CAPTURE(architecture, more);
      TinyOptions o = small_job(architecture, "fp64");
      o.packed = more;
      o.dropout = more ? 0.2 : 0;
      if (!more) o.micro_batch = 1;  // more micro-batches than slots of the staging memory
      const TinyResult cpu = train_tiny(o), cuda = train_tiny(on_cuda(o));
      require_parity(cpu, cuda, 1e-11);
      require_exact_memory(cuda);
      CHECK(cuda.used_bytes == cpu.used_bytes);  // one plan for both
      o.dropout = 0.25;
      CHECK(std::abs(train_tiny(o).losses[0] - cuda.losses[0]) > 1e-5);  // a comparison that can fail
    }
}

TEST_CASE("training on cuda in fp32, bf16 and fp16, within what they round") {
  if (!have_cuda()) return;
  for (const std::string architecture : {"llama", "gpt2", "gemma2", "gemma3_text", "deepseek_v2"}) {
    CAPTURE(architecture);
    TinyOptions o = small_job(architecture, "fp32");
    // With 0.1 the second step of gemma3_text hangs on elements whose gradient is rounding alone: the CPU's
    // own two instruction sets differ by 3e-4 of the norm there, and both by 8e-4 from fp64.
    o.dropout = 0.15;
    require_parity(train_tiny(o), train_tiny(on_cuda(o)), 1e-5);
    for (const std::string precision : {"bf16", "fp16"}) {
      CAPTURE(precision);
      o.precision = precision;
      o.loss_scale.initial = 1024;
      const TinyResult cpu = train_tiny(o), cuda = train_tiny(on_cuda(o));
      require_exact_memory(cuda);
      CHECK(cuda.loss_scales == cpu.loss_scales);
      require_close_training(cpu, cuda);
    }
  }
}

TEST_CASE("MoE models on cuda equal the CPU, however they choose and balance") {
  if (!have_cuda()) return;
  TinyOptions o = small_job("mixtral", "fp64");
  o.moe.num_experts = 4;
  o.steps = 3;
  SECTION("Switch, with noise") {
    o.moe.top_k = 1, o.moe.norm_topk_prob = false, o.moe.jitter_eps = 0.2,
    o.moe.balance = BalanceLoss::switch_loss;
  }
  SECTION("GShard's random second expert, with a capacity") {
    o.moe.selection = Selection::gshard_top2, o.moe.capacity_factor = 1.0,
    o.moe.drop_policy = Drop::later_choice;
  }
  SECTION("top-p") { o.moe.selection = Selection::top_p, o.moe.top_p = 0.4, o.moe.norm_topk_prob = false; }
  SECTION("zero experts with a bias, and the entropy of scores") {
    o.moe.zero_experts = 2, o.moe.bias_update_rate = 0.1, o.moe.experts_per_token = 1.25,
    o.moe.entropy_coeff = 0.1;
  }
  SECTION("a bias, groups and sigmoid scores; routers that warm up") {
    o.moe.score = RouterScore::sigmoid, o.moe.n_group = o.moe.topk_group = 2, o.moe.bias_update_rate = 0.1;
    o.optimizer.router_warmup = 1;
  }
  SECTION("adapters of experts") {
    o.lora.rank = 2;
    o.lora.target_modules = {"q_proj", "*.experts.*"};
    o.lora.dropout = 0.2;
  }
  SECTION("expert choice, frozen routers") {
    o.moe.selection = Selection::expert_choice, o.moe.norm_topk_prob = false;
    o.optimizer.freeze_routers = true;
  }
  const TinyResult cpu = train_tiny(o), cuda = train_tiny(on_cuda(o));
  require_parity(cpu, cuda, 1e-11);
  require_exact_memory(cuda);
  for (size_t i = 0; i < cpu.experts.size(); ++i) CHECK(cpu.experts[i].chosen == cuda.experts[i].chosen);
  if (!kSeveralRanks) return;
  TinyOptions many = on_cuda(o);
  many.ranks = many.expert = 2, many.zero_stage = 1;
  many.micro_batch = o.micro_batch / 2;
  if (o.moe.selection == Selection::expert_choice || o.moe.capacity_factor) return;  // tokens of a rank
  require_parity(cpu, train_tiny(many), 1e-11);
}

TEST_CASE(
    "MoE models on cuda in bf16 and fp16: products of each kernel, within what they round, exact memory") {
  if (!have_cuda()) return;
  TinyOptions o = small_job("mixtral", "bf16");
  o.moe.num_experts = 4;
  o.loss_scale.initial = 1024;
  o.layers = o.steps = 1, o.micro_batch = o.global_batch;  // fibres are slow with whole tiles
  for (const std::string precision : {"bf16", "fp16"}) {
    o.precision = precision;
    const TinyResult cpu = train_tiny(o);
    for (const char* kernel : {"each", "mma", ""}) {  // at last the fastest that can
      CAPTURE(precision, kernel);
      ::setenv("LTRAIN_GROUPED_GEMM", kernel, 1);
      const TinyResult cuda = train_tiny(on_cuda(o));
      ::unsetenv("LTRAIN_GROUPED_GEMM");
      require_close_training(cpu, cuda);
      require_exact_memory(cuda);
    }
    TinyOptions adapted = o;
    adapted.lora.rank = 16;
    adapted.lora.target_modules = {"*.experts.*"};
    adapted.lora.dropout = 0.2;
    const TinyResult on_host = train_tiny(adapted), adapters = train_tiny(on_cuda(adapted));
    require_close_training(on_host, adapters);
    require_exact_memory(adapters);
    if (!kSeveralRanks) continue;
    TinyOptions many = on_cuda(o);
    many.ranks = many.expert = 2, many.zero_stage = 1;
    many.micro_batch = o.micro_batch / 2;
    const TinyResult r = train_tiny(many);
    require_close_training(cpu, r);
    require_exact_memory(r);
  }
}

TEST_CASE("every axis and stage of ZeRO on cuda equals one CPU process") {
  if (!have_cuda()) return;
  if (!kSeveralRanks) return skip_test("several ranks on one GPU need NCCL");
  TinyOptions o = small_job("llama", "fp64");
  o.micro_batch = 1;
  o.kv_heads = 2;
  o.seq = 8;
  const TinyResult cpu = train_tiny(o);
  const auto check = [&](const char* what, auto change) {
    CAPTURE(what);
    TinyOptions many = on_cuda(o);
    change(many);
    const TinyResult r = train_tiny(many);
    require_parity(cpu, r, 1e-11);
    require_exact_memory(r);
    CHECK(r.used_wire == r.plan_wire);
  };
  check("data", [](TinyOptions& m) { m.ranks = 2; });
  check("NCCL: data", [](TinyOptions& m) { m.ranks = 2, m.nccl = true; });
  check("NCCL: ZeRO-3, tensor, pipeline", [](TinyOptions& m) {
    m.ranks = m.tensor = m.pipeline = 2, m.zero_stage = 3, m.sequence_parallel = true, m.nccl = true;
  });
  for (int stage : {1, 2, 3}) check("ZeRO", [&](TinyOptions& m) { m.ranks = 2, m.zero_stage = stage; });
  check("two levels", [](TinyOptions& m) { m.ranks = 4, m.shard = 2, m.zero_stage = 1; });
  check("tensor", [](TinyOptions& m) { m.tensor = 2, m.sequence_parallel = true; });
  check("tensor, 2d", [](TinyOptions& m) { m.tensor = 4, m.tensor_mode = "2d", m.micro_batch = 2; });
  check("pipeline", [](TinyOptions& m) { m.pipeline = 2; });
  check("pipeline, zero bubble", [](TinyOptions& m) { m.pipeline = 2, m.schedule = "zb-h1"; });
  check("context", [](TinyOptions& m) { m.context = 2; });
  check("context, all to all", [](TinyOptions& m) { m.context = 2, m.context_comm = "a2a"; });
}

TEST_CASE("pairs of a pipeline's schedule on cuda equal one CPU process, over NCCL too") {
  if (!have_cuda()) return;
  if (!kSeveralRanks) return skip_test("several ranks on one GPU need NCCL");
  TinyOptions o = small_job("llama", "fp64");
  o.micro_batch = 1, o.kv_heads = 2, o.seq = 8, o.layers = 4;
  const TinyResult cpu = train_tiny(o);
  for (const bool nccl : {false, true}) {
    CAPTURE(nccl);
    TinyOptions many = on_cuda(o);
    many.ranks = 1, many.tensor = many.pipeline = many.chunks = 2, many.sequence_parallel = true;
    many.schedule = "dualpipev", many.interleaved = true, many.nccl = nccl;
    const TinyResult r = train_tiny(many);
    require_parity(cpu, r, 1e-11);
    require_exact_memory(r);
    CHECK(r.used_wire == r.plan_wire);
  }
}

#ifdef LTRAIN_CUDA_EMULATED
TEST_CASE("the host waits once for each layer of experts and micro-batch, on one rank and on several") {
  TinyOptions o = on_cuda(small_job("mixtral", "fp64"));
  o.moe.num_experts = 4;
  o.micro_batch = 1, o.read_gradients = false;
  for (const int ranks : {1, 2}) {
    CAPTURE(ranks);
    o.ranks = o.expert = ranks;
    const auto waits_of_a_step = [&](int64_t layers) {
      const auto waits = [&](int64_t steps) {
        TinyOptions job = o;
        job.layers = layers, job.steps = steps;
        cuda::emulated_traffic.clear();
        train_tiny(job);
        return cuda::emulated_traffic.waits.load();
      };
      return waits(2) - waits(1);
    };
    CHECK(waits_of_a_step(3) - waits_of_a_step(2) == o.global_batch / o.micro_batch);  // sum over all ranks
  }
}

namespace {

/// Text on stderr of a child that runs `body`, and the signal that ends it.
std::pair<std::string, int> in_child(const std::function<void()>& body) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(ends[1], 2);
    body();
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string said;
  char buffer[4096];
  for (ssize_t n; (n = ::read(ends[0], buffer, sizeof buffer)) > 0;)
    said.append(buffer, static_cast<size_t>(n));
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  return {said, WIFSIGNALED(status) ? WTERMSIG(status) : 0};
}

}  // namespace

TEST_CASE("host code that touches the emulated device's memory is named and ends the process") {
  const auto memory = device_memory(DeviceKind::cuda, 4096);
  auto* at = static_cast<volatile int*>(memory.get());
  const auto [read, read_signal] = in_child([&] { (void)at[7]; });
  CHECK(read.find("HOST CODE TOUCHED DEVICE MEMORY") != std::string::npos);
  CHECK(read_signal == SIGSEGV);
  const auto [write, write_signal] = in_child([&] { at[0] = 1; });
  CHECK(write.find("HOST CODE TOUCHED DEVICE MEMORY") != std::string::npos);
  CHECK(write_signal == SIGSEGV);
  // A copy may, and it is closed again after it.
  const auto stream = make_compute_stream(DeviceKind::cuda, "compute");
  const int value = 41;
  int back = 0;
  stream->copy(memory.get(), &value, 4);
  stream->copy(&back, memory.get(), 4);
  stream->synchronize();
  CHECK(back == 41);
  CHECK(in_child([&] { (void)at[0]; }).second == SIGSEGV);
}

TEST_CASE("the emulated device works as late as it may") {
  const auto stream = make_compute_stream(DeviceKind::cuda, "compute"),
             other = make_side_stream(DeviceKind::cuda, "comm");
  const auto memory = device_memory(DeviceKind::cuda, 4);
  int value = 1, back = 0;
  stream->copy(memory.get(), &value, 4);
  const Event copied = stream->record();
  value = 2;  // too early: nobody has waited
  stream->copy(&back, memory.get(), 4);
  CHECK(back == 0);  // not yet
  stream->synchronize();
  CHECK(back == 2);
  value = 3;
  stream->copy(memory.get(), &value, 4);
  other->wait(stream->record());
  int elsewhere = 0;
  other->copy(&elsewhere, memory.get(), 4);
  other->synchronize();  // pulls what it waits for
  CHECK(elsewhere == 3);
}
#endif

TEST_CASE("offloaded states, moments of bf16, stochastic rounding and averages on cuda equal the CPU's") {
  if (!have_cuda()) return;
  TinyOptions o = small_job("llama", "fp64");
  o.offload = {0.7, 96};
  o.ema_decay = 0.5;
  const TinyResult resident = [&] {
    TinyOptions r = on_cuda(o);
    r.offload = {};
    return train_tiny(r);
  }();
  const TinyResult cuda = train_tiny(on_cuda(o)), cpu = train_tiny(o);
  require_parity(cpu, cuda, 1e-11);
  CHECK(cuda.parameters == resident.parameters);
  CHECK(cuda.eval_loss == resident.eval_loss);
  CHECK(worst_relative(cpu.averages, cuda.averages) < 1e-10);
  require_exact_memory(cuda);
  CHECK(cuda.offload_bytes[0] > 0);
  o = small_job("llama", "bf16");
  o.bf16_states = true;
  o.master_weights = false;
  o.offload = {0.5, 96};
  const TinyResult host = train_tiny(o), device = train_tiny(on_cuda(o));
  require_exact_memory(device);
  for (size_t i = 0; i < host.losses.size(); ++i)
    CHECK(std::abs(device.losses[i] / host.losses[i] - 1) < 1e-2);
}

TEST_CASE("training on cuda with compressed all-reduce and with Sophia") {
  if (!have_cuda()) return;
  for (const auto& [rule, estimator] : {std::pair{UpdateRule::onebit_adam, HessianEstimator::gauss_newton},
                                        {UpdateRule::onebit_lamb, HessianEstimator::gauss_newton},
                                        {UpdateRule::adamw, HessianEstimator::gauss_newton},
                                        {UpdateRule::sophia, HessianEstimator::gauss_newton},
                                        {UpdateRule::sophia, HessianEstimator::hutchinson}}) {
    CAPTURE(update_rule_name(rule), static_cast<int>(estimator));
    TinyOptions o = small_job("llama", "fp64");
    o.optimizer.rule = rule;
    o.optimizer.hessian_estimator = estimator;
    o.optimizer.freeze_step = 1;
    o.optimizer.hessian_interval = 2;
    if (rule == UpdateRule::adamw) o.reduce_code = Code::int8;
    o.ranks = kSeveralRanks ? 2 : 1;
    o.micro_batch = 1;
    o.steps = 3;
    const TinyResult cpu = train_tiny(o), cuda = train_tiny(on_cuda(o));
    require_exact_memory(cuda);
    CHECK(cuda.plan_wire == cuda.used_wire);
    for (size_t i = 0; i < cpu.losses.size(); ++i)
      CHECK(std::abs(cpu.losses[i] - cuda.losses[i]) <= 1e-6 * cpu.losses[i]);
    o.optimizer.rule = UpdateRule::lion;
    o.reduce_code.reset();
    CHECK(std::abs(train_tiny(o).losses[2] - cuda.losses[2]) > 1e-5);  // a comparison that can fail
  }
}

TEST_CASE("activations that leave through pinned memory of the host give the bits of those that stay") {
  if (!have_cuda()) return;
  for (const char* architecture : {"llama", "gpt2"}) {
    TinyOptions o = on_cuda(small_job(architecture, "fp64"));
    o.layers = 4;
    const TinyResult resident = train_tiny(o);
    o.activations.fraction = 1;
    o.activations.input = true;
    for (int i = 0; i < kBlockTensors; ++i) o.activations.tensors.add(static_cast<BlockTensor>(i));
    o.recompute.tensors.add(BlockTensor::mlp_norm);
    const TinyResult away = train_tiny(o);
    CHECK(away.losses == resident.losses);
    CHECK(away.parameters == resident.parameters);
    require_exact_memory(away);
    CHECK(away.plan_offloaded == away.used_offloaded);
    CHECK(away.used_offloaded[0].activations > 0);
    CHECK(away.used_bytes[0] < resident.used_bytes[0]);
  }
}

TEST_CASE("weights that leave through pinned memory of the host give the bits of those that stay") {
  if (!have_cuda()) return;
  TinyOptions o = on_cuda(small_job("llama", "fp32"));
  o.zero_stage = 3;
  o.ema_decay = 0.5;
  const TinyResult resident = train_tiny(o);
  o.late_start = true;  // nothing may be fetched before it was written
  for (double states : {0.0, 0.6}) {
    o.offload = {states, 96, 1.0};
    const TinyResult away = train_tiny(o);
    check_same_bits(resident, away);
    CHECK(away.averages == resident.averages);
    require_exact_memory(away);
    CHECK(away.plan_offloaded == away.used_offloaded);
    CHECK(away.used_offloaded[0].params > 0);
  }
}

TEST_CASE("what leaves a GPU for files gives the bits of what stays, and of pinned memory") {
  if (!have_cuda()) return;
  for (const std::string io : {"auto", "pread"}) {
    CAPTURE(io);
    setenv("LTRAIN_IO", io.c_str(), 1);
    TinyOptions o = on_cuda(small_job("llama", "bf16"));
    o.late_start = true;
    o.layers = 3;
    o.zero_stage = 3;
    o.ema_decay = 0.5;
    const TinyResult resident = train_tiny(o);
    o.offload = {0.6, 96, 1.0};
    o.activations.fraction = 1;
    o.activations.input = true;
    for (int i = 0; i < kBlockTensors; ++i) o.activations.tensors.add(static_cast<BlockTensor>(i));
    for (const bool files : {false, true}) {
      o.offload_to_files = files;
      const TinyResult away = train_tiny(o);
      check_same_bits(resident, away);
      CHECK(away.averages == resident.averages);
      require_exact_memory(away);
      CHECK(away.plan_offloaded == away.used_offloaded);
      CHECK(away.used_offloaded[0].optimizer > 0);
      CHECK(away.used_offloaded[0].params > 0);
      CHECK(away.used_offloaded[0].activations > 0);
    }
    // Without masters the average changes places with the weights themselves, in views of what is away.
    o.master_weights = false;
    o.bf16_states = true;
    o.offload_to_files = true;
    const TinyResult away = train_tiny(o);
    o.offload = {}, o.activations = {};
    check_same_bits(train_tiny(o), away);
  }
  unsetenv("LTRAIN_IO");
}

TEST_CASE("updates of the host's cores give the bits of the GPU's, in every type and under each ZeRO stage") {
  if (!have_cuda()) return;
  const auto train = [](TinyOptions o, double fraction, bool host) {
    o.offload = {.fraction = fraction, .window = 96, .host_update = host};
    const TinyResult r = train_tiny(o);
    require_exact_memory(r);
    CHECK(r.plan_offloaded == r.used_offloaded);
    return r;
  };
  for (const std::string precision : {"fp64", "fp32", "bf16", "bf16 alone"})
    for (const UpdateRule rule : {UpdateRule::adamw, UpdateRule::adam, UpdateRule::sgd, UpdateRule::lion}) {
      CAPTURE(precision, update_rule_name(rule));
      if (rule != UpdateRule::adamw && (precision == "fp64" || precision == "bf16")) continue;  // for time
      TinyOptions o = on_cuda(small_job("llama", precision.substr(0, 4)));
      o.late_start = rule == UpdateRule::adamw;  // nothing may be computed on before it has come
      o.optimizer.rule = rule;
      o.bf16_gradients = precision == "bf16";
      if (precision == "bf16 alone") o.master_weights = false, o.bf16_states = true;
      const TinyResult resident = train(o, 0, false), host = train(o, 1, true);
      check_same_bits(resident, host);
      if (rule != UpdateRule::adamw) continue;
      check_same_bits(resident, train(o, 0.6, true));
      const TinyResult device = train(o, 1, false);
      CHECK(host.offload_bytes[0] > device.offload_bytes[0]);  // two windows
      CHECK(host.used_bytes[0] < device.used_bytes[0]);        // no ring of states
    }
  for (int stage = 1; kSeveralRanks && stage <= 3; ++stage) {
    CAPTURE(stage);
    TinyOptions o = on_cuda(small_job("llama", "bf16"));
    o.ranks = 2, o.micro_batch = 1, o.zero_stage = stage;
    check_same_bits(train(o, 0, false), train(o, 1, true));
  }
}

#ifdef LTRAIN_CUDA_EMULATED
TEST_CASE("transfers between an emulated GPU and a file: as late as they may be, and in order") {
  const TemporaryFolder folder;
  const auto m = make_file_memory(DeviceKind::cuda, folder.path(), {"offload.test", "numbers"});
  const auto compute = cuda::make_cuda_stream("compute");
  const int64_t n = (int64_t{5} << 20) + 17;  // several slots, and a part of a block
  m->reserve(4 * (n + kOffloadBlock));
  const auto memory = cuda::device_memory(n);
  Tensor t;
  t.data = memory.get(), t.dtype = DType::u8, t.shape = {n}, t.device = DeviceKind::cuda;
  const auto offset = [&](int i) { return i * (n + kOffloadBlock) / kOffloadBlock * kOffloadBlock; };
  std::vector<std::vector<uint8_t>> sent, came;
  for (int i = 0; i < 3; ++i) {
    sent.emplace_back(static_cast<size_t>(n));
    for (size_t k = 0; k < sent.back().size(); ++k)
      sent.back()[k] = static_cast<uint8_t>(k * 31 + k / 4096 + 77 * static_cast<size_t>(i));
  }
  // The tensor is written again and again; each store has what was there when it was asked for.
  for (int i = 0; i < 3; ++i) {
    compute->wait(m->stream().record());
    compute->copy(t.data, sent[static_cast<size_t>(i)].data(), n);
    m->stream().wait(compute->record());
    m->store(t, offset(i));
  }
  for (const int i : {1, 2, 0}) {
    m->stream().wait(compute->record());
    m->fetch(t, offset(i));
    compute->wait(m->stream().record());
    came.emplace_back(static_cast<size_t>(n));
    compute->copy(came.back().data(), t.data, n);
  }
  compute->synchronize();
  CHECK((came[0] == sent[1]));
  CHECK((came[1] == sent[2]));
  CHECK((came[2] == sent[0]));
  // Kernels' views: written back when they are released.
  m->stream().synchronize();
  Tensor home = t;
  home.data = m->at(offset(1));
  home.shape = {4096};
  const Tensor view = m->view(*compute, home);
  CHECK(view.data != home.data);
  fill_zero(*compute, view);
  CHECK(static_cast<const uint8_t*>(home.data)[1] == sent[1][1]);
  m->release();
  CHECK(static_cast<const uint8_t*>(home.data)[1] == 0);
  CHECK(static_cast<const uint8_t*>(home.data)[4097] == sent[1][4097]);
  home.data = t.data;
  CHECK(m->view(*compute, home).data == t.data);  // not of this memory
}
#endif
