"""scripts/update-shown-output.py renews figures, and nothing else."""
from conftest import script

SHOWN = script("update-shown-output")
PRINTED = ["plan of x, on 8 ranks", "  arena        12.5 GiB", "  step time    384.1 ms (0.5 of it dp 0.5)", "fits: 13.0 GiB"]


def test_the_whole_output_is_replaced():
    assert SHOWN.renewed(["  step time  1 ms", "fits"], PRINTED) == PRINTED
    assert SHOWN.renewed(PRINTED, PRINTED) == PRINTED


def test_a_line_between_dots_takes_the_figures_of_the_line_with_its_words():
    shown = ["plan of x...ranks", "...", "  step time    385.0 ms (0.4 of it dp 0.4)", "..."]
    assert SHOWN.renewed(shown, PRINTED) == [shown[0], "...", PRINTED[2], "..."]


def test_a_line_that_nothing_is_like_is_left_to_a_person():
    assert SHOWN.renewed(["...", "  another line 5"], PRINTED) is None
    assert SHOWN.renewed(["...", "fits: 1 GiB", "...", "plan of x, on 8 ranks"], PRINTED) is None  # order
    assert SHOWN.renewed(["plan of ... gone"], PRINTED) is None
