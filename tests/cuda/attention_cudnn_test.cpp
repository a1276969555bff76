// Attention by cuDNN: on a GPU the library's, against the CPU's; without one what the op tells it, by the
// emulated library that takes the description at its word (kernels/emulation/emulated_cudnn_cuda.cpp).
#include "kernels/attention/attention_cudnn.h"

#include <cstdlib>

#include "tests/app/run_program.h"
#include "tests/cuda/twin.h"
#include "tests/parity/parity.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

bool have_cudnn() {
  if (!have_cuda()) return false;
  const std::string why = cudnn_missing();
  if (!why.empty()) skip_test("attention by cuDNN: " + why);
  return why.empty();
}

struct CudnnCase {
  int64_t batch, seq, heads, kv_heads, dim;
  bool dropout = false, documents = false;
  AttentionShape shape() const {
    AttentionShape s;
    s.batch = batch, s.seq = seq, s.heads = heads, s.kv_heads = kv_heads, s.head_dim = dim;
    return s;
  }
};

/// Forward and backward, on the CPU and on CUDA by `backend`. `slice_bytes`: the backward is the
/// deterministic one in slices of so many bytes; negative: the other one.
void check_cudnn(DType t, const CudnnCase& c, AttentionBackend backend, int64_t slice_bytes = -1) {
  CAPTURE(dtype_name(t), c.batch, c.seq, c.heads, c.kv_heads, c.dim, c.dropout, c.documents, slice_bytes);
  const AttentionShape shape = c.shape();
  Twin w(t);
  const int64_t rows = c.batch * c.seq, width = c.heads * c.dim;
  const auto qkv = w.random(t, {rows, shape.qkv_width()}, 2), dout = w.random(t, {rows, width});
  const auto out = w.blank(t, {rows, width}), lse = w.blank(wide(t), {c.batch, c.heads, c.seq});
  const auto dqkv = w.blank(t, {rows, shape.qkv_width()});
  const auto samples = w.of(DType::i64, {c.batch}, [](int64_t i) { return 5 + i; });
  const auto begins = w.of(DType::i32, {c.batch, c.seq}, [&](int64_t i) { return i % c.seq / 29 * 29; });
  std::shared_ptr<void> memory;
  w.check([&](Stream& s, const Twin::At& at) {
    Dropout d;
    if (c.dropout) d.p = 0.2, d.seed = 4, d.stream = 8, d.sample_index = at(samples), d.rows.seq = c.seq;
    const Tensor documents = c.documents ? at(begins) : Tensor();
    CudnnWorkspace workspace;
    workspace.deterministic = slice_bytes >= 0;
    if (s.device() == DeviceKind::cuda) {
      s.attention_backend = backend;
      Tensor& bytes = workspace.memory;
      bytes.dtype = DType::u8, bytes.device = DeviceKind::cuda;
      bytes.shape = {workspace.deterministic ? cudnn_slice(shape, slice_bytes).bytes
                                             : cudnn_backward_workspace(shape)};
      memory = cuda::device_memory(bytes.bytes());
      bytes.data = memory.get();
    }
    attention_forward(s, at(out), at(lse), at(qkv), shape, d, documents);
    attention_backward(s, at(dqkv), at(dout), at(qkv), at(out), at(lse), shape, d, documents, workspace);
  });
}

/// Forward where it must be cuDNN's.
void force(DType t, const CudnnCase& c) {
  const auto memory = cuda::device_memory(4 << 20);
  const auto s = cuda::make_cuda_stream("cuda");  // goes first: it may have work to do
  s->attention_backend = AttentionBackend::cudnn;
  const auto at = [&](int64_t place, DType type, Shape shape) {
    Tensor x;
    x.data = static_cast<char*>(memory.get()) + (place << 20);
    x.dtype = type, x.device = DeviceKind::cuda, x.shape = shape;
    return x;
  };
  const int64_t rows = c.batch * c.seq;
  Dropout d;
  if (c.dropout) d.p = 0.2, d.sample_index = at(3, DType::i64, {c.batch}), d.rows.seq = c.seq;
  attention_forward(*s, at(0, t, {rows, c.heads * c.dim}), at(1, wide(t), {c.batch, c.heads, c.seq}),
                    at(2, t, {rows, c.shape().qkv_width()}), c.shape(), d,
                    c.documents ? at(3, DType::i32, {c.batch, c.seq}) : Tensor());
  s->synchronize();
}

TinyOptions tiny_on_cuda(const std::string& architecture) {
  TinyOptions o;
  o.architecture = architecture;
  o.precision = "bf16";
  o.hidden = 16, o.heads = 2, o.intermediate = 24, o.vocab = 37, o.seq = 10;
  o.kv_heads = architecture == "gpt2" ? 2 : 1;
  o.global_batch = 4, o.micro_batch = 2, o.steps = 3;
  o.device = DeviceKind::cuda;
  return o;
}

#ifdef LTRAIN_CUDA_EMULATED
/// The emulated library as if it were something else.
class As {
 public:
  explicit As(const char* what) { ::setenv("LTRAIN_EMULATED_CUDNN", what, 1); }
  ~As() {
    ::unsetenv("LTRAIN_EMULATED_CUDNN");
    forget_cudnn_checks();
  }
};
#endif

/// False, and the test counts as skipped, where cuDNN is older than 9.16: it takes no backward of lengths
/// that 128 does not divide.
bool takes_odd_lengths() {
  int major = 0, minor = 0;
  if (std::sscanf(cudnn_version().c_str(), "%d.%d", &major, &minor) != 2) return true;  // the emulated one
  if (major > 9 || minor >= 16) return true;
  skip_test(
      fmt::format("cuDNN {}: backward of lengths that 128 does not divide needs 9.16", cudnn_version()));
  return false;
}

}  // namespace

TEST_CASE("attention by cuDNN equals the CPU's: samples, groups of heads, head dims, odd lengths") {
  if (!have_cudnn() || !takes_odd_lengths()) return;
  constexpr auto cudnn = AttentionBackend::cudnn;  // fails rather than to leave it to other kernels
  for (DType t : {DType::bf16, DType::f16}) {
    check_cudnn(t, {2, 128, 4, 2, 64}, cudnn);
    check_cudnn(t, {3, 67, 3, 1, 64}, cudnn);
    check_cudnn(t, {1, 130, 2, 2, 128}, cudnn);
    check_cudnn(t, {2, 70, 2, 1, 80}, cudnn);
  }
}

TEST_CASE(
    "the deterministic backward of cuDNN equals the CPU's, in one piece and in slices of heads and samples") {
  if (!have_cudnn() || !takes_odd_lengths()) return;
  constexpr auto cudnn = AttentionBackend::cudnn;
  for (DType t : {DType::bf16, DType::f16}) {
    const CudnnCase grouped{2, 128, 4, 2, 64};
    check_cudnn(t, grouped, cudnn, kCudnnSliceBytes);
    check_cudnn(t, grouped, cudnn, 0);                                          // a group of a sample
    check_cudnn(t, grouped, cudnn, cudnn_slice(grouped.shape(), 0).bytes * 2);  // a sample
    check_cudnn(t, {3, 68, 3, 1, 64}, cudnn, 0);
    check_cudnn(t, {2, 72, 3, 3, 80}, cudnn, 0);
    check_cudnn(t, {2, 67, 2, 2, 64}, cudnn, 0);  // not cut: a head's lse would begin anywhere
  }
}

TEST_CASE(
    "slices of cuDNN's deterministic backward divide samples and groups of heads, the largest that fit") {
  const AttentionShape llama = CudnnCase{4, 8192, 32, 8, 128}.shape();
  const int64_t pairs = int64_t{2} * 8192 * 8192;
  const auto slice = [](const AttentionShape& s, int64_t bytes) {
    const CudnnSlice cut = cudnn_slice(s, bytes);
    CHECK(s.batch % cut.samples == 0);
    CHECK(s.kv_heads % cut.kv_heads == 0);
    return std::pair(cut.samples, cut.kv_heads);
  };
  using Pair = std::pair<int64_t, int64_t>;
  CHECK(slice(llama, int64_t{1} << 40) == Pair(4, 8));
  CHECK(slice(llama, 3 * 32 * pairs) == Pair(2, 8));
  CHECK(slice(llama, kCudnnSliceBytes) == Pair(1, 4));
  CHECK(slice(CudnnCase{1, 16384, 32, 8, 128}.shape(), kCudnnSliceBytes) == Pair(1, 1));
  CHECK(slice(llama, 0) == Pair(1, 1));
  CHECK(cudnn_slice(llama, 0).bytes > 4 * pairs);
  CHECK(cudnn_backward_workspace(llama, true) == cudnn_slice(llama, kCudnnSliceBytes).bytes);
  CHECK(cudnn_backward_workspace(llama, true) <= kCudnnSliceBytes);
  CHECK(slice(CudnnCase{4, 8190, 32, 8, 128}.shape(), 0) == Pair(4, 8));
  for (int64_t bytes = 1 << 20; bytes < int64_t{1} << 36; bytes += bytes / 3) {
    const CudnnSlice cut = cudnn_slice(llama, bytes);
    CHECK((cut.bytes <= bytes || (cut.samples == 1 && cut.kv_heads == 1)));
  }
}

TEST_CASE(
    "attention by cuDNN of queries, keys and values that lie apart, and parts of them by native kernels") {
  if (!have_cudnn()) return;
  for (bool part : {false, true}) {
    CAPTURE(part);
    Twin w(DType::bf16);
    const CudnnCase c{2, 70, 4, 2, 64};
    const int64_t rows = c.batch * c.seq;
    const auto q = w.random(DType::bf16, {rows, 4 * 64 + 16}, 2),
               k = w.random(DType::bf16, {rows, 2 * 64 + 8}, 2),
               v = w.random(DType::bf16, {rows, 2 * 64 + 40});
    const auto out = w.blank(DType::bf16, {rows, 4 * 64}), lse = w.blank(DType::f32, {c.batch, 4, c.seq});
    w.check([&](Stream& s, const Twin::At& at) {
      s.attention_backend = part ? AttentionBackend::automatic : AttentionBackend::cudnn;
      AttentionBlock b;
      b.shape = c.shape();
      b.q = {at(q), 16}, b.k = {at(k), 8}, b.v = {at(v), 24};
      b.q_at = b.k_at = c.seq;
      if (part) {  // the later queries against the earlier keys
        b.shape.seq = 2 * c.seq;
        b.q_at = Positions::run(c.seq, c.seq, 2 * c.seq), b.k_at = Positions::run(0, c.seq, 2 * c.seq);
      }
      attention_block_forward(s, at(out), at(lse), b);
    });
  }
}

TEST_CASE("attention that cuDNN cannot take goes to native kernels, or fails where it must not") {
  if (!have_cudnn()) return;
  const auto both = [](DType t, const CudnnCase& c, const std::string& why) {
    check_cudnn(t, c, AttentionBackend::automatic);
    REQUIRE_THROWS_WITH(force(t, c), Catch::Contains("attention_backend: cudnn: ") && Catch::Contains(why));
  };
  force(DType::bf16, {1, 40, 2, 1, 16});
  both(DType::f32, {1, 40, 2, 1, 16}, "bf16 and fp16, not f32");
  both(DType::bf16, {1, 40, 2, 1, 20}, "multiples of 8");
  both(DType::bf16, {1, 40, 2, 1, 64, true}, "dropout");
  both(DType::bf16, {1, 40, 2, 1, 64, false, true}, "document");
}

TEST_CASE("training with cuDNN's attention: exact memory, workspace included, losses of the native kernels") {
  if (!have_cudnn() || !takes_odd_lengths()) return;
  for (const std::string architecture : {"llama", "gpt2"})
    for (bool graphs : {false, true}) {
      CAPTURE(architecture, graphs);
      TinyOptions o = tiny_on_cuda(architecture);
      o.cuda_graphs = graphs;
      const TinyResult own = train_tiny(o);
      o.attention_backend = AttentionBackend::automatic;
      const TinyResult forward = train_tiny(o);
      o.attention_backend = AttentionBackend::cudnn;
      const TinyResult deterministic = train_tiny(o);
      CHECK(train_tiny(o).losses == deterministic.losses);
      o.deterministic = false;
      const TinyResult both = train_tiny(o);
      for (const TinyResult* r : {&forward, &deterministic, &both}) {
        CHECK(r->used_bytes == r->plan_bytes);
        for (size_t i = 0; i < own.losses.size(); ++i)
          CHECK(std::abs(r->losses[i] / own.losses[i] - 1) < 2e-3);
      }
      CHECK(forward.plan_bytes == own.plan_bytes);
      CHECK(both.plan_bytes[0] > own.plan_bytes[0]);
      CHECK(deterministic.plan_bytes[0] > both.plan_bytes[0]);
    }
}

#ifdef LTRAIN_CUDA_EMULATED
TEST_CASE("what cuDNN computes is what counts: a wrong one is seen, after it has passed the comparison") {
  forget_cudnn_checks();
  TinyOptions o = tiny_on_cuda("llama");
  o.deterministic = false;
  const auto losses = [&](AttentionBackend b, const char* as) {  // compared once, as what it was first
    ::setenv("LTRAIN_EMULATED_CUDNN", as, 1);
    o.attention_backend = b;
    return train_tiny(o).losses;
  };
  const auto right = losses(AttentionBackend::automatic, "");
  CHECK(losses(AttentionBackend::automatic, "wrong") != right);
  CHECK(losses(AttentionBackend::automatic, "wrong_backward") != right);
  CHECK(losses(AttentionBackend::automatic, "") == right);
  // Without a plan: native kernels, bit for bit, and an error where there must be cuDNN.
  CHECK(losses(AttentionBackend::automatic, "refuses") == losses(AttentionBackend::own, ""));
  REQUIRE_THROWS_WITH(losses(AttentionBackend::cudnn, "refuses"),
                      Catch::Contains("attention_backend: cudnn: cuDNN: the emulated one has no plan"));
  // Runs differ where the backward adds in no order, and not where it was asked for the other one.
  CHECK(losses(AttentionBackend::cudnn, "any_order") != losses(AttentionBackend::cudnn, "any_order"));
  o.deterministic = true;
  CHECK(losses(AttentionBackend::cudnn, "any_order") == losses(AttentionBackend::cudnn, "any_order"));
  CHECK(losses(AttentionBackend::cudnn, "wrong_backward") != losses(AttentionBackend::cudnn, "any_order"));
  ::unsetenv("LTRAIN_EMULATED_CUDNN");
  forget_cudnn_checks();
}

TEST_CASE(
    "several ranks with cuDNN's attention, where heads are exchanged and where a ring leaves it no call") {
  TinyOptions o = tiny_on_cuda("gpt2");
  o.seq = 8, o.micro_batch = 1;
  const TinyResult one = train_tiny(o);
  o.deterministic = false;
  const auto check = [&](AttentionBackend b, auto change) {
    TinyOptions many = o;
    many.attention_backend = b;
    change(many);
    const TinyResult r = train_tiny(many);
    CHECK(r.used_bytes == r.plan_bytes);
    for (size_t i = 0; i < one.losses.size(); ++i) CHECK(std::abs(r.losses[i] / one.losses[i] - 1) < 2e-3);
  };
  check(AttentionBackend::cudnn, [](TinyOptions& m) { m.context = 2, m.context_comm = "a2a"; });
  check(AttentionBackend::automatic, [](TinyOptions& m) { m.context = 2; });
  check(AttentionBackend::cudnn, [](TinyOptions& m) { m.tensor = 2; });
  check(AttentionBackend::cudnn, [](TinyOptions& m) { m.pipeline = 2, m.schedule = "zb-h1"; });
  o.deterministic = true;
  check(AttentionBackend::cudnn, [](TinyOptions& m) { m.context = 2, m.context_comm = "a2a"; });
}

TEST_CASE("a cuDNN that differs from the kernels here is not used, and named with the amount") {
  const auto s = cuda::make_cuda_stream("cuda");
  const AttentionShape shape = CudnnCase{1, 40, 2, 1, 64}.shape();
  const auto why = [&](CudnnPass pass) { return cudnn_unusable(*s, DType::bf16, shape, pass); };
  using enum CudnnPass;
  forget_cudnn_checks();
  CHECK(why(forward) == "");
  CHECK(why(backward) == "");
  CHECK(why(deterministic_backward) == "");
  forget_cudnn_checks();
  {
    const As as("wrong");
    CHECK(why(forward).find("differs by ") != std::string::npos);
    CHECK(why(backward).find("backward") != std::string::npos);
  }
  {
    const As as("wrong_backward");
    CHECK(why(forward) == "");
    CHECK(why(backward).find("differs by ") != std::string::npos);
    CHECK(why(deterministic_backward).find("the deterministic backward of bf16") != std::string::npos);
  }
  {
    const As as("wanders");
    CHECK(why(forward).find("other bits") != std::string::npos);
    CHECK(why(deterministic_backward).find("other bits when the deterministic backward") !=
          std::string::npos);
    CHECK(why(backward) == "");  // asked for only where bits may differ
  }
  {
    const As as("missing");
    CHECK(why(forward).find("libcudnn is not there") != std::string::npos);
  }
  {
    const As as("refuses");
    CHECK(why(backward).find("has no plan") != std::string::npos);
  }
  const auto graph = s->capture([&] { CHECK(why(forward).find("recorded") != std::string::npos); });
  CHECK(why(forward) == "");
}

TEST_CASE("ltrain run says whose attention it takes, and why not cuDNN's") {
  const TempRun run;
  REQUIRE(run.build().code == 0);
  const auto train = [&](const std::string& settings, const std::string& as) {
    return run.sh(
        "run tiny.yaml device=cuda parallel.data=1 parallel.zero_stage=0 model.hidden_size=16 precision=bf16 "
        "model.intermediate_size=24 model.vocab_size=259 data.seq_length=8 train.micro_batch_size=2 "
        "train.global_batch_size=4 train.train_steps=2 train.eval_interval=0 checkpoint.save_interval=0 "
        "checkpoint.save_at_end=false checkpoint.resume=never schedule.lr_decay_steps=4 " +
            settings,
        "LTRAIN_EMULATED_CUDNN=" + as);
  };
  const auto said = [&](const std::string& settings, const std::string& as, const std::string& line,
                        int code = 0) {
    const Outcome o = train(settings, as);
    INFO(o.text);
    CHECK(o.code == code);
    CHECK(o.text.find(line) != std::string::npos);
    if (code == 0) CHECK(o.text.find(line) == o.text.rfind(line));  // named once
  };
  const std::string own = "attention: native kernels, in plain arithmetic, for bf16 with head dim 8";
  said("", "", "attention: cuDNN emulated forward; backward by native kernels");
  said("deterministic=false", "", "attention: cuDNN emulated, forward and backward");
  said("attention_backend=cudnn", "", "attention: cuDNN emulated, forward and deterministic backward");
  said("attention_backend=own", "", own + "\n");
  said("", "missing", own + "; not cuDNN: libcudnn is not there");
  said("", "wrong", own + "; not cuDNN: cuDNN emulated is not to be trusted");
  said("deterministic=false", "wrong_backward", "differs by");
  said("precision=fp32", "", "not cuDNN: cuDNN takes bf16 and fp16, not f32");
  said("attention_backend=cudnn", "wanders", "gives other bits when the forward", 64);
  said("attention_backend=cudnn", "wrong_backward", "the deterministic backward of bf16 of head dim 8", 64);
  said("attention_backend=cudnn", "missing", "attention_backend: cudnn: libcudnn is not there", 64);

  const auto json = [&](const std::string& file) {
    return nlohmann::json::parse(read_file(run.folder() + "/run/" + file));
  };
  for (const std::string deterministic : {"false", "true"}) {
    REQUIRE(train("attention_backend=cudnn deterministic=" + deterministic, "").code == 0);
    CHECK(json("plan.json")["ranks"][0]["memory_bytes"]["arena"]["total"] ==
          json("logs/usage-00000.json")["arena_bytes"]);
  }
}
#endif
