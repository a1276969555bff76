#include <catch2/catch.hpp>
#include <cstring>
#include <limits>
#include <mutex>

#include "tests/parallel/group_support.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

/// The reduction by definition: ascending rank, in the accumulator's type, rounded once.
template <class T, class A>
std::vector<T> reduced_by_definition(int size, int64_t n, ReduceOp op) {
  std::vector<std::vector<T>> in;
  for (int r = 0; r < size; ++r) in.push_back(values<T>(r, n));
  std::vector<T> out;
  for (int64_t i = 0; i < n; ++i) {
    A a = static_cast<A>(in[0][i]);
    for (int r = 1; r < size; ++r) {
      const A b = static_cast<A>(in[r][i]);
      a = op == ReduceOp::sum ? a + b : op == ReduceOp::max ? std::max(a, b) : std::min(a, b);
    }
    out.push_back(static_cast<T>(a));
  }
  return out;
}

template <class T, class A>
void check_reductions(Kind kind, int size) {
  INFO(kind_name(kind) << ", " << size << " ranks, " << dtype_name(dtype_of<T>::value));
  on_ranks(kind, size, [&](Communicator& c, Stream& s) {
    auto require = [&](bool ok, const char* what, int64_t n) {
      if (!ok)
        throw std::runtime_error(fmt::format("rank {}: {} of {} elements is wrong", c.rank(), what, n));
    };
    for (int64_t n : {0, 1, 2, 3, 7, 64, 1000, 4099, 70001}) {
      for (ReduceOp op : {ReduceOp::sum, ReduceOp::max, ReduceOp::min}) {
        auto v = values<T>(c.rank(), n);
        c.all_reduce(s, tensor(v), op);
        require(same_bits(v, reduced_by_definition<T, A>(size, n, op)), reduce_op_name(op), n);
      }
      for (int root = 0; root < size; ++root) {  // one after the other, as the steps of a product have them
        auto v = values<T>(c.rank(), n);
        c.reduce(s, tensor(v), root);
        if (c.rank() == root)
          require(same_bits(v, reduced_by_definition<T, A>(size, n, ReduceOp::sum)), "reduce", n);
      }
      // reduce-scatter then all-gather gives the same bits, also inside one tensor.
      const int64_t part_size = n / size, whole = part_size * size;
      const std::vector<T> want = reduced_by_definition<T, A>(size, whole, ReduceOp::sum);
      auto in = values<T>(c.rank(), whole);
      std::vector<T> part(part_size), out(whole);
      c.reduce_scatter(s, tensor(part), tensor(in));
      c.all_gather(s, tensor(out), tensor(part));
      require(same_bits(out, want), "reduce_scatter + all_gather", whole);
      auto both = values<T>(c.rank(), whole);
      Tensor t = tensor(both);
      Tensor mine = t.flat(c.rank() * part_size, {part_size});
      c.reduce_scatter(s, mine, t);
      c.all_gather(s, t, mine);
      require(same_bits(both, want), "the same in place", whole);
    }
  });
}

}  // namespace

TEST_CASE("reductions equal the reference bit for bit: in-process, 1 to 8 ranks") {
  for (int size = 1; size <= 8; ++size) {
    check_reductions<float, float>(Kind::in_process, size);
    check_reductions<double, double>(Kind::in_process, size);
    check_reductions<bf16, float>(Kind::in_process, size);
    check_reductions<f16, float>(Kind::in_process, size);
    check_reductions<int64_t, int64_t>(Kind::in_process, size);
    check_reductions<int32_t, int32_t>(Kind::in_process, size);
  }
}

TEST_CASE("reductions equal the reference bit for bit: gloo") {
  for (int size : {1, 2, 3, 4}) {
    check_reductions<float, float>(Kind::gloo, size);
    check_reductions<bf16, float>(Kind::gloo, size);
    check_reductions<f16, float>(Kind::gloo, size);
  }
  check_reductions<double, double>(Kind::gloo, 3);
  check_reductions<int64_t, int64_t>(Kind::gloo, 2);
  check_reductions<float, float>(Kind::gloo, 8);
}

TEST_CASE("reductions equal the reference bit for bit: shared memory") {
  for (int size : {1, 2, 3, 4, 8}) {
    check_reductions<float, float>(Kind::shm, size);
    check_reductions<double, double>(Kind::shm, size);
    check_reductions<bf16, float>(Kind::shm, size);
    check_reductions<f16, float>(Kind::shm, size);
    check_reductions<int64_t, int64_t>(Kind::shm, size);
    check_reductions<int32_t, int32_t>(Kind::shm, size);
  }
}

TEST_CASE("the order of summation is part of the result") {
  // Negative control: descending order gives other bits, so the tests above can fail.
  const int size = 4;
  const int64_t n = 1000;
  const auto want = reduced_by_definition<float, float>(size, n, ReduceOp::sum);
  std::vector<float> other(n);
  for (int64_t i = 0; i < n; ++i)
    for (int r = size - 1; r >= 0; --r) other[i] += static_cast<float>(value(r, i));
  CHECK_FALSE(same_bits(want, other));
}

TEST_CASE("max keeps a NaN, whichever rank has it") {
  for (Kind kind : {Kind::in_process, Kind::gloo, Kind::shm})
    for (int bad = 0; bad < 3; ++bad)
      on_ranks(kind, 3, [&](Communicator& c, Stream& s) {
        std::vector<float> v(5, static_cast<float>(c.rank()));
        if (c.rank() == bad) v[2] = std::numeric_limits<float>::quiet_NaN();
        c.all_reduce(s, tensor(v), ReduceOp::max);
        if (!std::isnan(v[2]) || v[1] != 2) throw std::runtime_error("NaN lost");
      });
}

TEST_CASE("movement: all_to_all, all_to_all_v, broadcast, send, recv, send_recv") {
  for (Kind kind : {Kind::in_process, Kind::gloo, Kind::shm})
    for (int size : {1, 2, 3, 5, 8}) {
      if (kind == Kind::gloo && size == 8) continue;
      INFO(kind_name(kind) << " " << size);
      on_ranks(kind, size, [&](Communicator& c, Stream& s) {
        const int me = c.rank();
        auto expect = [&](bool ok, const char* what) {
          if (!ok) throw std::runtime_error(std::string("rank ") + std::to_string(me) + ": " + what);
        };
        std::vector<int64_t> in, out(size * 3, -1);
        for (int to = 0; to < size; ++to)
          for (int k = 0; k < 3; ++k) in.push_back(me * 1000 + to * 10 + k);
        c.all_to_all(s, tensor(out), tensor(in));
        for (int from = 0; from < size; ++from)
          for (int k = 0; k < 3; ++k) expect(out[from * 3 + k] == from * 1000 + me * 10 + k, "all_to_all");

        // Rank r sends (r + to) % 3 rows of 2 to `to`: some pairs send nothing.
        std::vector<int64_t> in_rows, out_rows;
        std::vector<int64_t> data;
        int64_t in_sum = 0, out_sum = 0;
        for (int o = 0; o < size; ++o) {
          in_rows.push_back((me + o) % 3), out_rows.push_back((o + me) % 3);
          for (int64_t k = 0; k < in_rows.back() * 2; ++k) data.push_back(me * 1000 + o * 10 + k);
          in_sum += in_rows.back(), out_sum += out_rows.back();
        }
        data.resize(data.size() + 2), ++in_sum;  // a row of room that is not sent
        std::vector<int64_t> got((out_sum + 1) * 2, -1);
        c.all_to_all_v(s, tensor(got, {out_sum + 1, 2}), out_rows, tensor(data, {in_sum, 2}), in_rows);
        size_t at = 0;
        for (int from = 0; from < size; ++from)
          for (int64_t k = 0; k < out_rows[from] * 2; ++k)
            expect(got[at++] == from * 1000 + me * 10 + k, "all_to_all_v");
        expect(got[at] == -1, "all_to_all_v wrote past its rows");

        for (int root = 0; root < size; ++root) {
          std::vector<float> b(77, static_cast<float>(me == root ? 5 + root : -1));
          c.broadcast(s, tensor(b), root);
          expect(b[0] == 5 + root && b[76] == 5 + root, "broadcast");
        }
        if (size > 1) {
          std::vector<double> a(10, me), b(10, -1);
          c.send_recv(s, tensor(a), (me + 1) % size, tensor(b), (me + size - 1) % size);
          expect(b[9] == (me + size - 1) % size, "send_recv");
          if (me == 0) {
            c.send(s, tensor(a), size - 1);
            c.send(s, tensor(b), size - 1);
          }
          if (me == size - 1) {
            c.recv(s, tensor(b), 0);
            expect(b[0] == 0, "recv 1");
            c.recv(s, tensor(b), 0);
            expect(b[0] == size - 1, "recv 2");
          }
        }
        c.barrier(s);
      });
    }
}

TEST_CASE("movement of much more than an implementation keeps in flight") {
  const auto data = [](int from, int to, int64_t n) {
    std::vector<int64_t> v(n);
    for (int64_t i = 0; i < n; ++i) v[i] = (from * 100 + to) * int64_t{1000000} + i;
    return v;
  };
  for (Kind kind : {Kind::in_process, Kind::gloo, Kind::shm})
    for (int size : {2, 3, 5}) {
      INFO(kind_name(kind) << " " << size);
      on_ranks(kind, size, [&](Communicator& c, Stream& s) {
        const int me = c.rank();
        auto expect = [&](bool ok, const char* what, int64_t n) {
          if (!ok) throw std::runtime_error(fmt::format("rank {}: {} of {}", me, what, n));
        };
        for (int64_t n : {3, 1025, 40007}) {
          for (int root = 0; root < size; ++root) {
            auto b = data(me, root, n);
            c.broadcast(s, tensor(b), root);
            expect(b == data(root, root, n), "broadcast", n);
          }
          // Parts of all sizes: rank r sends n (r + to) / 3 elements to `to`, none to one of them.
          const auto count = [&](int from, int to) {
            return (from + 2 * to) % size == 1 ? 0 : n * (from + to) / 3;
          };
          std::vector<int64_t> in, in_rows, want, out_rows;
          for (int o = 0; o < size; ++o) {
            const auto to = data(me, o, count(me, o)), from = data(o, me, count(o, me));
            in_rows.push_back(static_cast<int64_t>(to.size())),
                out_rows.push_back(static_cast<int64_t>(from.size()));
            in.insert(in.end(), to.begin(), to.end()), want.insert(want.end(), from.begin(), from.end());
          }
          std::vector<int64_t> out(want.size());
          c.all_to_all_v(s, tensor(out), out_rows, tensor(in), in_rows);
          expect(out == want, "all_to_all_v", n);
          const int next = (me + 1) % size, before = (me + size - 1) % size;
          auto a = data(me, next, n), b = data(0, 0, n);
          c.send_recv(s, tensor(a), next, tensor(b), before);
          expect(b == data(before, me, n), "send_recv", n);
          // One after the other round the ring, which starts at another rank each time.
          const int first = static_cast<int>(n) % size;
          if (me != first) c.recv(s, tensor(b), before);
          c.send(s, tensor(a), next);
          if (me == first) c.recv(s, tensor(b), before);
          expect(b == data(before, me, n), "send and recv", n);
        }
        c.barrier(s);
      });
    }
}

TEST_CASE("split makes groups by colour, ordered by key") {
  for (Kind kind : {Kind::in_process, Kind::gloo, Kind::shm})
    on_ranks(kind, 5, [&](Communicator& c, Stream& s) {
      auto expect = [](bool ok) {
        if (!ok) throw std::runtime_error("split is wrong");
      };
      for (int round = 0; round < 2; ++round) {
        const int color = c.rank() == 4 ? -1 : c.rank() % 2;
        auto half = c.split(color, -c.rank(), "half", Axis::tensor);
        if (color < 0) {
          expect(half == nullptr);
          continue;
        }
        expect(half->size() == 2 && half->rank() == (c.rank() < 2 ? 1 : 0) && half->axes() == Axis::tensor);
        std::vector<int64_t> v{c.rank()};
        half->all_reduce(s, tensor(v));
        expect(v[0] == (color == 0 ? 2 : 4));
        half->barrier(s);
      }
      c.barrier(s);
    });
}

TEST_CASE("wire bytes are what the formula says, on every implementation") {
  for (Kind kind : {Kind::in_process, Kind::gloo, Kind::shm})
    for (int size : {1, 2, 3, 4})
      on_ranks(kind, size, [&](Communicator& c, Stream& s) {
        int64_t want = 0;
        const auto op = [&](CollectiveOp o, int64_t bytes, int root = 0) {
          want += collective_wire_bytes(o, bytes, size, c.rank(), 4, root);
        };
        std::vector<float> v(101), w(size * 7), part(7);
        c.all_reduce(s, tensor(v)), op(CollectiveOp::all_reduce, 404);
        c.all_gather(s, tensor(w), tensor(part)), op(CollectiveOp::all_gather, size * 28);
        c.reduce_scatter(s, tensor(part), tensor(w)), op(CollectiveOp::reduce_scatter, size * 28);
        c.broadcast(s, tensor(v), size - 1), op(CollectiveOp::broadcast, 404, size - 1);
        c.reduce(s, tensor(v), size - 1), op(CollectiveOp::reduce, 404, size - 1);
        c.barrier(s);
        if (c.wire_bytes() != want) throw std::runtime_error(fmt::format("{} != {}", c.wire_bytes(), want));
      });
  // The nccl-tests factors where sizes divide: 2(n-1)/n, (n-1)/n.
  CHECK(collective_wire_bytes(CollectiveOp::all_reduce, 4000, 4, 1, 4) == 6000);
  CHECK(collective_wire_bytes(CollectiveOp::reduce_scatter, 4000, 4, 1) == 3000);
  CHECK(collective_wire_bytes(CollectiveOp::all_gather, 4000, 4, 3) == 3000);
  CHECK(collective_wire_bytes(CollectiveOp::all_to_all, 4000, 4, 3) == 3000);
  CHECK(collective_wire_bytes(CollectiveOp::all_reduce, 4000, 1, 0, 4) == 0);
  // Uneven parts: 5 elements over 4 ranks are 2, 2, 1, 0; all ranks together send 2 (n-1) times the tensor.
  int64_t sum = 0;
  for (int r = 0; r < 4; ++r) sum += collective_wire_bytes(CollectiveOp::all_reduce, 20, 4, r, 4);
  CHECK(sum == 2 * 3 * 20);
}

TEST_CASE("shapes that do not fit are refused before anything moves") {
  on_ranks(Kind::in_process, 2, [](Communicator& c, Stream& s) {
    std::vector<float> three(3), two(2), four(4);
    std::vector<uint8_t> bytes(4);
    std::vector<double> doubles(2);
    auto refuses = [](auto&& f) {
      try {
        f();
      } catch (const Error&) {
        return;
      }
      throw std::runtime_error("not refused");
    };
    refuses([&] { c.all_gather(s, tensor(three), tensor(two)); });
    refuses([&] { c.all_gather(s, tensor(four), tensor(doubles)); });
    refuses([&] { c.reduce_scatter(s, tensor(two), tensor(three)); });
    refuses([&] { c.all_to_all(s, tensor(three), tensor(three)); });
    refuses([&] { c.all_reduce(s, tensor(bytes)); });
    refuses([&] { c.broadcast(s, tensor(two), 2); });
    refuses([&] { c.broadcast(s, tensor(two), tensor(three), 0); });
    refuses([&] { c.reduce(s, tensor(two), 2); });
    refuses([&] { c.reduce(s, tensor(bytes), 0); });
    refuses([&] { c.send(s, tensor(two), c.rank()); });
    c.barrier(s);
  });
}
