// Recorded work: what a replay reads again, what cannot be recorded, and whole jobs that are bit for bit
// those without it.
#include <algorithm>

#include "kernels/ops/cross_entropy.h"
#include "kernels/ops/tensor_ops.h"
#include "tests/cuda/twin.h"
#include "tests/parity/parity.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

TinyOptions tiny(const std::string& architecture, const std::string& precision) {
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

Tensor in(const std::shared_ptr<void>& memory, DType t, Shape shape) {
  Tensor x;
  x.data = memory.get(), x.dtype = t, x.device = DeviceKind::cuda, x.shape = shape;
  return x;
}

}  // namespace

TEST_CASE("a job with recorded micro-batches equals the one without, bit for bit") {
  if (!have_cuda()) return;
  for (const std::string architecture : {"llama", "gpt2"})
    for (const std::string precision : {"fp32", "bf16"}) {
      CAPTURE(architecture, precision);
      TinyOptions o = tiny(architecture, precision);
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
  TinyOptions one = tiny("llama", "fp32");  // no second micro-batch, and one that the device holds at once
  one.global_batch = 2;
  const TinyResult eager = train_tiny(one);
  one.cuda_graphs = true;
  check_same_bits(eager, train_tiny(one));
}

TEST_CASE("the timeline of a step on the device has the ops of its plan, a recorded micro-batch as one") {
  if (!have_cuda()) return;
  TinyOptions o = tiny("llama", "bf16");
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
  CHECK(gradient(*stale) == 1.0f);  // why the scale of a recorded step lies in the device's memory
}

#ifdef LTRAIN_CUDA_EMULATED
TEST_CASE("what cannot be recorded is refused, and the stream goes on") {
  const auto stream = cuda::make_cuda_stream("compute");
  const auto memory = cuda::device_memory(8);
  const Tensor t = in(memory, DType::f64, {1});
  CHECK_THROWS_WITH(stream->capture([&] { stream->synchronize(); }), Catch::Contains("the host's wait"));
  CHECK_THROWS_WITH(stream->capture([&] { stream->record(); }), Catch::Contains("an event"));
  CHECK_THROWS_WITH(stream->capture([&] { stream->launch([] {}); }), Catch::Contains("communicator"));
  const auto graph = stream->capture([&] { fill_value(*stream, t, 3); });
  fill_value(*stream, t, 1);
  double got = 0;
  download(*stream, &got, t);
  CHECK(got == 1);  // recorded, not run
  graph->replay();
  download(*stream, &got, t);
  CHECK(got == 3);
}
#endif
