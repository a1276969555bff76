"""scripts/checks/check-includes.py: includes point down, vendors' headers stay in their files, the table is up to date."""
import pytest
from conftest import script

includes = script("check-includes")


def refused(path, text):
    return bool(list(includes.problems(path, text)))


def test_a_folder_includes_folders_below_it():
    assert not refused("runtime/train/x.cpp", '#include "runtime/plan/make_plan.h"')
    assert not refused("runtime/train/x.cpp", '#include "models/layers/linear.h"\n#include <vector>')


def test_a_folder_above_is_refused():
    assert refused("base/x.cpp", '#include "models/layers/linear.h"')
    assert refused("runtime/plan/x.cpp", '#include "runtime/train/trainer.h"')
    assert refused("runtime/train/x.cpp", '#include "planner/search/search.h"')


def test_a_subfolder_with_a_row_stands_above_or_below_its_folder():
    assert not refused("app/plan/x.cpp", '#include "app/commands.h"')
    assert refused("app/x.cpp", '#include "app/plan/plan_search.h"')
    assert not refused("runtime/data/x.cpp", '#include "runtime/data/input/jsonl.h"')
    assert refused("runtime/data/input/x.cpp", '#include "runtime/data/build.h"')


def test_a_subfolder_without_a_row_belongs_to_its_folder():
    assert not refused("runtime/recipe/rules/x.cpp", '#include "runtime/recipe/recipe.h"')
    assert not refused("runtime/recipe/x.cpp", '#include "runtime/recipe/rules/rules.h"')


def test_tests_vendor_headers_and_unknown_folders_are_refused():
    assert refused("models/layers/x.cpp", '#include "tests/support/x.h"')
    assert refused("kernels/attention/x.cpp", "#include <cuda_runtime.h>")
    assert refused("kernels/x.cpp", "")
    assert refused("runtime/new_folder/x.cpp", "")


def test_json_comes_by_the_header_of_the_project():
    assert refused("runtime/train/x.cpp", "#include <nlohmann/json.hpp>")
    assert refused("tests/app/x_test.cpp", "#include <nlohmann/json.hpp>")
    assert not refused("base/json/json.h", "#include <nlohmann/json.hpp>")
    assert not refused("runtime/train/x.cpp", '#include <nlohmann/json_fwd.hpp>\n#include "base/json/json.h"')


def test_a_page_with_an_old_table_is_renewed_and_one_without_marks_refused():
    old = f"before\n{includes.BEGIN}| old |\n{includes.END}after\n"
    new = includes.page_with_table(old)
    assert "| old |" not in new and "| `base` |" in new and new.endswith("after\n")
    assert includes.page_with_table(new) == new
    with pytest.raises(ValueError, match="expected the lines"):
        includes.page_with_table("before\n")
