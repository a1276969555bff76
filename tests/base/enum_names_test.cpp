// Names of enums: each way, and in messages.
#include <catch2/catch.hpp>

#include "base/enum_names.h"

namespace ltrain {
namespace {

enum class Fruit { apple, pear, plum };

}  // namespace

LT_ENUM_NAMES(Fruit, {Fruit::apple, "an apple"}, {Fruit::pear, "a pear"});

TEST_CASE("a value of an enum has one name, which is read back") {
  CHECK(to_string(Fruit::pear) == "a pear");
  CHECK(enum_value<Fruit>("a pear") == Fruit::pear);
  CHECK_FALSE(enum_value<Fruit>("A pear"));
  CHECK_FALSE(enum_value<Fruit>(""));
  CHECK(fmt::format("{} and {:>9}", Fruit::apple, Fruit::pear) == "an apple and    a pear");
  CHECK(to_string(Fruit::plum) == "?");
}

}  // namespace ltrain
