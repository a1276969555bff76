// Sums over replicas of a program on a device: they go through the host, part by part.
#include <algorithm>
#include <set>

#include "runtime/program/replica_sums.h"
#include "tests/app/replica_launchers.h"
#include "tests/cuda/twin.h"
#include "tests/parity/parity.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

/// Two replicas with the same micro-batches: each sum is twice the value.
class TwiceTheSame final : public ReplicaSums {
 public:
  void sum(Tensor t) override {
    REQUIRE(t.device == DeviceKind::cpu);
    types.insert(t.dtype);
    for (int64_t i = 0; i < t.elements(); ++i) switch (t.dtype) {
        case DType::f32:
          t.ptr<float>()[i] *= 2;
          break;
        case DType::f64:
          t.ptr<double>()[i] *= 2;
          break;
        default:
          static_cast<int64_t*>(t.data)[i] *= 2;
      }
  }
  bool commit(bool) override { return ++commits <= refused_after; }

  std::set<DType> types;
  int commits = 0, refused_after = 1 << 20;
};

TinyOptions job(const std::string& architecture, DeviceKind device) {
  TinyOptions o;
  o.architecture = architecture;
  o.precision = "fp32";
  o.hidden = 16, o.heads = 2, o.intermediate = 24, o.vocab = 37, o.seq = 10, o.kv_heads = 2;
  o.global_batch = 4, o.micro_batch = 2, o.steps = 3;
  o.padded_targets = true;
  o.device = device;
  return o;
}

TinyResult with(const TinyOptions& o, ReplicaSums& sums) {
  TinyHooks hooks;
  hooks.begin = [&](const TinyRank& here) -> int64_t {
    here.program.sum_over(&sums);
    return 0;
  };
  return train_tiny(o, {}, hooks);
}

}  // namespace

TEST_CASE("replicas: two with the same micro-batches train as one, to the bit, on the CPU and on cuda") {
  for (const DeviceKind device : {DeviceKind::cpu, DeviceKind::cuda}) {
    if (device == DeviceKind::cuda && !have_cuda()) return;
    for (const std::string architecture : {"llama", "mixtral"}) {
      INFO(architecture << (device == DeviceKind::cpu ? " on cpu" : " on cuda"));
      const TinyOptions o = job(architecture, device);
      const TinyResult one = train_tiny(o);
      TwiceTheSame sums;
      const TinyResult two = with(o, sums);
      CHECK(two.losses == one.losses);
      CHECK(two.norms == one.norms);
      CHECK(two.parameters == one.parameters);
      CHECK(sums.commits == o.steps);
      CHECK(sums.types == std::set<DType>{DType::f32, DType::f64, DType::i64});
    }
  }
}

TEST_CASE("replicas: a step that does not count changes nothing") {
  const TinyOptions o = job("llama", DeviceKind::cpu);
  TinyOptions shorter = o;
  shorter.steps = 1;
  TwiceTheSame sums;
  sums.refused_after = 1;
  CHECK(with(o, sums).parameters == train_tiny(shorter).parameters);
}

TEST_CASE("replicas: the program on cuda goes on without one, which comes back with the state of another") {
  if (!have_cuda()) return;
  const std::string job =
      "tiny.yaml device=cuda precision=fp32 parallel.data=1 train.train_steps=12 train.eval_interval=0 "
      "checkpoint.save_interval=0 launch.max_restarts=1 launch.restart_wait_seconds=0.1 ";
  ReplicaLaunchers r(2, job);
  REQUIRE(r.t.sh("run " + job + "output_dir=one").code == 0);
  const std::string codes = r.codes(r.quorum("") + r.start(0, "", "LTRAIN_FAULT=train.step:0:*:sleep=700") +
                                    r.start(1, "", "LTRAIN_FAULT=train.step:0:7:kill"));
  INFO(codes << "\n" << r.texts());
  CHECK(codes == "0 0");
  CHECK_THAT(r.text("quorum"), Catch::Contains("replica 1 copies the state of replica 0"));
  check_close(r.t.metric("lm_loss", "run-0"), r.t.metric("lm_loss", "one"), 1e-5);
}
