"""scripts/check-includes.py: includes point down, vendors' headers stay in their files."""
from conftest import script

includes = script("check-includes")


def refused(path, text):
    return bool(list(includes.problems(path, text)))


def test_a_room_includes_those_below_it():
    assert not refused("runtime/train/x.cpp", '#include "runtime/plan/plan.h"')
    assert not refused("runtime/train/x.cpp", '#include "models/layers/linear.h"\n#include <vector>')


def test_a_room_above_is_refused_also_of_the_same_floor():
    assert refused("kernels/base/x.cpp", '#include "models/layers/linear.h"')
    assert refused("runtime/plan/x.cpp", '#include "runtime/train/trainer.h"')


def test_tests_vendor_headers_and_files_without_a_room_are_refused():
    assert refused("models/layers/x.cpp", '#include "tests/support/x.h"')
    assert refused("kernels/attention/x.cpp", "#include <cuda_runtime.h>")
    assert refused("kernels/x.cpp", "")
    assert refused("runtime/new_room/x.cpp", "")
