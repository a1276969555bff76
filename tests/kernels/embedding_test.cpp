#include "kernels/elementwise/embedding.h"

#include <array>

#include "kernels/attention/rope.h"
#include "tests/kernels/op_support.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

struct EmbeddingCase {
  int64_t batch, seq, cols, vocab, positions;
  int64_t rows() const { return batch * seq; }
};
constexpr EmbeddingCase kCases[] = {
    {1, 1, 1, 1, 1}, {2, 7, 33, 5, 9}, {3, 40, 66, 301, 40}, {1, 17, 130, 13, 64}};

Guarded<int32_t> random_tokens(const EmbeddingCase& c) {
  Guarded<int32_t> tokens(c.rows());
  for (int64_t i = 0; i < c.rows(); ++i) tokens[i] = static_cast<int32_t>(philox(5, 6, i).v[0] % c.vocab);
  tokens[c.rows() - 1] = static_cast<int32_t>(c.vocab - 1);
  return tokens;
}

/// The whole vocabulary, and a part from its middle.
std::vector<VocabPart> parts(const EmbeddingCase& c) {
  return {{0, c.vocab, c.vocab}, {c.vocab / 3, (c.vocab + 1) / 2, c.vocab}};
}

/// Rows from the second on of samples whose columns lie elsewhere: last to first.
struct Map {
  std::vector<int32_t> positions;
  RowMapArgs args;
  explicit Map(const EmbeddingCase& c) : positions(c.seq), args{c.seq, 1, c.seq, positions.data()} {
    for (int64_t i = 0; i < c.seq; ++i) positions[i] = static_cast<int32_t>(c.seq - 1 - i);
  }
};

}  // namespace

TEST_CASE("embedding forward equals its reference") {
  for (const EmbeddingCase& c : kCases)
    each_float([&]<class T>() {
      const auto tokens = random_tokens(c);
      const auto table = random_array<T>(c.vocab * c.cols, 1),
                 positions = random_array<T>(c.positions * c.cols, 2);
      for (const auto& [isa, forward] : BOTH_ISAS(embedding_forward_cpu))
        for (const VocabPart& part : parts(c))
          for (bool with_positions : {false, true})
            for (int threads : {1, 2})
              with_threads(threads, [&] {
                Guarded<T> y(c.rows() * c.cols);
                const Map map(c);
                forward(dtype_of<T>::value, y.data(), tokens.data(), table.data(),
                        with_positions ? positions.data() : nullptr, c.rows(), c.cols, map.args, part);
                std::vector<double> want(y.size());
                for (int64_t i = 0; i < y.size(); ++i) {
                  const int64_t row = i / c.cols, col = i % c.cols, id = tokens[row] - part.first;
                  const int64_t position = c.seq - 1 - (row + 1) % c.seq;
                  want[i] = (id >= 0 && id < part.rows ? as_double(table[id * c.cols + col]) : 0) +
                            (with_positions ? as_double(positions[position * c.cols + col]) : 0);
                }
                CHECK(y.intact());
                CHECK(worst_error(y, want) < (with_positions ? tolerance<T>() : 1e-15));
              });
    });
}

TEST_CASE("embedding backward equals its reference and does not depend on threads") {
  for (const EmbeddingCase& c : kCases)
    each_float([&]<class T>() {
      using A = compute_t<T>;
      const auto tokens = random_tokens(c);
      const auto dy = random_array<T>(c.rows() * c.cols, 3);
      const auto old = random_array<A>(c.vocab * c.cols, 4),
                 old_positions = random_array<A>(c.positions * c.cols, 5);
      for (const VocabPart& part : parts(c))
        for (bool accumulate : {false, true}) {
          const Map map(c);
          std::vector<double> want(c.vocab * c.cols), want_positions(c.positions * c.cols);
          if (accumulate) want = doubles(old), want_positions = doubles(old_positions);
          for (int64_t i = 0; i < dy.size(); ++i) {
            const int64_t row = i / c.cols, id = tokens[row] - part.first;
            if (id >= 0 && id < part.rows) want[id * c.cols + i % c.cols] += as_double(dy[i]);
            want_positions[(c.seq - 1 - (row + 1) % c.seq) * c.cols + i % c.cols] += as_double(dy[i]);
          }
          const double allowed = sizeof(A) == 8 ? 1e-12 : 1e-4;
          std::string bits;
          for (const auto& [isa, backward] : BOTH_ISAS(embedding_backward_cpu))
            for (int threads : {1, 2})
              with_threads(threads, [&] {
                INFO(isa << " vocab " << c.vocab << (accumulate ? " +=" : " =") << " threads " << threads);
                Guarded<A> table = old;
                backward(dtype_of<T>::value, table.data(), dy.data(), tokens.data(), c.rows(), c.cols,
                         c.vocab, part, accumulate);
                CHECK(table.intact());
                CHECK(worst_error(table, want) < allowed);
                CHECK((bits.empty() ||
                       table.bits() == bits));  // adds in one order on both instruction sets, too
                bits = table.bits();
              });
          for (const auto& [isa, backward] : BOTH_ISAS(position_backward_cpu))
            for (int threads : {1, 2})
              with_threads(threads, [&] {
                Guarded<A> table = old_positions;
                backward(dtype_of<T>::value, table.data(), dy.data(), c.rows(), c.cols, map.args, c.positions,
                         accumulate);
                CHECK(table.intact());
                CHECK(worst_error(table, want_positions) < allowed);
              });
        }
    });
}

TEST_CASE("a token outside the vocabulary is refused by value and place") {
  auto stream = make_inline_stream("compute");
  Guarded<float> table(5 * 4), y(3 * 4);
  Guarded<int32_t> tokens(3);
  for (int32_t bad : {-1, 5, 1 << 30}) {
    tokens[0] = 0, tokens[1] = 4, tokens[2] = bad;
    CHECK_THROWS_WITH(
        embedding_forward(*stream, tensor_of(y, {3, 4}), tensor_of(tokens, {3}), tensor_of(table, {5, 4}), {},
                          RowMap{3, 0, 0, {}, {}}, {0, 5, 5}),
        "token " + std::to_string(bad) + " at position 2 of the batch is outside the vocabulary of 5");
  }
}

TEST_CASE("rope rotates halves by the table's angles and back") {
  for (const auto& [batch, seq, heads, others, head_dim, rotary, begin, neighbours] :
       std::vector<std::array<int64_t, 8>>{{1, 1, 1, 0, 2, 2, 0, 0},
                                           {2, 19, 3, 2, 6, 6, 0, 0},
                                           {2, 5, 3, 1, 10, 6, 0, 0},
                                           {1, 33, 4, 4, 64, 64, 0, 0},
                                           {2, 5, 3, 1, 10, 6, 4, 1},
                                           {1, 7, 2, 2, 8, 4, 1, 0}}) {
    const RopeHeads shape{heads, head_dim, begin, neighbours != 0};
    const int64_t step = neighbours ? 2 : 1, apart = neighbours ? 1 : rotary / 2;
    const int64_t rows = batch * seq, width = (heads + others) * head_dim, half = rotary / 2;
    Guarded<float> table(seq * rotary);
    for (int64_t t = 0; t < seq; ++t)
      for (int64_t i = 0; i < half; ++i) {
        table[t * rotary + 2 * i] = static_cast<float>(std::cos(t * 0.7 / (i + 1)));
        table[t * rotary + 2 * i + 1] = static_cast<float>(std::sin(t * 0.7 / (i + 1)));
      }
    each_float([&, width = width, heads = heads, head_dim = head_dim, rotary = rotary, seq = seq,
                begin = begin]<class T>() {
      const auto x = random_array<T>(rows * width, 8, 2);
      std::vector<int32_t> ids(rows);  // positions of their own, as documents have
      for (int64_t r = 0; r < rows; ++r) ids[r] = static_cast<int32_t>(7 * r % seq);
      for (bool with_ids : {false, true})
        for (bool inverse : {false, true}) {
          std::vector<double> want = doubles(x);
          for (int64_t r = 0; r < rows; ++r)
            for (int64_t h = 0; h < heads; ++h)
              for (int64_t i = 0; i < half; ++i) {
                const int64_t place = with_ids ? ids[r] : r % seq;
                const double c = table[place * rotary + 2 * i],
                             s = table[place * rotary + 2 * i + 1] * (inverse ? -1.0 : 1.0);
                const int64_t at = r * width + h * head_dim + begin + step * i;
                const double a = as_double(x[at]), b = as_double(x[at + apart]);
                want[at] = a * c - b * s;
                want[at + apart] = b * c + a * s;
              }
          for (const auto& [isa, rotate] : BOTH_ISAS(rope_cpu))
            for (int threads : {1, 2})
              with_threads(threads, [&] {
                Guarded<T> y = x;
                rotate(dtype_of<T>::value, y.data(), table.data(), rows, width,
                       RowMapArgs{seq, 0, seq, nullptr, with_ids ? ids.data() : nullptr}, shape, rotary,
                       inverse);
                CHECK(y.intact());
                CHECK(worst_error(y, want) < tolerance<T>());
                // Channels beside those of each head that rotate keep their bits, as do the values behind the
                // heads.
                for (int64_t r = 0; r < rows; ++r)
                  for (int64_t h = 0; h < heads; ++h)
                    for (int64_t i = 0; i < head_dim; ++i) {
                      if (i >= begin && i < begin + rotary) continue;
                      const int64_t at = r * width + h * head_dim + i;
                      CHECK(std::memcmp(&y[at], &x[at], sizeof(T)) == 0);
                    }
                for (int64_t r = 0; r < rows; ++r)
                  CHECK(std::memcmp(&y[r * width + heads * head_dim - 1] + 1,
                                    &x[r * width + heads * head_dim - 1] + 1,
                                    (width - heads * head_dim) * sizeof(T)) == 0);
              });
        }
    });
  }
}
