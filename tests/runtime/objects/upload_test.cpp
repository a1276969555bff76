// Uploads, without a server; tests/python/test_remote_checkpoints.py has one.
#include "runtime/objects/upload.h"

#include <catch2/catch.hpp>

using namespace ltrain::objects;

TEST_CASE("an upload has at most 10,000 parts of 5 MiB to 5 GiB, as stores demand") {
  for (int64_t bytes = 1; bytes <= int64_t{5} << 40; bytes = bytes * 3 + 1) {
    const int64_t part = part_bytes(bytes);
    CAPTURE(bytes, part);
    CHECK((part >= 5 << 20 && part <= int64_t{5} << 30));
    CHECK((bytes + part - 1) / part <= 10000);
  }
}
