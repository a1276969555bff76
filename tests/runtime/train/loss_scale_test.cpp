#include "parallel/optim/loss_scale.h"

#include <catch2/catch.hpp>

using namespace ltrain;

TEST_CASE("a loss scale backs off at overflows, after as many as the hysteresis, down to its minimum") {
  LossScaleSettings s;
  s.initial = 64, s.minimum = 10, s.hysteresis = 3, s.window = 2;
  LossScaler scaler(s);
  std::vector<double> scales;
  for (int i = 0; i < 6; ++i) {
    scaler.note(true);
    scales.push_back(scaler.scale());
  }
  CHECK(scales == std::vector<double>{64, 64, 32, 16, 10, 10});
  scaler.note(false);
  CHECK(scaler.scale() == 10);
  scaler.note(true);  // a step in a row too few, and the hysteresis is used up
  CHECK(scaler.scale() == 10);
  scaler.note(false);
  scaler.note(false);
  CHECK(scaler.scale() == 20);
  scaler.note(true);  // growth has given it back
  scaler.note(true);
  CHECK(scaler.scale() == 20);
  scaler.note(true);
  CHECK(scaler.scale() == 10);
}

TEST_CASE("a loss scale that is restored goes on where it was") {
  LossScaleSettings s;
  s.window = 3;
  LossScaler one(s), other(s);
  one.note(true);
  one.note(false);
  other.restore(one.state());
  for (bool overflow : {true, false, false, false, true}) {
    one.note(overflow);
    other.note(overflow);
    CHECK(one.state() == other.state());
  }
}
