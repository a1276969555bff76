// Attention on tensor cores against the CPU's: the kernels' whole index arithmetic, at sizes that are
// multiples of no tile.
#include "kernels/attention/attention.h"

#include <cstdlib>
#include <tuple>

#include "kernels/attention/attention_check.h"
#include "kernels/attention/attention_choice.h"
#include "tests/cuda/twin.h"
#ifdef LTRAIN_CUDA_EMULATED
#include "kernels/attention/attention_mma.h"
#include "kernels/attention/attention_wgmma.h"
#include "kernels/cuda/emulation_cuda.h"
#endif

using namespace ltrain;
using namespace ltrain::test;

namespace {

const DType kNarrow[] = {DType::bf16, DType::f16};

/// These kernels run during its lifetime.
struct ForcedAttention {
  explicit ForcedAttention(AttentionKernel k) {
    ::setenv("LTRAIN_ATTENTION", std::string(attention_name(k)).c_str(), 1);
  }
  ~ForcedAttention() { ::unsetenv("LTRAIN_ATTENTION"); }
};

/// False, and the test counts as skipped, where there is no GPU that runs the kernels for Hopper.
bool have_hopper() {
  if (!have_cuda()) return false;
  if (cuda::device_info().capability == 90) return true;
  skip_test("the GPU is no Hopper");
  return false;
}

struct FusedCase {
  int64_t batch, seq, heads, kv_heads, dim;
  bool dropout = false, documents = false;
  int64_t window = 0;
  double scale = 0, soft_cap = 0;
  int64_t values = 0;
};

/// Forward and backward of one tensor of queries, keys and values.
void check_fused(AttentionKernel kernel, DType t, const FusedCase& c) {
  CAPTURE(attention_name(kernel), dtype_name(t), c.batch, c.seq, c.heads, c.kv_heads, c.dim, c.dropout,
          c.documents, c.window, c.scale, c.soft_cap, c.values);
  const ForcedAttention forced(kernel);
  AttentionShape shape;
  shape.batch = c.batch, shape.seq = c.seq, shape.heads = c.heads, shape.kv_heads = c.kv_heads;
  shape.head_dim = c.dim, shape.value_dim = c.values;
  shape.window = c.window, shape.scale = c.scale, shape.soft_cap = c.soft_cap;
  Twin w(t);
  const int64_t rows = c.batch * c.seq, width = c.heads * (c.values ? c.values : c.dim);
  const auto qkv = w.random(t, {rows, shape.qkv_width()}, 2), dout = w.random(t, {rows, width});
  const auto out = w.blank(t, {rows, width}), lse = w.blank(wide(t), {c.batch, c.heads, c.seq});
  const auto dqkv = w.blank(t, {rows, shape.qkv_width()});
  const auto samples = w.of(DType::i64, {c.batch}, [](int64_t i) { return 5 + i; });
  const auto begins = w.of(DType::i32, {c.batch, c.seq}, [&](int64_t i) { return i % c.seq / 29 * 29; });
  w.check([&](Stream& s, const Twin::At& at) {
    Dropout d;
    if (c.dropout) d.p = 0.2, d.seed = 4, d.stream = 8, d.sample_index = at(samples), d.rows.seq = c.seq;
    const Tensor documents = c.documents ? at(begins) : Tensor();
    attention_forward(s, at(out), at(lse), at(qkv), shape, d, documents);
    attention_backward(s, at(dqkv), at(dout), at(qkv), at(out), at(lse), shape, d, documents);
  });
}

/// Rank 0 of 2 of the zig-zag cut, with its own keys (0) or with those of rank 1 (1).
void check_block(AttentionKernel kernel, DType t, int64_t each, int64_t dim, int64_t heads, int64_t kv_heads,
                 bool add, int64_t keys_of, int64_t values = 0) {
  CAPTURE(attention_name(kernel), dtype_name(t), each, dim, heads, kv_heads, add, keys_of, values);
  const ForcedAttention forced(kernel);
  const int64_t seq = 4 * each, rows = 2 * each;
  Twin w(t);
  const int64_t value = values ? values : dim;
  const int64_t q_width = heads * dim, kv_width = kv_heads * dim, v_width = kv_heads * value;
  const auto q = w.random(t, {rows, q_width}, 2), k = w.random(t, {rows, kv_width}, 2),
             v = w.random(t, {rows, v_width});
  const auto out = w.blank(DType::f32, {rows, heads * value}), lse = w.blank(DType::f32, {1, heads, rows});
  const auto low = w.random(t, {rows, heads * value}), dout = w.random(t, {rows, heads * value});
  const auto final_lse =
      w.of(DType::f32, {1, heads, rows}, [](int64_t i) { return 6.0 + 0.1 * static_cast<double>(i % 5); });
  const DType sum = add ? DType::f32 : t;
  const auto dq = w.random(sum, {rows, q_width}), dk = w.random(sum, {rows, kv_width}),
             dv = w.random(sum, {rows, v_width});
  w.check([&](Stream& s, const Twin::At& at) {
    AttentionBlock b;
    b.shape.batch = 1, b.shape.seq = seq, b.shape.heads = heads, b.shape.kv_heads = kv_heads,
    b.shape.head_dim = dim, b.shape.value_dim = values;
    b.q = {at(q), 0}, b.k = {at(k), 0}, b.v = {at(v), 0};
    b.q_at = Positions::two_runs(0, seq - each, each, seq);
    b.k_at = keys_of ? Positions::two_runs(each, 2 * each, each, seq) : b.q_at;
    attention_block_forward(s, at(out), at(lse), b);
    AttentionBlockGrads g{{at(dq), 0}, {at(dk), 0}, {at(dv), 0}, add, add};
    attention_block_backward(s, g, at(dout), at(low), at(final_lse), b);
  });
}

/// The last sample's values begin with NaN: the others must not see it, nor must rows that come before.
void check_apart(AttentionKernel kernel, DType t, int64_t seq, int64_t dim) {
  CAPTURE(attention_name(kernel), dtype_name(t), seq, dim);
  const ForcedAttention forced(kernel);
  AttentionShape shape;
  shape.batch = 2, shape.seq = seq, shape.head_dim = dim;
  Twin w(t);
  const int64_t rows = 2 * seq, width = shape.qkv_width();
  const auto qkv = w.of(t, {rows, width}, [&](int64_t i) {
    const bool bad = i / width == seq && i % width >= 2 * dim;
    return bad ? std::nan("") : static_cast<double>(random_value(3, i, 2));
  });
  const auto dout = w.random(t, {rows, dim});
  const auto out = w.blank(t, {rows, dim}), lse = w.blank(DType::f32, {2, 1, seq});
  const auto dqkv = w.blank(t, {rows, width});
  w.check([&](Stream& s, const Twin::At& at) {
    attention_forward(s, at(out), at(lse), at(qkv), shape, {});
    attention_backward(s, at(dqkv), at(dout), at(qkv), at(out), at(lse), shape, {});
  });
}

constexpr AttentionKernel kMma = AttentionKernel::mma, kWgmma = AttentionKernel::wgmma;

}  // namespace

TEST_CASE("attention on tensor cores: every head dim, lengths about the tiles") {
  if (!have_cuda()) return;
  for (DType t : kNarrow) {
    for (int64_t dim : {64, 96, 128, 192, 256})
      for (int64_t seq : {1, 17, 64, 65, 130}) check_fused(kMma, t, {1, seq, 1, 1, dim});
    check_fused(kMma, t, {1, 259, 1, 1, 64});  // several tiles of queries, keys, and of both
    check_fused(kMma, t, {1, 257, 1, 1, 128});
  }
}

TEST_CASE("attention on tensor cores: head dims that are padded, with values as wide and narrower") {
  if (!have_cuda()) return;
  for (DType t : kNarrow)
    for (int64_t dim : {32, 40, 80, 112, 160, 200}) {
      check_fused(kMma, t, {1, 75, 2, 1, dim, dim == 80, dim == 112});
      FusedCase narrow{2, 67, 2, 2, dim};
      narrow.values = dim / 2 / 8 * 8;
      check_fused(kMma, t, narrow);
    }
  for (DType t : kNarrow) check_block(kMma, t, 30, 80, 2, 1, true, 1);
  check_apart(kMma, DType::bf16, 70, 80);
}

TEST_CASE("attention on tensor cores: groups of heads, samples, documents, dropout") {
  if (!have_cuda()) return;
  for (DType t : kNarrow) {
    check_fused(kMma, t, {2, 67, 4, 2, 64});
    check_fused(kMma, t, {2, 133, 3, 1, 64, false, true});
    check_fused(kMma, t, {1, 70, 4, 4, 128, false, true});
    for (int64_t dim : {64, 96, 128, 192, 256})
      check_fused(kMma, t, {2, 75, 2, 1, dim, true, dim % 128 == 0});
  }
}

TEST_CASE("attention with values narrower than keys: every kernel that has them") {
  if (!have_cuda()) return;
  for (DType t : {DType::f32, DType::f64, DType::bf16})
    for (const auto& [dim, values] : {std::pair<int64_t, int64_t>{24, 16}, {7, 3}, {72, 40}})
      check_fused(AttentionKernel::base, t, {2, 67, 4, 2, dim, t == DType::f32, true, 0, 0, 0, values});
  for (DType t : kNarrow) {
    for (int64_t seq : {1, 17, 64, 65, 130, 259}) {
      FusedCase c{1, seq, 1, 1, 192};
      c.values = 128;
      check_fused(kMma, t, c);
    }
    check_fused(kMma, t, {2, 75, 2, 1, 192, true, true, 0, 0, 0, 128});
    check_fused(kMma, t, {2, 133, 2, 2, 192, false, false, 31, 0.3, 1.5, 128});
    check_block(kMma, t, 70, 192, 2, 1, true, 1, 128);
  }
}

TEST_CASE("attention in fp64 of the widest heads fits a block's shared memory") {
  if (!have_cuda()) return;
  check_fused(AttentionKernel::base, DType::f64, {1, 35, 2, 1, 256, false, true});
}

TEST_CASE("attention with a window: every kernel") {
  if (!have_cuda()) return;
  for (int64_t window : {1, 31, 64, 100}) {
    check_fused(AttentionKernel::base, DType::f32, {2, 133, 2, 1, 24, true, true, window});
    for (DType t : kNarrow) {
      check_fused(kMma, t, {1, 259, 1, 1, 64, false, false, window});
      check_fused(kMma, t, {2, 133, 2, 1, 128, true, true, window});
    }
  }
  if (!have_hopper()) return;
  for (int64_t window : {1, 63, 64, 130, 200})
    for (DType t : kNarrow) {
      check_fused(kWgmma, t, {1, 450, 1, 1, 64, false, false, window});
      check_fused(kWgmma, t, {2, 261, 4, 2, 128, false, true, window});
    }
}

// Scores are up to some units: a cap of 1.5 bends most of them, and a scale of 0.3 is that of no head dim
// here.
TEST_CASE("attention with a scale of its own and soft-capped scores: every kernel that has them") {
  if (!have_cuda()) return;
  for (DType t : {DType::f32, DType::f64}) {
    check_fused(AttentionKernel::base, t, {2, 67, 2, 1, 24, true, true, 31, 0.3, 1.5});
    check_fused(AttentionKernel::base, t, {1, 40, 2, 2, 136, false, false, 0, 0, 1.5});
  }
  for (DType t : kNarrow) {
    check_fused(kMma, t, {2, 133, 2, 1, 64, true, true, 0, 0.3});
    check_fused(kMma, t, {1, 259, 1, 1, 64, false, false, 0, 0.3, 1.5});
    for (int64_t dim : {96, 128, 192, 256})
      check_fused(kMma, t, {2, 75, 2, 1, dim, false, dim == 128, dim == 256 ? 31 : 0, 0.3, 1.5});
  }
  if (!have_hopper()) return;
  for (DType t : kNarrow) check_fused(kWgmma, t, {2, 261, 4, 2, 128, false, true, 0, 0.3});
}

TEST_CASE("attention on tensor cores: some queries against some keys, added to what is there or not") {
  if (!have_cuda()) return;
  for (DType t : kNarrow)
    for (const auto& [dim, heads, kv_heads, add] :
         {std::tuple{64, 2, 1, true}, {128, 2, 2, false}, {256, 1, 1, true}})
      for (int64_t keys_of : {0, 1}) check_block(kMma, t, 70, dim, heads, kv_heads, add, keys_of);
}

TEST_CASE("attention on Hopper's tensor cores: lengths about the tiles") {
  if (!have_hopper()) return;
  for (DType t : kNarrow) {
    for (int64_t dim : {64, 128})
      for (int64_t seq : {1, 17, 64, 65, 127, 128, 129, 193, 257})
        check_fused(kWgmma, t, {1, seq, 1, 1, dim});
    check_fused(kWgmma, t, {1, 450, 1, 1, 64});  // several tiles of queries, keys, and of both
    check_fused(kWgmma, t, {1, 450, 1, 1, 128});
  }
}

TEST_CASE("attention on Hopper's tensor cores: groups of heads, samples, documents") {
  if (!have_hopper()) return;
  for (DType t : kNarrow) {
    check_fused(kWgmma, t, {2, 67, 4, 2, 64});
    check_fused(kWgmma, t, {2, 133, 3, 1, 64, false, true});
    check_fused(kWgmma, t, {2, 300, 2, 2, 64, false, true});
    check_fused(kWgmma, t, {1, 70, 4, 4, 128, false, true});
    check_fused(kWgmma, t, {2, 261, 4, 2, 128, false, true});
  }
}

TEST_CASE(
    "attention on Hopper's tensor cores: some queries against some keys, added to what is there or not") {
  if (!have_hopper()) return;
  for (DType t : kNarrow)
    for (int64_t each : {70, 140})
      for (const auto& [dim, heads, kv_heads, add] : {std::tuple{64, 2, 1, true}, {128, 2, 2, false}})
        for (int64_t keys_of : {0, 1}) check_block(kWgmma, t, each, dim, heads, kv_heads, add, keys_of);
}

TEST_CASE("attention: a sample with NaN leaves the one before it alone") {
  if (!have_cuda()) return;
  check_apart(kMma, DType::bf16, 70, 64);
  if (!have_hopper()) return;
  for (int64_t dim : {64, 128}) check_apart(kWgmma, DType::bf16, 140, dim);
}

TEST_CASE("attention: the kernel is the fastest that can, or the one asked for, or refused by name") {
  using enum AttentionKernel;
  AttentionTraits h100{DType::bf16, 128, 90};
  const auto with = [&](auto change) {
    AttentionTraits t = h100;
    change(t);
    return choose_attention(t);
  };
  REQUIRE(choose_attention(h100) == wgmma);
  REQUIRE(with([](auto& t) { t.head_dim = 64, t.type = DType::f16; }) == wgmma);
  REQUIRE(with([](auto& t) { t.head_dim = 96; }) == mma);
  REQUIRE(with([](auto& t) { t.capability = 80; }) == mma);
  REQUIRE(with([](auto& t) { t.capability = 100; }) == mma);
  REQUIRE(with([](auto& t) { t.dropout = true; }) == mma);
  REQUIRE(with([](auto& t) { t.even_runs = false; }) == mma);
  REQUIRE(with([](auto& t) { t.soft_cap = true; }) == mma);
  REQUIRE(with([](auto& t) { t.soft_cap = t.dropout = true; }) == base);
  for (int64_t dim : {32, 48, 80, 112, 160, 200, 256})
    REQUIRE(with([&](auto& t) { t.head_dim = dim; }) == mma);
  for (int64_t dim : {8, 24, 33, 84, 252}) REQUIRE(with([&](auto& t) { t.head_dim = dim; }) == base);
  REQUIRE(with([](auto& t) { t.value_dim = 64; }) == mma);
  REQUIRE(with([](auto& t) { t.value_dim = 60; }) == base);
  REQUIRE(with([](auto& t) { t.value_dim = 128; }) == wgmma);
  REQUIRE(with([](auto& t) { t.head_dim = 192, t.value_dim = 128; }) == mma);
  REQUIRE(with([](auto& t) { t.aligned = false; }) == base);
  REQUIRE(with([](auto& t) { t.type = DType::f32; }) == base);
  REQUIRE_THROWS_WITH(with([](auto& t) { t.head_dim = 257; }), Catch::Contains("head dim 257"));
  {
    const ForcedAttention forced(mma);
    REQUIRE(choose_attention(h100) == mma);
    REQUIRE_THROWS_WITH(with([](auto& t) { t.head_dim = 20; }),
                        Catch::Contains("LTRAIN_ATTENTION=mma") && Catch::Contains("head dim 20"));
  }
  {
    const ForcedAttention forced(wgmma);
    REQUIRE_THROWS_WITH(with([](auto& t) { t.dropout = true; }), Catch::Contains("no dropout"));
    REQUIRE_THROWS_WITH(with([](auto& t) { t.capability = 80; }), Catch::Contains("compute capability 9.0"));
  }
  ::setenv("LTRAIN_ATTENTION", "fast", 1);
  REQUIRE_THROWS_WITH(choose_attention(h100), Catch::Contains("LTRAIN_ATTENTION=fast"));
  ::unsetenv("LTRAIN_ATTENTION");
}

TEST_CASE("attention: recorded before anything was compared, it takes what needs no comparison") {
  if (!have_cuda()) return;
  AttentionShape shape;
  shape.seq = 40;
  const int64_t bytes = 2 * shape.seq * shape.qkv_width();
  const auto memory = cuda::device_memory(4 * bytes);
  char* const at = static_cast<char*>(memory.get());
  const std::vector<bf16> ones(static_cast<size_t>(bytes / 2), bf16(1.0f));
  std::vector<bf16> out(static_cast<size_t>(shape.seq * shape.head_dim), bf16(0.0f));
  const auto s = cuda::make_cuda_stream("cuda");  // goes first: it may have work to do
  s->copy(at, ones.data(), bytes);
  const AttentionArgs args = fused_attention_args(DType::bf16, at, shape, {});
  const auto graph =
      s->capture([&] { attention_forward_cuda(*s, DType::bf16, false, at + bytes, at + 2 * bytes, args); });
  graph->replay();
  s->copy(out.data(), at + bytes, static_cast<int64_t>(2 * out.size()));
  s->synchronize();
  REQUIRE(std::all_of(out.begin(), out.end(), [](bf16 x) { return x == 1.0f; }));
}

TEST_CASE("attention: the kernels for Hopper agree with the others on this GPU") {
  if (!have_hopper()) return;
  const auto s = cuda::make_cuda_stream("cuda");
  for (DType t : kNarrow)
    for (int64_t dim : {64, 128}) REQUIRE(compare_attention_kernels(*s, t, dim) == "");
}

#ifdef LTRAIN_CUDA_EMULATED
namespace {

/// Forward and backward of random values, as bits.
struct Once {
  AttentionShape shape;
  std::shared_ptr<void> memory = cuda::device_memory(5 << 20);
  std::unique_ptr<Stream> stream = cuda::make_cuda_stream("cuda");  // goes first: it may have work to do

  std::vector<bf16> run(int64_t delta_bytes, AttentionKernel kernel = kMma) {
    const int64_t rows = shape.batch * shape.seq, wide = rows * shape.qkv_width(),
                  narrow = rows * shape.heads * shape.head_dim;
    char* const at = static_cast<char*>(memory.get());
    char *const qkv = at, *const out = at + (1 << 20), *const lse = at + (2 << 20),
                *const dout = at + (3 << 20), *const dqkv = at + (4 << 20);
    std::vector<bf16> values(static_cast<size_t>(wide)), result(static_cast<size_t>(wide));
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = bf16(static_cast<float>(random_value(1, static_cast<int64_t>(i), 1)));
    stream->copy(qkv, values.data(), 2 * wide);
    stream->copy(dout, values.data(), 2 * narrow);
    const AttentionArgs args = fused_attention_args(DType::bf16, qkv, shape, {});
    attention_mma_forward(*stream, DType::bf16, false, out, lse, args);
    const auto sink = [&](int64_t first) {
      return AttentionSink{dqkv + 2 * first * shape.head_dim, shape.qkv_width(), false, false};
    };
    const auto by = [&](const auto& backward) {
      backward(*stream, DType::bf16, sink(0), sink(shape.heads), sink(shape.heads + shape.kv_heads), dout,
               out, lse, args, delta_bytes);
    };
    if (kernel == kWgmma)
      by([](auto&&... of) { attention_wgmma_backward(of...); });
    else
      by(attention_mma_backward);
    stream->copy(result.data(), dqkv, 2 * wide);
    stream->synchronize();
    return result;
  }
};

/// Forward and backward on Hopper by so many blocks, some queries against some keys: all that they write, as
/// bits.
struct HopperAttention {
  Positions q_at = {}, k_at = {};
  int64_t batch = 1, seq = 0, heads = 1, kv_heads = 1, dim = 64;
  bool documents = false, wide = false;
  int64_t window = 0;

  struct Result {
    std::vector<char> out, lse, dq, dk, dv;
    bool operator==(const Result&) const = default;
  };
  Result run(int64_t blocks) const {
    const int64_t q = batch * q_at.rows * heads * dim, k = batch * k_at.rows * kv_heads * dim;
    const int64_t out_bytes = (wide ? 4 : 2) * q, lse_bytes = 4 * batch * q_at.rows * heads;
    const auto stream = cuda::make_cuda_stream("cuda");
    const auto put = [&](int64_t n, auto value) {
      std::vector<decltype(value(0))> v(static_cast<size_t>(n));
      for (size_t i = 0; i < v.size(); ++i) v[i] = value(static_cast<int64_t>(i));
      const int64_t bytes = n * static_cast<int64_t>(sizeof v[0]);
      const auto memory = cuda::device_memory(bytes);
      stream->copy(memory.get(), v.data(), bytes);
      stream->synchronize();
      return memory;
    };
    const auto random = [&](uint64_t seed) {
      return [=](int64_t i) { return bf16(static_cast<float>(random_value(seed, i, 2))); };
    };
    const auto unwritten = [](int64_t) { return char(-1); };
    const auto queries = put(q, random(1)), keys = put(k, random(2)), values = put(k, random(3)),
               out = put(out_bytes, unwritten), lse = put(lse_bytes, unwritten), result = put(q, random(4)),
               dout = put(q, random(5)), dq = put(4 * q, unwritten), dk = put(4 * k, unwritten),
               dv = put(4 * k, unwritten),
               begins = put(batch * seq, [&](int64_t i) { return static_cast<int32_t>(i % seq / 83 * 83); });
    AttentionArgs a;
    a.q = queries.get(), a.k = keys.get(), a.v = values.get();
    a.q_stride = heads * dim, a.k_stride = a.v_stride = kv_heads * dim;
    a.q_at = q_at, a.k_at = k_at, a.batch = batch, a.seq = seq;
    a.heads = a.all_heads = heads, a.kv_heads = kv_heads, a.head_dim = a.value_dim = dim;
    a.window = window;
    if (documents) a.documents = static_cast<const int32_t*>(begins.get());
    attention_wgmma_forward(*stream, DType::bf16, wide, out.get(), lse.get(), a, blocks);
    const int64_t kv_stride = kv_heads * dim;
    attention_wgmma_backward(*stream, DType::bf16, {dq.get(), heads * dim, true}, {dk.get(), kv_stride, true},
                             {dv.get(), kv_stride, true}, dout.get(), result.get(), lse.get(), a,
                             cuda::kScratchBytes, blocks);
    const auto got = [&](const std::shared_ptr<void>& from, int64_t bytes) {
      std::vector<char> to(static_cast<size_t>(bytes));
      stream->copy(to.data(), from.get(), bytes);
      stream->synchronize();
      return to;
    };
    return {.out = got(out, out_bytes),
            .lse = got(lse, lse_bytes),
            .dq = got(dq, 4 * q),
            .dk = got(dk, 4 * k),
            .dv = got(dv, 4 * k)};
  }
  /// One block for each tile, which is more than there could be, and a check that each number was written.
  void check() const {
    CAPTURE(batch, seq, heads, kv_heads, dim, documents, wide, window, q_at.rows);
    const Result one_each = run(1000);
    const auto unwritten = [](const std::vector<char>& bytes, size_t size) {
      const std::vector<char> none(size, char(-1));
      for (size_t i = 0; i < bytes.size(); i += size)
        if (std::equal(none.begin(), none.end(), bytes.begin() + static_cast<std::ptrdiff_t>(i))) return true;
      return false;
    };
    REQUIRE(!unwritten(one_each.out, wide ? 4 : 2));
    for (const std::vector<char>& of : {one_each.lse, one_each.dq, one_each.dk, one_each.dv})
      REQUIRE(!unwritten(of, 4));
    for (int64_t blocks : {1, 2, 4}) {
      CAPTURE(blocks);
      REQUIRE(run(blocks) == one_each);
    }
  }
};

double largest_difference(const std::vector<bf16>& a, const std::vector<bf16>& b) {
  double d = 0;
  for (size_t i = 0; i < a.size(); ++i) d = std::max(d, std::abs(as_double(a[i]) - as_double(b[i])));
  return d;
}

}  // namespace

TEST_CASE("attention on Hopper's tensor cores: the same bits by any number of blocks that stay") {
  const auto whole = [](HopperAttention f) {
    f.q_at = f.k_at = Positions(f.seq);
    return f;
  };
  for (int64_t dim : {64, 128}) {
    whole({.batch = 2, .seq = 390, .heads = 2, .dim = dim}).check();
    whole({.seq = 390, .heads = 4, .kv_heads = 2, .dim = dim, .documents = true}).check();
    whole({.seq = 390, .heads = 3, .dim = dim, .window = 70}).check();
    // Fewer tiles than blocks, and one.
    whole({.seq = 70, .heads = 2, .dim = dim}).check();
    whole({.seq = 1, .dim = dim}).check();
    // Two runs, into wide sums; the first one sees none of the keys, which begin behind it.
    for (bool wide : {false, true})
      HopperAttention{.q_at = Positions::two_runs(0, 600, 200, 800),
                      .k_at = Positions::two_runs(200, 400, 200, 800),
                      .seq = 800,
                      .heads = 2,
                      .dim = dim,
                      .wide = wide}
          .check();
  }
}

TEST_CASE("attention: kernels that disagree are told, with what and how much") {
  const auto s = cuda::make_cuda_stream("cuda");
  cuda::emulated_lanes_swapped = true;  // in those of mma.sync alone
  const std::string told = compare_attention_kernels(*s, DType::bf16, 64);
  cuda::emulated_lanes_swapped = false;
  REQUIRE_THAT(told, Catch::StartsWith("grouped heads: out differs by "));
}

TEST_CASE("attention: an error of 1 % in one of the results of one of the problems is told") {
  const auto s = cuda::make_cuda_stream("cuda");
  const auto told = [&](std::string_view tensor, int problem, bool half) {
    int met = 0;
    return compare_attention_kernels(
        *s, DType::bf16, 64, 136,
        [&](Stream& stream, std::string_view name, void* data, int64_t elements, bool wide) {
          if (name != tensor || met++ != problem) return;
          const auto scale = [&]<class T>(T) {
            std::vector<T> v(static_cast<size_t>(elements));
            const int64_t bytes = elements * static_cast<int64_t>(sizeof(T));
            stream.copy(v.data(), data, bytes);
            stream.synchronize();
            for (size_t i = half ? v.size() / 2 : 0; i < v.size(); ++i)
              v[i] = T(1.01f * static_cast<float>(v[i]));
            stream.copy(data, v.data(), bytes);
            stream.synchronize();
          };
          wide ? scale(0.0f) : scale(bf16());
        });
  };
  const std::string problems[] = {"grouped heads", "documents",
                                  "some queries against some keys, added to what is there"};
  for (const char* tensor : {"out", "dq", "dk", "dv"})
    for (int i = 0; i < 3; ++i) {
      CAPTURE(tensor, i);
      REQUIRE_THAT(told(tensor, i, false), Catch::StartsWith(problems[i] + ": " + tensor + " differs by "));
    }
  REQUIRE_THAT(told("dq", 0, true), Catch::StartsWith("grouped heads: dq differs by "));
  REQUIRE(told("none", 0, false) == "");
}

TEST_CASE("attention on tensor cores with two lanes exchanged is seen to be wrong") {
  Once o;
  o.shape.seq = 20;
  const auto right = o.run(1 << 20);
  cuda::emulated_lanes_swapped = true;
  const auto wrong = o.run(1 << 20);
  cuda::emulated_lanes_swapped = false;
  REQUIRE(largest_difference(right, wrong) >
          0.05 * largest_difference(right, std::vector<bf16>(right.size())));
  REQUIRE(largest_difference(right, o.run(1 << 20)) == 0);
}

TEST_CASE("attention's backward on Hopper's tensor cores some heads at a time, where the scratch is small") {
  Once o;
  o.shape.batch = 3, o.shape.seq = 21, o.shape.heads = 4, o.shape.kv_heads = 2;
  const int64_t of_a_pair = 8 * 2 * 96;
  const auto at_once = o.run(6 * of_a_pair, kWgmma);
  REQUIRE(largest_difference(at_once, o.run(of_a_pair, kWgmma)) == 0);
  REQUIRE(largest_difference(at_once, o.run(4 * of_a_pair, kWgmma)) == 0);
  REQUIRE_THROWS_WITH(o.run(of_a_pair - 4, kWgmma), Catch::Contains("21 queries of 2 heads"));
}

TEST_CASE("attention's backward on tensor cores some heads at a time, where the scratch is small") {
  Once o;
  o.shape.batch = 3, o.shape.seq = 21, o.shape.heads = 4, o.shape.kv_heads = 2;
  const int64_t of_a_pair = 4 * 2 * 21;
  const auto at_once = o.run(6 * of_a_pair);
  REQUIRE(largest_difference(at_once, o.run(of_a_pair)) == 0);
  REQUIRE(largest_difference(at_once, o.run(4 * of_a_pair)) == 0);
  REQUIRE_THROWS_WITH(o.run(of_a_pair - 4), Catch::Contains("21 queries of 2 heads"));
}
#endif
