// The bias of a router against steps by hand.
#include "kernels/moe/router_bias.h"

#include "tests/kernels/op_support.h"

using namespace ltrain;
using namespace ltrain::test;

TEST_CASE("the bias of a router: three steps by hand, and the sum of its signs") {
  // Loads of two layers of four experts, and a column beside them.
  const double loads[3][2][5] = {{{4, 0, 3, 1, 9}, {0, 0, 0, 0, 9}},
                                 {{2, 2, 2, 2, 9}, {8, 0, 0, 0, 9}},
                                 {{1, 0, 7, 0, 9}, {3, 2, 2, 1, 9}}};
  // Means 2, 2 and 2: signs of mean - load.
  const double signs[3][2][4] = {
      {{-1, 1, -1, 1}, {0, 0, 0, 0}}, {{0, 0, 0, 0}, {-1, 1, 1, 1}}, {{1, 1, -1, 1}, {-1, 0, 0, 1}}};
  const auto stream = make_inline_stream("compute");
  Guarded<double> bias(8), chosen(10);
  Guarded<float> narrow(8);
  for (int64_t i = 0; i < 8; ++i) bias[i] = 0, narrow[i] = 0;
  double want[8] = {};
  for (int step = 0; step < 3; ++step) {
    for (int64_t i = 0; i < 10; ++i) chosen[i] = loads[step][i / 5][i % 5];
    move_router_bias(*stream, tensor_of(bias, {2, 4}), tensor_of(chosen, {2, 5}), 0.25);
    move_router_bias(*stream, tensor_of(narrow, {2, 4}), tensor_of(chosen, {2, 5}), 0.25);
    for (int64_t i = 0; i < 8; ++i) want[i] += 0.25 * signs[step][i / 4][i % 4];
    for (int64_t i = 0; i < 8; ++i) CHECK((bias[i] == want[i] && narrow[i] == want[i]));
  }
  CHECK((bias.intact() && narrow.intact()));
}

TEST_CASE("the bias of a router with zero experts moves by the share that real experts lack") {
  Guarded<double> bias(5), chosen(5);
  for (int64_t i = 0; i < 5; ++i) bias[i] = 0.5, chosen[i] = std::vector<double>{30, 10, 20, 15, 25}[i];
  const auto stream = make_inline_stream("compute");
  // Two of a token's four choices are to be of the three real experts: a sixth of all each
  // (arXiv:2509.01322).
  move_router_bias(*stream, tensor_of(bias, {1, 5}), tensor_of(chosen, {1, 5}), 0.1, {3, 2.0 / 4 / 3});
  const std::vector<double> want{0.5 + 0.1 * (1.0 / 6 - 0.3), 0.5 + 0.1 * (1.0 / 6 - 0.1),
                                 0.5 + 0.1 * (1.0 / 6 - 0.2), 0.5, 0.5};
  for (int64_t i = 0; i < 5; ++i) CHECK(bias[i] == Approx(want[i]).epsilon(1e-15));
}
