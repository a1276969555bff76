// Names that last: one copy of equal texts, whatever becomes of the memory that they were in.
#include "base/interned.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

using namespace ltrain;

TEST_CASE("equal names are one, on every thread") {
  const std::string_view here = interned("layers.3.mlp");
  CHECK(interned(std::string("layers.3.mlp")).data() == here.data());
  CHECK(interned("layers.3.ml").data() != here.data());
  CHECK(interned("").empty());
  std::vector<const char*> others(4);
  std::vector<std::thread> threads;
  for (const char*& other : others)
    threads.emplace_back([&other] { other = interned(std::string("layers.") + "3.mlp").data(); });
  for (std::thread& t : threads) t.join();
  CHECK(std::all_of(others.begin(), others.end(), [&](const char* p) { return p == here.data(); }));
}

TEST_CASE("a name in memory that has changed is the new one, and the old one stays") {
  std::string text = "matmul_nn";
  const std::string_view first = interned(text);
  text.back() = 't';
  CHECK(interned(text) == "matmul_nt");
  CHECK(first == "matmul_nn");
  CHECK(interned("matmul_nn").data() == first.data());
}
