"""scripts/checks/check-aggregates.py: which lists without names it sees."""

from conftest import script

aggregates = script("check-aggregates")

FOUR = "struct Row {\n  std::map<int, int (*)(int)> a;\n  int b = 0, c = 1;\n  bool d = false;\n  int sum() const { return b; }\n};\n"


def found(use, structs=FOUR):
    return [(line, name, n) for line, name, n in aggregates.positional(use, aggregates.aggregates([structs]))]


def test_lists_of_more_than_three_values_are_seen_wherever_the_type_is_written():
    assert found("Row r{x, 1, 2, true};") == [(1, "Row", 4)]
    assert found("\nreturn ltrain::Row{x,\n  f(1, 2), 2, true};") == [(2, "Row", 4)]
    assert found("Row r = {x, 1, 2, true};") == [(1, "Row", 4)]


def test_designated_and_short_lists_are_not():
    assert found("Row r{.a = x, .b = 1, .c = 2, .d = true};") == []
    assert found("Row r{x, 1, {2, 3, 4, 5}};") == []


def test_small_structs_classes_and_those_with_constructors_are_not():
    assert found("Row r{1, 2, 3, 4};", "struct Row { int a, b, c; static int d; };") == []
    assert found("Row r{1, 2, 3, 4};", "struct Row {\n  Row(int a, int b, int c, int d);\n  int a, b, c, d;\n};") == []
    assert found("Row r{1, 2, 3, 4};", "struct Row {\n  int a, b, c, d;\n private:\n  int e;\n};") == []


def test_a_definition_and_a_base_are_not_lists():
    assert found(FOUR) == []
    assert found("struct Other : Row {\n  int e, f, g = f(1, 2, 3), h;\n};") == []
