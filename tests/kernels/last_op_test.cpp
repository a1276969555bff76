// The op that was enqueued last, in messages.
#include "kernels/tensor/last_op.h"

#include <catch2/catch.hpp>

using namespace ltrain;

namespace {

struct Heads {
  int64_t heads = 12, width = 64;
  double eps = 1e-5;
  template <class F>
  void sizes(F&& f) const {
    f("heads", heads), f("width", width);
  }
};

}  // namespace

TEST_CASE("arguments of an op are named by its parameters, pointers are left out") {
  const float x = 0;
  const auto* p = &x;
  CHECK(OpArguments("DType t, void* y, const std::map<int, int>* m, int64_t n, double factor, Heads heads",
                    DType::bf16, p, p, int64_t{4096}, 0.5, Heads())
            .text() == "t = bf16, n = 4096, factor = 0.5, heads = 12, width = 64");
  CHECK(OpArguments("bool wide, int32_t *ids", true, p).text() == "wide = 1");
  CHECK(OpArguments().text().empty());
  CHECK(product_arguments(DType::f32, 2, 3, 4).text() == "type = f32, m = 2, n = 3, k = 4");
  OpArguments many;
  for (int i = 0; i < 100; ++i) many.add("i", int64_t{i});
  CHECK(many.text().substr(0, 13) == "i = 0, i = 1,");
}

TEST_CASE("the last op has its layer and stream, and never the arguments of another") {
  LastOp op;
  CHECK(op.text().empty());
  op.enter_layer("layers.3.mlp");
  op.open("matmul_nt", "compute");
  op.note(product_arguments(DType::bf16, 8192, 768, 3072));
  CHECK(op.text() ==
        "matmul_nt (type = bf16, m = 8192, n = 768, k = 3072) of layers.3.mlp on the stream compute");
  op.enter_layer("");
  op.open(std::string(200, 'x'), "comm");
  CHECK(op.text() == std::string(63, 'x') + " on the stream comm");
}
