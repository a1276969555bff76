// Attention over a sequence that in-process ranks share, against the same attention on one rank.
#include "models/attention/context_attention.h"

#include <omp.h>

#include <barrier>
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <mutex>
#include <thread>

#include "kernels/tensor/rng.h"
#include "tests/models/differences.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

struct AttentionJob {
  AttentionShape shape{2, 32, 8, 8, 4};
  double dropout = 0;
  bool packed = false;
  int ranks = 1;
  std::string comm = "p2p";
  int inner = 2;
  std::function<void(std::vector<double>& qkv)> change;  ///< gradient of the full input
};

/// Whole tensors: (batch, seq, width).
struct Result {
  std::vector<double> out, dqkv;
};

std::vector<double> input(const AttentionJob& j, int64_t width, uint64_t stream) {
  std::vector<double> x(j.shape.batch * j.shape.seq * width);
  for (size_t i = 0; i < x.size(); ++i) x[i] = 3.0 * to_uniform(philox(5, stream, i).v[0]) - 1.5;
  return x;
}

void run_rank(const AttentionJob& j, int rank, std::unique_ptr<Communicator> comm,
              const std::vector<double>& qkv, Result& result, std::mutex& mutex, std::barrier<>& end) {
  omp_set_num_threads(1);
  Mesh mesh;
  mesh.degree = {1, 1, j.ranks, 1, 1, 1, 1, 1, 1};
  mesh.rank = rank;
  GroupSet groups(
      mesh,
      [&](const GroupRequest& r) {
        return r.name == "context" && comm ? std::move(comm)
                                           : make_single_group(r.name, r.axes);  // the others stay unused
      },
      [](const std::string& name) { return make_worker_stream(name); });
  auto compute = make_inline_stream("compute");
  CpuArena arena(int64_t{1} << 22);
  ParameterStore store;
  Step step{*compute, arena, store, groups.groups(), DType::f64, 1};
  const auto tensor = [&](const char* name, DType t, Shape s) {
    return arena.allocate(MemoryKind::temporaries, name, t, s);
  };
  MicroBatch mb;
  mb.batch = j.shape.batch;
  mb.cut = {j.shape.seq, j.ranks, rank, enum_value<ContextComm>(j.comm).value(), j.inner};
  const Positions at = mb.cut.rows();
  mb.seq = at.rows;
  mb.sample_index = tensor("samples", DType::i64, {mb.batch});
  for (int64_t b = 0; b < mb.batch; ++b) mb.sample_index.ptr<int64_t>()[b] = 100 + b;
  if (j.packed) {
    mb.documents = tensor("documents", DType::i32, {mb.batch, j.shape.seq});
    for (int64_t i = 0; i < mb.documents.elements(); ++i)
      mb.documents.ptr<int32_t>()[i] = static_cast<int32_t>(i % j.shape.seq / 7 * 7);
  }
  const auto part = [&](const std::vector<double>& from, const char* name, int64_t width) {
    const Tensor t = tensor(name, DType::f64, {mb.rows(), width});
    for (int64_t b = 0; b < mb.batch; ++b)
      for (int64_t r = 0; r < mb.seq; ++r)
        std::copy_n(from.data() + (b * j.shape.seq + at.at(r)) * width, width,
                    t.ptr<double>() + (b * mb.seq + r) * width);
    return t;
  };
  const auto whole = [&](const Tensor& t, std::vector<double>& to) {
    const int64_t width = t.cols();
    to.resize(j.shape.batch * j.shape.seq * width);
    for (int64_t b = 0; b < mb.batch; ++b)
      for (int64_t r = 0; r < mb.seq; ++r)
        std::copy_n(t.ptr<double>() + (b * mb.seq + r) * width, width,
                    to.data() + (b * j.shape.seq + at.at(r)) * width);
  };
  Dropout drop;
  drop.p = j.dropout, drop.seed = 9, drop.stream = 4, drop.sample_index = mb.sample_index;
  const int64_t q_width = j.shape.heads * j.shape.head_dim;
  AttentionSaved saved;
  saved.qkv = part(qkv, "qkv", j.shape.qkv_width());
  const Tensor dout = part(input(j, q_width, 3), "dout", q_width);
  Tensor dqkv = tensor("dqkv", DType::f64, {mb.rows(), j.shape.qkv_width()});
  if (j.ranks == 1) {
    saved.out = tensor("out", DType::f64, {mb.rows(), q_width});
    saved.lse = tensor("lse", DType::f64, {mb.batch, j.shape.heads, mb.seq});
    attention_forward(*compute, saved.out, saved.lse, saved.qkv, j.shape, drop, mb.documents);
    attention_backward(*compute, dqkv, dout, saved.qkv, saved.out, saved.lse, j.shape, drop, mb.documents);
  } else {
    context_attention_forward(step, mb, j.shape, drop, {}, saved);
    context_attention_backward(step, mb, j.shape, drop, {}, dqkv, dout, saved);
  }
  groups.synchronize();
  {
    std::lock_guard lock(mutex);
    whole(saved.out, result.out);
    whole(dqkv, result.dqkv);
  }
  end.arrive_and_wait();  // nobody leaves while others still receive
}

Result run(const AttentionJob& j) {
  std::vector<double> qkv = input(j, j.shape.qkv_width(), 2);
  if (j.change) j.change(qkv);
  Result result;
  std::mutex mutex;
  auto comms = make_in_process_group(j.ranks, "context", Axis::context);
  std::vector<std::exception_ptr> errors(j.ranks);
  std::vector<std::thread> threads;
  std::barrier end(j.ranks);
  for (int r = 0; r < j.ranks; ++r)
    threads.emplace_back([&, r] {
      try {
        run_rank(j, r, std::move(comms[r]), qkv, result, mutex, end);
      } catch (...) {
        errors[r] = std::current_exception();
        end.arrive_and_drop();
      }
    });
  for (auto& t : threads) t.join();
  for (auto& e : errors)
    if (e) std::rethrow_exception(e);
  return result;
}

struct Layout {
  const char* comm;
  int ranks, inner;
};
constexpr Layout kLayouts[] = {{"p2p", 2, 1},        {"p2p", 4, 1},        {"p2p", 8, 1},
                               {"all_gather", 2, 1}, {"all_gather", 4, 1}, {"all_gather", 8, 1},
                               {"a2a", 2, 1},        {"a2a", 4, 1},        {"a2a", 8, 1},
                               {"a2a+p2p", 4, 2},    {"a2a+p2p", 8, 2},    {"a2a+p2p", 8, 4}};

AttentionJob with(AttentionJob j, const Layout& l) {
  j.ranks = l.ranks, j.comm = l.comm, j.inner = l.inner;
  return j;
}

}  // namespace

TEST_CASE("attention over a cut sequence is the permuted result of one rank") {
  for (double dropout : {0.0, 0.2})
    for (bool packed : {false, true}) {
      AttentionJob one;
      one.dropout = dropout;
      one.packed = packed;
      const Result base = run(one);
      for (const Layout& l : kLayouts) {
        INFO(l.comm << " on " << l.ranks << " (" << l.inner << "), dropout " << dropout << " packed "
                    << packed);
        const Result cut = run(with(one, l));
        CHECK(largest_difference(cut.out, base.out) < 1e-13);
        CHECK(largest_difference(cut.dqkv, base.dqkv) < 1e-12);
        // Heads on whole sequences: the same sums, and nothing else was moved wrongly.
        if (std::string(l.comm) == "a2a") CHECK((cut.out == base.out && cut.dqkv == base.dqkv));
      }
    }
}

TEST_CASE("grouped heads: each rank's share of queries reads its share of keys") {
  AttentionJob one;
  one.shape = {1, 48, 4, 2, 8, 4, 12};  // 4 of 12 heads, as on a tensor-parallel rank
  one.dropout = 0.2;
  const Result base = run(one);
  for (const Layout& l : {Layout{"p2p", 4, 1}, Layout{"p2p", 3, 1}, Layout{"all_gather", 3, 1},
                          Layout{"a2a", 2, 1}, Layout{"a2a+p2p", 6, 2}, Layout{"all_gather", 16, 1}}) {
    INFO(l.comm << " on " << l.ranks);
    const Result cut = run(with(one, l));
    CHECK(largest_difference(cut.out, base.out) < 1e-13);
    CHECK(largest_difference(cut.dqkv, base.dqkv) < 1e-12);
  }
}

TEST_CASE("with values of one every output is one") {
  AttentionJob one;
  one.packed = true;
  one.change = [&](std::vector<double>& qkv) {
    const int64_t width = one.shape.qkv_width(), v = (one.shape.heads + one.shape.kv_heads) * 4;
    for (size_t i = 0; i < qkv.size(); ++i)
      if (static_cast<int64_t>(i) % width >= v) qkv[i] = 1;
  };
  for (const Layout& l : kLayouts) {
    const Result cut = run(with(one, l));
    for (double x : cut.out) REQUIRE(std::abs(x - 1) < 1e-14);
  }
}

TEST_CASE("what comes later, or is another document, is not seen") {
  AttentionJob one;
  one.packed = true;
  AttentionJob changed = one;
  constexpr int64_t kAt = 17;  // in the document of positions 14 to 20
  changed.change = [&](std::vector<double>& qkv) {
    for (int64_t i = 0; i < one.shape.qkv_width(); ++i) qkv[kAt * one.shape.qkv_width() + i] += 0.5;
  };
  const int64_t width = one.shape.heads * one.shape.head_dim;
  for (const Layout& l : kLayouts) {
    INFO(l.comm << " on " << l.ranks);
    const Result a = run(with(one, l)), b = run(with(changed, l));
    for (int64_t t = 0; t < one.shape.batch * one.shape.seq; ++t) {
      double moved = 0;
      for (int64_t i = 0; i < width; ++i) moved += std::abs(a.out[t * width + i] - b.out[t * width + i]);
      INFO("position " << t);
      const bool sees = t >= kAt && t < 21;
      CHECK((moved > 0) == sees);
    }
  }
}
