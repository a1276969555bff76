// The program with device: cuda: a run from its recipe to its checkpoints, evaluation, generation, and back
// to the CPU. Without a GPU it is built with the emulated device.
#include <filesystem>
#include <fstream>
#include <regex>
#include <thread>

#include "runtime/program/take_device.h"
#include "tests/app/run_program.h"
#include "tests/cuda/twin.h"
#include "tests/support/temporary_folder.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

const char* kRecipe =
    "run tiny.yaml parallel.data=1 parallel.zero_stage=0 model.hidden_size=16 model.intermediate_size=24 "
    "model.vocab_size=259 data.seq_length=8 train.micro_batch_size=2 train.global_batch_size=4 "
    "train.train_steps=4 train.eval_steps=1 schedule.lr_decay_steps=4 ";

std::vector<double> losses(const TempRun& run, const std::string& name, const std::string& key = "lm_loss") {
  std::vector<double> out;
  for (const std::string& s : run.metric(key, name)) out.push_back(std::stod(s.substr(s.find(':') + 1)));
  return out;
}

void require_close_losses(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) CHECK(std::abs(a[i] / b[i] - 1) < 1e-5);
}

}  // namespace

TEST_CASE(
    "ltrain run on cuda: losses of the CPU's run, exact memory, checkpoints that either device resumes") {
  if (!have_cuda()) return;
  const TempRun run;
  REQUIRE(run.build().code == 0);
  const auto train = [&](const std::string& settings) {
    const Outcome o = run.sh(kRecipe + settings);
    INFO(o.text);
    REQUIRE(o.code == 0);
    return o.text;
  };
  train("device=cpu output_dir=cpu");
  const std::string said = train("device=cuda output_dir=cuda");
  CHECK(said.find("of one ") != std::string::npos);
  REQUIRE(losses(run, "cpu").size() == 4);
  require_close_losses(losses(run, "cpu"), losses(run, "cuda"));
  require_close_losses(losses(run, "cpu", "grad_norm"), losses(run, "cuda", "grad_norm"));
  require_close_losses(losses(run, "cpu", "eval_loss"), losses(run, "cuda", "eval_loss"));

  const auto plan = nlohmann::json::parse(read_file(run.folder() + "/cuda/plan.json"));
  const auto used = nlohmann::json::parse(read_file(run.folder() + "/cuda/logs/usage-00000.json"));
  CHECK(plan["device"] == "cuda");
  CHECK(plan["ranks"][0]["memory_bytes"]["arena"]["total"] == used["arena_bytes"]);
  CHECK(plan["ranks"][0]["memory_bytes"]["staging"].get<int64_t>() > 0);
  REQUIRE(used["start"].size() == 8);
  CHECK(used["start"][2]["part"] == "groups");
  CHECK(used["start"][3]["part"] == "program");
  if (used["start"][2].contains("device_bytes"))  // the emulated card tells no memory in use
    CHECK(used["start"][3]["device_bytes"].get<int64_t>() - used["start"][2]["device_bytes"].get<int64_t>() >=
          used["arena_bytes"].get<int64_t>());

  // A run on one device goes on from a checkpoint of the other, and both end with the same losses.
  train("device=cuda output_dir=there train.train_steps=2");
  train("device=cpu output_dir=there");
  require_close_losses(losses(run, "cpu"), losses(run, "there"));
  train("device=cpu output_dir=back train.train_steps=2");
  train("device=cuda output_dir=back");
  require_close_losses(losses(run, "cpu"), losses(run, "back"));

  const std::string evaluated = run.sh("eval cuda --device cuda --samples 4").text;
  CHECK(evaluated == run.sh("eval cuda --device cpu --samples 4").text);
  CHECK(evaluated.find("perplexity") != std::string::npos);
  std::ofstream(run.folder() + "/q.jsonl")
      << R"({"question": "line", "choices": ["of", "zzz"], "answer": 0})";
  const Outcome answered = run.sh("eval cuda --device cuda --choices q.jsonl");
  INFO(answered.text);
  CHECK(answered.text.find("accuracy ") != std::string::npos);
  CHECK(answered.text == run.sh("eval cuda --device cpu --choices q.jsonl").text);
  const std::string options = " --prompt line --tokens 3 --temperature 0 --json 2>/dev/null";
  const Outcome there = run.sh("generate cuda --device cuda" + options);
  CHECK(there.code == 0);
  CHECK(there.text == run.sh("generate cuda --device cpu" + options).text);
}

TEST_CASE("distillation on cuda: losses and divergences of the CPU's run, in exactly the planned memory") {
  if (!have_cuda()) return;
  const TempRun run;
  REQUIRE(run.sh(kRecipe + std::string("model.hidden_size=24 seed=3 device=cpu output_dir=teacher")).code ==
          0);
  for (const std::string device : {"cpu", "cuda"}) {
    const Outcome o =
        run.sh(kRecipe + std::string("distillation.teacher=teacher distillation.temperature=2 ") +
               "device=" + device + " output_dir=" + device);
    INFO(o.text);
    REQUIRE(o.code == 0);
  }
  REQUIRE(losses(run, "cpu").size() == 4);
  for (const char* key : {"lm_loss", "ce_loss", "kl", "grad_norm", "eval_loss"})
    require_close_losses(losses(run, "cpu", key), losses(run, "cuda", key));
  const auto plan = nlohmann::json::parse(read_file(run.folder() + "/cuda/plan.json"));
  const auto used = nlohmann::json::parse(read_file(run.folder() + "/cuda/logs/usage-00000.json"));
  CHECK(plan["ranks"][0]["memory_bytes"]["arena"]["total"] == used["arena_bytes"]);
}

TEST_CASE("8-bit moments and states in files on cuda: a resumed run has the bits of an unbroken one") {
  if (!have_cuda()) return;
  const std::string settings = GENERATE(
      as<std::string>(), "optimizer.kind=adamw8bit",
      "offload.optimizer.device=nvme offload.optimizer.path=. offload.activations.device=nvme "
      "offload.activations.path=. model.num_hidden_layers=2",
      "parallel.zero_stage=3 offload.params.device=nvme offload.params.path=. offload.optimizer.device=nvme "
      "offload.optimizer.path=. train.ema_decay=0.5");
  CAPTURE(settings);
  const TempRun run;
  REQUIRE(run.build().code == 0);
  const auto train = [&](const std::string& more) {
    const Outcome o = run.sh(kRecipe + settings + " " + more);
    INFO(o.text);
    REQUIRE(o.code == 0);
    return o.text;
  };
  const std::string said = train("device=cuda output_dir=whole");
  if (settings.find("nvme") != std::string::npos) {
    CHECK(said.find("offload.optimizer: ") != std::string::npos);
    CHECK(said.find(", through pinned memory") != std::string::npos);
  }
  const auto plan = nlohmann::json::parse(read_file(run.folder() + "/whole/plan.json"));
  const auto used = nlohmann::json::parse(read_file(run.folder() + "/whole/logs/usage-00000.json"));
  CHECK(plan["ranks"][0]["memory_bytes"]["arena"]["total"] == used["arena_bytes"]);
  train("device=cuda output_dir=parts train.train_steps=2");
  train("device=cuda output_dir=parts");
  CHECK(losses(run, "parts") == losses(run, "whole"));
  CHECK(losses(run, "parts", "eval_loss").back() == losses(run, "whole", "eval_loss").back());
  train("device=cpu output_dir=cpu train.train_steps=2");
  train("device=cuda output_dir=cpu");
  const std::vector<double> a = losses(run, "cpu"), b = losses(run, "whole");
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) CHECK(std::abs(a[i] / b[i] - 1) < 1e-4);
}

TEST_CASE(
    "ltrain run with updates of the host: bits of the GPU's, resumed too, and auto says what it chose") {
  if (!have_cuda()) return;
  const TempRun run;
  REQUIRE(run.build().code == 0);
  const auto train = [&](const std::string& name, const std::string& settings) {
    const Outcome o =
        run.sh(kRecipe + ("device=cuda precision=bf16 offload.optimizer.device=cpu output_dir=" + name +
                          " offload.optimizer.update=" + settings));
    INFO(o.text);
    REQUIRE(o.code == 0);
    return o.text;
  };
  train("device", "device");
  train("host", "cpu");
  train("parts", "cpu train.train_steps=2");
  train("parts", "cpu");
  for (const char* key : {"lm_loss", "grad_norm"}) {
    CHECK(losses(run, "host", key) == losses(run, "device", key));
    CHECK(losses(run, "parts", key) == losses(run, "device", key));
  }
  CHECK(losses(run, "host", "eval_loss") == losses(run, "device", "eval_loss"));
  CHECK(losses(run, "parts", "eval_loss").back() == losses(run, "device", "eval_loss").back());
  const auto plan = nlohmann::json::parse(read_file(run.folder() + "/host/plan.json"));
  const auto used = nlohmann::json::parse(read_file(run.folder() + "/host/logs/usage-00000.json"));
  const auto& rank = plan["ranks"][0];
  CHECK(rank["memory_bytes"]["arena"]["total"] == used["arena_bytes"]);
  // A few elements of each bucket stay on the GPU; gradients are in fp32.
  const double parameters = plan["parameters"];
  CHECK(rank["offload_optimizer"]["bytes_out"].get<double>() == Approx(4 * parameters).epsilon(0.05));
  CHECK(rank["offload_optimizer"]["bytes_in"].get<double>() == Approx(2 * parameters).epsilon(0.05));
  CHECK(rank["offload_optimizer"]["host_seconds"].get<double>() > 0);
  const std::string said = train("auto", "auto");
  CHECK(said.find("offload.optimizer.update: auto chose ") != std::string::npos);
  CHECK(losses(run, "auto") == losses(run, "device"));
}

TEST_CASE("a file that takes no more of what leaves a GPU ends the run with the code of storage") {
  if (!have_cuda()) return;
  const TempRun run;
  REQUIRE(run.build().code == 0);
  const std::string recipe =
      kRecipe +
      std::string(
          "device=cuda offload.optimizer.device=nvme offload.optimizer.path=. checkpoint.save_interval=1 ");
  const Outcome o = run.sh(recipe, "LTRAIN_FAULT=offload.store:0:9:skip");
  INFO(o.text);
  CHECK(o.code == 73);
  CHECK(o.text.find("No space left on device; the last checkpoint is intact") != std::string::npos);
  CHECK(run.sh("checkpoint verify run").code == 0);
  CHECK(run.sh(recipe).code == 0);
}

TEST_CASE("a second rank on a GPU is refused before anything is started") {
  if (!have_cuda()) return;
  const TempRun run;
  const Outcome o = run.sh("run tiny.yaml device=cuda parallel.data=2");
  CHECK(o.code == 64);
  INFO(o.text);
  CHECK(o.text.find("device = cuda: 2 ranks on ") != std::string::npos);
  CHECK(o.text.find("nearest valid value: cpu") != std::string::npos);
}

#ifdef LTRAIN_CUDA_EMULATED
namespace {

/// Two sides of a machine in a folder: a switch with a GPU on each.
class FakeSys {
 public:
  FakeSys() {
    gpu("pci0000:15/0000:15:01.0", "0000:18:00.0", "0", "0-3");
    gpu("pci0000:c0/0000:c0:01.0", "0000:c3:00.0", "1", "4-7");
  }
  const std::string& root() const { return folder_.path(); }

 private:
  void gpu(const std::string& bridges, const std::string& id, const char* numa, const char* cores) {
    namespace fs = std::filesystem;
    const std::string path = root() + "/sys/devices/" + bridges + "/" + id;
    fs::create_directories(path);
    std::ofstream(path + "/numa_node") << numa << "\n";
    std::ofstream(path + "/local_cpulist") << cores << "\n";
    fs::create_directories(root() + "/sys/bus/pci/devices");
    fs::create_symlink(path, root() + "/sys/bus/pci/devices/" + id);
  }
  TemporaryFolder folder_;
};

/// A variable of this process, for a while.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~Variable() { ::unsetenv(name_); }

 private:
  const char* name_;
};

}  // namespace

TEST_CASE("a rank takes the GPU of its place in the order, and runs on the cores beside it") {
  const FakeSys sys;
  const Variable places("LTRAIN_EMULATED_PLACES", "0000:C3:00.0,0000:18:00.0");
  std::string first, second, more, free;
  std::thread([&] {  // a thread of its own, so that the test's other threads keep their device
    first = take_device(DeviceKind::cuda, 0, sys.root()).text;
  })
      .join();
  std::thread([&] { second = take_device(DeviceKind::cuda, 1, sys.root()).text; }).join();
  std::thread([&] { more = take_device(DeviceKind::cuda, 2, sys.root()).text; }).join();
  {
    const Variable off("LTRAIN_CPU_AFFINITY", "off");
    std::thread([&] { free = take_device(DeviceKind::cuda, 0, sys.root()).text; }).join();
  }
  // NUMA node 0 first, whatever the driver's numbers; cores, where this machine has some of them.
  INFO(first << "\n" << second);
  CHECK(first.starts_with("GPU 0000:18:00.0"));
  CHECK(second.starts_with("GPU 0000:c3:00.0"));
  CHECK(more == first);
  CHECK(free == "GPU 0000:18:00.0");
  CHECK(first.find(", cores ") != std::string::npos);
  CHECK(first.find(" of NUMA node 0") != std::string::npos);
  const Variable wrong("LTRAIN_CPU_AFFINITY", "on");
  CHECK_THROWS_WITH(take_device(DeviceKind::cuda, 0, sys.root()), Catch::Contains("must be auto or off"));
}

TEST_CASE("doctor shows emulated GPUs, their links and the order of ranks, as rows and for programs") {
  const TempRun run;
  const std::string cards =
      "LTRAIN_EMULATED_PLACES=0000:18:00.0,0000:19:00.0,0000:c3:00.0,0000:c4:00.0 "
      "LTRAIN_EMULATED_LINKS=0-2,1-3";
  const Outcome text = run.sh("doctor", cards);
  INFO(text.text);
  CHECK(text.text.find("GPUs that NVLink joins") != std::string::npos);
  CHECK(text.text.find("0,2; 1,3") != std::string::npos);
  CHECK(text.text.find("0, 2, 1, 3") != std::string::npos);
  const auto json = nlohmann::json::parse(run.sh("doctor --json 2>/dev/null", cards).text);
  CHECK(json["topology"]["gpus"].size() == 4);
  CHECK(json["topology"]["gpus"][2]["bus_id"] == "0000:c3:00.0");
  CHECK(json["topology"]["nvlink_groups"] == nlohmann::json({{0, 2}, {1, 3}}));
  CHECK(json["topology"]["gpus_of_local_ranks"] == nlohmann::json({0, 2, 1, 3}));
}

TEST_CASE("a run has the numbers of its GPUs in its files, and without NVML it says so once and goes on") {
  const TempRun run;
  REQUIRE(run.build().code == 0);
  const std::string libraries = run.folder() + "/nvml";
  std::filesystem::create_directory(libraries);
  std::filesystem::create_symlink(LTRAIN_NVML_STANDIN, libraries + "/libnvidia-ml.so.1");
  const std::string card = "LTRAIN_EMULATED_PLACES=0000:18:00.0 ",
                    with_library = card + "LTRAIN_CUDA_LIBS=" + libraries;
  const std::string recipe = kRecipe + std::string("device=cuda telemetry.prometheus=run.prom ");
  const Outcome one = run.sh(recipe, with_library);
  INFO(one.text);
  REQUIRE(one.code == 0);
  CHECK_THAT(one.text,
             Catch::Contains("metrics lack what NVML does not give for the GPU of rank 0 on host ") &&
                 Catch::Contains(": PCIe replays (libnvidia-ml has no "));
  CHECK(std::regex_search(one.text,
                          std::regex(R"(1 GPU: [\d.]+ kJ, [\d.e-]+ J a token, mean SM clock 1980 MHz, )"
                                     R"(mean power 500 W, at most 55 C)")));
  CHECK(run.metric("gpu_sm_clock_mhz").size() == 4);
  CHECK(run.values("gpu_power_w").front() == 500.25);
  CHECK(run.metric("gpu_nvlink_replays").size() == 4);
  CHECK(run.metric("gpu_pcie_replays").empty());
  const std::string prometheus = read_file(run.folder() + "/run.prom");
  CHECK_THAT(prometheus, Catch::Contains("DCGM_FI_DEV_GPU_TEMP{run=\"tiny\",rank=\"0\",Hostname=\"") &&
                             Catch::Contains("\"} 55\n"));
  const auto used = nlohmann::json::parse(read_file(run.folder() + "/run/logs/usage-00000.json"));
  CHECK(used["gpu"]["energy_j"] > 0);
  CHECK(used["gpu"]["readings"] >= 2);
  CHECK_THAT(run.sh("report run").text, Catch::Contains("SM clock") && Catch::Contains("1980 MHz"));

  const Outcome none = run.sh(recipe + "output_dir=none", card);
  CHECK(none.code == 0);
  CHECK(run.metric("gpu_sm_clock_mhz", "none").empty());
  const std::string why = "numbers of the GPU (libnvidia-ml.so.1 is not there)";
  CHECK(none.text.find(why) != std::string::npos);
  CHECK(none.text.find(why) == none.text.rfind(why));
}

TEST_CASE("parallel.data: -1 is one rank for each GPU of the node") {
  const TempRun run;
  REQUIRE(run.build().code == 0);
  // The emulated device has no NCCL over processes: several ranks are refused, with their number.
  const auto said = [&](const std::string& places, const std::string& more) {
    return run
        .sh("run tiny.yaml --dry-run parallel.data=-1 device=cuda train.global_batch_size=8 " + more,
            "LTRAIN_EMULATED_PLACES=" + places)
        .text;
  };
  const std::string one = "0000:18:00.0", two = one + ",0000:19:00.0",
                    four = two + ",0000:c3:00.0,0000:c4:00.0";
  CHECK_THAT(said(four, ""), Catch::Contains("device = cuda: 4 ranks on GPUs"));
  CHECK_THAT(said(two, ""), Catch::Contains("device = cuda: 2 ranks on GPUs"));
  CHECK_THAT(said(four, "parallel.tensor=2"), Catch::Contains("device = cuda: 4 ranks on GPUs"));
  CHECK_THAT(said(four, "parallel.data=2"), Catch::Contains("device = cuda: 2 ranks on GPUs"));
  CHECK_THAT(said(one, ""), Catch::Contains("1 rank"));
}

TEST_CASE(
    "captured stages are refused where the driver does not order their transfers, before any is started") {
  const TempRun run;
  const std::string recipe = "run tiny.yaml device=cuda parallel.pipeline=2 parallel.data=1 cuda_graphs=on";
  const Outcome old = run.sh(recipe, "LTRAIN_EMULATED_DRIVER=12080");
  INFO(old.text);
  CHECK(old.code == 64);
  CHECK(old.text.find(
            "cuda_graphs = on: captured transfers of parallel.pipeline = 2 need a driver for CUDA 12.9 "
            "or newer, and this one is for 12.8; nearest valid value: off") != std::string::npos);
  const Outcome off = run.sh(recipe + " cuda_graphs=off", "LTRAIN_EMULATED_DRIVER=12080"),
                newer = run.sh(recipe, "LTRAIN_EMULATED_DRIVER=12090");
  for (const Outcome& o : {off, newer}) CHECK(o.text.find("need a driver") == std::string::npos);
}

TEST_CASE("a card that is too small: refused by its plan, and by the allocation with the plan's table") {
  const TempRun run;
  const std::string recipe = kRecipe + std::string("device=cuda ");
  const Outcome planned = run.sh(recipe, "LTRAIN_EMULATED_BYTES=1000000");
  INFO(planned.text);
  CHECK(planned.code == 78);
  CHECK(planned.text.find("the plan exceeds the GPU's memory: a rank needs") != std::string::npos);
  CHECK_FALSE(std::filesystem::exists(run.folder() + "/run"));
  const Outcome forced = run.sh(recipe + "--force", "LTRAIN_EMULATED_BYTES=100000");
  INFO(forced.text);
  CHECK(forced.code == 78);
  CHECK_THAT(forced.text,
             Catch::Contains(" bytes for the plan's tensors, which are one block: emulated\nGPU 0: "
                             "100000 of its 100000 bytes are free") &&
                 Catch::Contains("memory of rank 0") && Catch::Contains("\n  optimizer  ") &&
                 Catch::Contains("; what would help: a smaller train.micro_batch_size (now 2)"));

  // Beside the plan's block: a stream's workspace, at its first op that needs one.
  const Outcome beside = run.sh(recipe + "--force", "LTRAIN_EMULATED_BYTES=20000000");
  INFO(beside.text);
  CHECK(beside.code == 78);
  CHECK_THAT(
      beside.text,
      Catch::Contains("the GPU has no memory of 33554432 bytes for partial sums and matmul workspaces, first "
                      "of the op ") &&
          Catch::Contains("memory of rank 0") && Catch::Contains("in section step 1"));
}

TEST_CASE("a card that other processes fill: they are named, with changes that fit") {
  const TempRun run;
  const std::string libraries = run.folder() + "/nvml";
  std::filesystem::create_directory(libraries);
  std::filesystem::create_symlink(LTRAIN_NVML_STANDIN, libraries + "/libnvidia-ml.so.1");
  // 600 MiB are free.
  const std::string variables =
      "LTRAIN_EMULATED_PLACES=0000:18:00.0 LTRAIN_CUDA_LIBS=" + libraries +
      " LTRAIN_EMULATED_OTHERS=" + std::to_string((int64_t{1} << 40) - (int64_t{600} << 20)) + " ";
  const std::string recipe =
      "run tiny.yaml device=cuda parallel.data=1 model.num_hidden_layers=16 train.train_steps=1 "
      "train.micro_batch_size=1024 train.global_batch_size=1024 ";
  const Outcome o = run.sh(recipe, variables);
  INFO(o.text);
  CHECK(o.code == 78);
  CHECK_THAT(o.text, Catch::Contains("\nGPU 0: 629145600 of its 1099511627776 bytes are free\n"
                                     "process 4711 holds 12345678 bytes\nmemory of rank 0\n") &&
                         Catch::Contains("\nthe GPU has 1.2 GiB for this rank; enough by itself: ") &&
                         Catch::Contains("train.micro_batch_size: 512 (a rank needs "));
}
#endif
