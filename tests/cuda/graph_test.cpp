// Captured work: what a replay reads again, what cannot be recorded, and whole jobs that are bit for bit
// those without it.
#include <algorithm>
#include <chrono>
#include <thread>

#include "base/time_scale.h"
#include "kernels/elementwise/tensor_ops.h"
#include "kernels/loss/cross_entropy.h"
#include "parallel/nccl/communicator_nccl.h"
#include "tests/cuda/twin.h"
#include "tests/parity/parity.h"
#include "tests/support/fake_nccl.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

TinyOptions graph_job(const std::string& architecture, const std::string& precision) {
  TinyOptions o;
  o.architecture = architecture;
  o.precision = precision;
  o.hidden = 16, o.heads = 2, o.intermediate = 24, o.vocab = 37, o.seq = 10;
  o.kv_heads = architecture == "gpt2" ? 2 : 1;
  o.global_batch = 6, o.micro_batch = 2, o.steps = 4;
  o.padded_targets = true;  // another number of counted tokens in each step
  o.device = DeviceKind::cuda;
  return o;
}

#ifdef LTRAIN_CUDA_EMULATED
/// Its gathers take their time.
class LateGroup final : public Communicator {
 public:
  explicit LateGroup(std::unique_ptr<Communicator> inner)
      : Communicator(inner->rank(), inner->size(), inner->name(), inner->axes()), inner_(std::move(inner)) {}
  std::unique_ptr<Communicator> split(int, int, std::string, AxisSet) override { unknown(); }

 private:
  [[noreturn]] static void unknown() { fail(ExitCode::internal, "a collective of no data-parallel step"); }
  template <class F>
  void pass(F&& call) {
    call(*inner_, *own_);
    own_->synchronize();
  }
  void do_all_gather(Tensor out, Tensor in) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    pass([&](Communicator& c, Stream& s) { c.all_gather(s, out, in); });
  }
  void do_all_reduce(Tensor t, ReduceOp op) override {
    pass([&](Communicator& c, Stream& s) { c.all_reduce(s, t, op); });
  }
  void do_reduce_scatter(Tensor out, Tensor in) override {
    pass([&](Communicator& c, Stream& s) { c.reduce_scatter(s, out, in); });
  }
  void do_all_to_all_v(Tensor, const std::vector<int64_t>&, Tensor, const std::vector<int64_t>&) override {
    unknown();
  }
  void do_broadcast(Tensor, int) override { unknown(); }
  void do_reduce(Tensor, int) override { unknown(); }
  void do_send(Tensor, int) override { unknown(); }
  void do_recv(Tensor, int) override { unknown(); }
  void do_send_recv(Tensor, int, Tensor, int) override { unknown(); }
  void do_barrier() override { unknown(); }

  std::unique_ptr<Communicator> inner_;
  std::unique_ptr<Stream> own_ = make_side_stream(DeviceKind::cuda, "late");
};
#endif

Tensor in(const std::shared_ptr<void>& memory, DType t, Shape shape) {
  Tensor x;
  x.data = memory.get(), x.dtype = t, x.device = DeviceKind::cuda, x.shape = shape;
  return x;
}

}  // namespace

TEST_CASE("a job with captured micro-batches equals the one without, bit for bit") {
  if (!have_cuda()) return;
  for (const std::string architecture : {"llama", "gpt2"})
    for (const std::string precision : {"fp32", "bf16"}) {
      CAPTURE(architecture, precision);
      TinyOptions o = graph_job(architecture, precision);
      o.packed = precision == "bf16";
      o.dropout = 0.1;
      if (architecture == "gpt2") o.recompute.run = 1;
      const TinyResult eager = train_tiny(o);
      o.cuda_graphs = true;
      const TinyResult graphed = train_tiny(o);
      check_same_bits(eager, graphed);
      CHECK(graphed.used_bytes == graphed.plan_bytes);
      o.dropout = 0.2;
      CHECK(train_tiny(o).losses != eager.losses);  // a comparison that can fail
    }
  TinyOptions sophia = graph_job("llama", "fp32");  // whose steps with estimates are not captured
  sophia.optimizer.rule = UpdateRule::sophia;
  sophia.optimizer.hessian_interval = 3;
  const TinyResult estimated = train_tiny(sophia);
  sophia.cuda_graphs = true;
  check_same_bits(estimated, train_tiny(sophia));
  TinyOptions one =
      graph_job("llama", "fp32");  // no second micro-batch, and one that the device holds at once
  one.global_batch = 2;
  const TinyResult eager = train_tiny(one);
  one.cuda_graphs = true;
  check_same_bits(eager, train_tiny(one));
}

#ifdef LTRAIN_CUDA_EMULATED
TEST_CASE("captured micro-batches with weights of FP8: rounded in the first of each step, bit for bit") {
  for (const Fp8Recipe recipe : {Fp8Recipe::delayed, Fp8Recipe::tensorwise}) {
    CAPTURE(static_cast<int>(recipe));
    TinyOptions o = graph_job("llama", "fp32");
    o.intermediate = 32, o.seq = 16;  // multiples of 16, as cuBLASLt requires of FP8 operands
    o.fp8.emplace().recipe = recipe;
    o.fp8->history = 2;
    const TinyResult eager = train_tiny(o);
    o.cuda_graphs = true;
    const TinyResult graphed = train_tiny(o);
    check_same_bits(eager, graphed);
    CHECK(graphed.used_bytes == graphed.plan_bytes);
  }
}

TEST_CASE(
    "slow: captured passes of several ranks equal those without, bit for bit, and count what they send") {
  const auto check = [](const char* what, auto change) {
    CAPTURE(what);
    TinyOptions o = graph_job("llama", "fp32");
    o.global_batch = 8, o.micro_batch = 1, o.kv_heads = 2, o.seq = 8;
    o.dropout = 0.1;
    change(o);
    const TinyResult eager = train_tiny(o);
    o.cuda_graphs = true;
    const TinyResult graphed = train_tiny(o);
    check_same_bits(eager, graphed);
    CHECK(graphed.used_bytes == graphed.plan_bytes);
    CHECK(graphed.used_wire == graphed.plan_wire);
    CHECK(graphed.used_groups == eager.used_groups);
    CHECK(graphed.used_groups.size() > 0);
  };
  check("data", [](TinyOptions& m) { m.ranks = 2, m.tied = true; });
  for (const auto estimator : {HessianEstimator::gauss_newton, HessianEstimator::hutchinson})
    check("Sophia, ZeRO-1", [&](TinyOptions& m) {
      m.ranks = 2, m.zero_stage = 1;
      m.optimizer.rule = UpdateRule::sophia;
      m.optimizer.hessian_estimator = estimator;
      m.optimizer.hessian_interval = 2;
    });
  check("data, one micro-batch a step", [](TinyOptions& m) { m.ranks = 2, m.global_batch = 2; });
  check("NCCL: data", [](TinyOptions& m) { m.ranks = 2, m.zero_stage = 1, m.nccl = true; });
  check("ZeRO-1, bf16", [](TinyOptions& m) { m.ranks = 2, m.zero_stage = 1, m.precision = "bf16"; });
  check("two levels", [](TinyOptions& m) { m.ranks = 4, m.shard = 2; });
  check("two levels, ZeRO-1", [](TinyOptions& m) { m.ranks = 4, m.shard = 2, m.zero_stage = 1; });
  check("sums in 8 bits", [](TinyOptions& m) { m.ranks = 2, m.reduce_code = Code::int8; });
  check("tensor", [](TinyOptions& m) { m.tensor = 2, m.sequence_parallel = true; });
  check("NCCL: tensor, data", [](TinyOptions& m) { m.ranks = m.tensor = 2, m.nccl = true; });
  check("tensor, 2d", [](TinyOptions& m) { m.tensor = 4, m.tensor_mode = "2d", m.micro_batch = 2; });
  check("pipeline", [](TinyOptions& m) { m.pipeline = 2, m.tied = true; });
  check("NCCL: pipeline, data", [](TinyOptions& m) { m.pipeline = m.ranks = 2, m.nccl = true; });
  check("pipeline, zero bubble", [](TinyOptions& m) { m.pipeline = 2, m.schedule = "zb-h1"; });
  check("pipeline in V, ZeRO-1", [](TinyOptions& m) {
    m.pipeline = m.ranks = 2, m.schedule = "dualpipev", m.chunks = 2, m.layers = 4, m.zero_stage = 1;
  });
  check("interleaved, tensor", [](TinyOptions& m) {
    m.pipeline = m.tensor = 2, m.schedule = "interleaved", m.chunks = 2, m.layers = 4;
  });
  check("context", [](TinyOptions& m) { m.context = 2; });
  check("NCCL: context, all to all",
        [](TinyOptions& m) { m.context = 2, m.context_comm = "a2a", m.nccl = true; });
}
#endif

#ifdef LTRAIN_CUDA_EMULATED
TEST_CASE("captured layers wait for the updated weights that they gather, which may come late") {
  for (const int64_t batch : {2, 6}) {  // one micro-batch of each rank, and three
    CAPTURE(batch);
    TinyOptions o = graph_job("llama", "fp32");
    o.ranks = 2, o.zero_stage = 1, o.micro_batch = 1, o.global_batch = batch, o.layers = 3;
    const TinyResult eager = train_tiny(o);
    o.cuda_graphs = true;
    const TinyResult late = train_tiny(
        o, [](const GroupRequest&, std::unique_ptr<Communicator> c) -> std::unique_ptr<Communicator> {
          return std::make_unique<LateGroup>(std::move(c));
        });
    check_same_bits(eager, late);
    CHECK(late.used_wire == late.plan_wire);
    o.skip_grad_norm = 0.1;  // no step has an update, and captured work gathers all the same
    const TinyResult skipped = train_tiny(o);
    CHECK(skipped.used_groups == skipped.plan_groups);
    o.cuda_graphs = false;
    check_same_bits(train_tiny(o), skipped);
  }
}
#endif

TEST_CASE("the timeline of a step on the device has the ops of its plan, a captured micro-batch as one") {
  if (!have_cuda()) return;
  TinyOptions o = graph_job("llama", "bf16");
  o.timeline = true;
  const TinyResult eager = train_tiny(o);
  CHECK(eager.plan_ops[0].size() > 50);
  CHECK(op_difference(eager.plan_ops[0], eager.used_ops[0]) == "");
  o.cuda_graphs = true;
  const TinyResult graphed = train_tiny(o);
  std::vector<std::string> rest;
  int64_t recorded = 0;
  for (const std::string& op : graphed.used_ops[0]) {
    if (op.ends_with(": recorded_micro_batch")) {
      ++recorded;
    } else {
      rest.push_back(op);
    }
  }
  CHECK(recorded == 3);
  CHECK(rest.size() + 30 < eager.used_ops[0].size());
  CHECK(std::count(rest.begin(), rest.end(), "compute: optimizer: adamw") > 0);
  if (!kSeveralRanks) return skip_test("ranks in one process need the emulated device");
  o.ranks = 2, o.zero_stage = 1;
  const TinyResult shards = train_tiny(o);
  for (const std::string& op : shards.used_ops[0]) CHECK(op.find("all_gather") == std::string::npos);
  o.cuda_graphs = false, o.ranks = 2, o.zero_stage = 3;
  const TinyResult two = train_tiny(o);
  for (size_t rank : {0, 1}) CHECK(op_difference(two.plan_ops[rank], two.used_ops[rank]) == "");
}

TEST_CASE("a replay reads memory again and keeps the arguments that it was recorded with") {
  if (!have_cuda()) return;
  const auto stream = cuda::make_cuda_stream("cuda");
  const auto memory = cuda::device_memory(256), other = cuda::device_memory(256),
             factor = cuda::device_memory(8);
  const Tensor logits = in(memory, DType::f32, {1, 2}), d = in(other, DType::f32, {1, 2});
  const auto loss_memory = cuda::device_memory(8), target_memory = cuda::device_memory(4);
  const Tensor loss = in(loss_memory, DType::f64, {1}), targets = in(target_memory, DType::i32, {1});
  const Tensor scale = in(factor, DType::f64, {1});
  const float zeros[2] = {0, 0};
  const int32_t target = 0;
  upload(*stream, logits, zeros);
  upload(*stream, targets, &target);
  fill_zero(*stream, loss);
  double number = 2;
  const auto gradient = [&](Graph& graph) {
    upload(*stream, scale, &number);
    graph.replay();
    float got[2];
    download(*stream, got, d);
    return got[1];
  };
  const auto from_device = stream->capture(
      [&] { cross_entropy(*stream, loss, d, logits, targets, GradientScale(scale.ptr<double>())); });
  const auto stale = stream->capture([&] { cross_entropy(*stream, loss, d, logits, targets, number); });
  CHECK(gradient(*from_device) == 1.0f);
  number = 6;
  CHECK(gradient(*from_device) == 3.0f);
  CHECK(gradient(*stale) == 1.0f);  // why the scale of a captured step lies in the device's memory
}

#ifdef LTRAIN_CUDA_EMULATED
TEST_CASE("what cannot be recorded is refused, and the stream goes on") {
  const auto stream = cuda::make_cuda_stream("compute");
  const auto memory = cuda::device_memory(8);
  const Tensor t = in(memory, DType::f64, {1});
  CHECK_THROWS_WITH(stream->capture([&] { stream->synchronize(); }), Catch::Contains("the host's wait"));
  const auto other = cuda::make_cuda_stream("comm");
  CHECK_THROWS_WITH(
      stream->capture([&] { stream->wait(other->record()); }),
      Catch::Contains("expected captured work to wait only for its own streams, got stream comm"));
  CHECK_THROWS_WITH(stream->capture([&] { stream->capture([] {}); }),
                    Catch::Contains("expected no capture in progress on stream compute"));
  Event inside;
  stream->capture([&] { inside = stream->record(); })->replay();
  stream->wait(inside);
  CHECK_THROWS_WITH(
      other->wait(inside),
      Catch::Contains("expected stream comm to be part of the captured work that it waits for"));
  CHECK_THROWS_WITH(inside.happened(), Catch::Contains("the host asks for a point"));
  const auto graph = stream->capture([&] { fill_value(*stream, t, 3); });
  fill_value(*stream, t, 1);
  double got = 0;
  download(*stream, &got, t);
  CHECK(got == 1);  // recorded, not run
  graph->replay();
  download(*stream, &got, t);
  CHECK(got == 3);
}

TEST_CASE("recorded calls of NCCL are counted and watched each time they run") {
  FakeNetwork network;
  NcclOptions options;
  options.timeout_seconds = 0.5 * time_scale();
  auto store = make_memory_store();
  std::vector<std::shared_ptr<void>> memory{cuda::device_memory(8), cuda::device_memory(8)};
  std::vector<std::string> errors(2);
  std::vector<int64_t> sent(2);
  std::vector<std::thread> threads;
  for (int rank : {0, 1})
    threads.emplace_back([&, rank] {
      try {
        const auto stream = cuda::make_cuda_stream("compute"), comm = cuda::make_cuda_stream("comm");
        auto world = make_nccl_world(network.open(), *store, "nccl", rank, 2, options);
        auto c = make_nccl_group(world, {0, 1}, "data", Axis::data);
        const auto graph = stream->capture(
            [&] {
              c->all_reduce(*comm, in(memory[rank], DType::f64, {1}));
              c->all_reduce(*comm, in(memory[rank], DType::f64, {1}));
            },
            {comm.get()});
        if (c->wire_bytes() != 0 || c->flight()->view().entered != 0)
          throw std::runtime_error("counted early");
        graph->replay();
        graph->replay();
        sent[rank] = c->wire_bytes();
        comm->synchronize();
        c->check();
        if (rank == 0) graph->replay();  // alone
        comm->synchronize();
        c->check();
        for (int i = 0; i < 500 && c->completed() < 4; ++i)
          std::this_thread::sleep_for(std::chrono::milliseconds(10));
        if (c->completed() != 4) throw std::runtime_error("not all complete");
        std::this_thread::sleep_for(std::chrono::duration<double>(2 * options.timeout_seconds));
      } catch (const std::exception& e) {
        errors[rank] = e.what();
      }
    });
  for (auto& t : threads) t.join();
  CHECK(sent == std::vector<int64_t>{4 * 8, 4 * 8});
  CHECK_THAT(errors[0], Catch::Contains("group \"data\"") &&
                            Catch::Contains("in 2 recorded calls up to all_reduce #6 of 1 f64") &&
                            Catch::Contains(fmt::format("waited {:g} s", options.timeout_seconds)));
  CHECK(errors[1] == "");
  CHECK(network.alive() == 0);
}

TEST_CASE("captured work of two streams comes after all that was before on both, and before what follows") {
  const auto first = cuda::make_cuda_stream("compute"), second = cuda::make_cuda_stream("comm");
  const auto memory = cuda::device_memory(32);
  Tensor all = in(memory, DType::f64, {4});
  const Tensor a = all.flat(0, {1}), b = all.flat(1, {1}), c = all.flat(2, {1}), d = all.flat(3, {1});
  fill_zero(*first, all);
  first->synchronize();
  const auto graph = first->capture(
      [&] {
        add_to(*first, b, a);
        second->wait(first->record());
        fill_value(*second, a, 3);
        add_to(*first, c, b);
      },
      {second.get()});
  for (int time = 0; time < 2; ++time) {
    fill_value(*second, a, 10);
    graph->replay();
    add_to(*first, b, a);
    add_to(*second, d, c);
    second->wait(first->record());  // `a` has been read
  }
  // Nothing pulls what it does not wait for: each order finds other waits missing.
  const bool turned = GENERATE(false, true);
  (turned ? second : first)->synchronize();
  (turned ? first : second)->synchronize();
  double got[4];
  download(*first, got, all);
  CHECK(got[0] == 3);
  CHECK(got[1] == 10 + 3 + 10 + 3);
  CHECK(got[2] == 10 + 23);
  CHECK(got[3] == 10 + 33);
}
#endif
