"""scripts/test-tiers.py: which tests are fast, and what ctest's log says of their times."""
import pytest
from conftest import script

tiers = script("test-tiers")

LOG = """Start testing: Nov 22 12:00 UTC
----------------------------------------------------------
1/3 Testing: kernels:a sum, of two
1/3 Test: kernels:a sum, of two
Command: "test_kernels" "a sum\\, of two"
"kernels:a sum, of two" start time: Nov 22 12:00 UTC
Output:
Test time = seconds
<end of output>
Test time =   0.12 sec
----------------------------------------------------------
2/3 Testing: parity:every layout
Test time =  12.00 sec
"""


def test_times_come_from_the_log_of_ctest():
    assert tiers.times_of(LOG) == {"kernels:a sum, of two": 0.12, "parity:every layout": 12.0}


def test_what_is_recorded_as_short_or_new_is_fast_and_what_is_named_slow_never():
    names = ["kernels:a", "parity:b", "app:new", "kernels:slow: c"]
    assert tiers.indexes(names, {"kernels:a": 0.5, "parity:b": 0.51}) == "0,0,0,1,3"
    with pytest.raises(ValueError):
        tiers.indexes(["parity:b"], {"parity:b": 3.0})


def test_a_record_without_one_test_of_twenty_is_out_of_date():
    names = [f"kernels:{n}" for n in range(40)]
    assert tiers.too_many_new(names, dict.fromkeys(names[2:], 0.1)) is None
    assert "3 of 40 tests are not in durations.json, 'kernels:0' is one" in tiers.too_many_new(names, dict.fromkeys(names[3:], 0.1))
