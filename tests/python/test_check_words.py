"""scripts/checks/check-words.py: what its rules find, and what they pass over."""
import pytest
from conftest import ROOT, script

words = script("check-words")

WORD, PHRASE, NAME = "\\bmend\\b\tfix", "\\btwo[_ ]of[_ ]four\\b\t2:4 sparsity", "\\bKeptTensor\tbuffer"


def hits(line, text="", path="kernels/x.cpp"):
    return [(number, word) for number, word, _ in words.findings(path, text, words.read_rules(line + "\n"))]


def test_a_word_in_prose_in_any_case_and_inside_an_identifier_not_as_a_part_of_another_word():
    assert hits(WORD, "a\n// Mend it") == [(2, "Mend")]
    assert hits(WORD, "int to_mend = mend_x;") == [(1, "mend")]
    assert not hits(WORD, "// mends, amend, recommend, x2mend")


def test_a_phrase_with_blanks_or_underscores_over_the_end_of_a_line():
    assert hits(PHRASE, "keep_two_of_four(x)") == [(1, "two_of_four")]
    assert hits(PHRASE, "/// it is two\n/// of four\n") == [(1, "two of four")]
    assert hits(PHRASE, "a page of two of\nfour", "docs/x.md") == [(1, "two of four")]
    assert hits(PHRASE, 'f(\n"is two "\n    "of four");') == [(2, "two of four")]
    assert not hits(PHRASE, "// two or four")


def test_the_case_of_an_identifier_with_a_capital_letter_counts():
    assert hits(NAME, "std::vector<KeptTensor> kept;") == [(1, "KeptTensor")]
    assert not hits(NAME, "kepttensor, keptTensor, UnkeptTensor")


def test_names_of_files_and_paths_that_are_allowed():
    assert hits("\\bno_nccl\\b\tnccl_stub", "", "parallel/nccl/no_nccl.cpp") == [(0, "no_nccl")]
    assert not hits(WORD + "\tkernels/*", "mend")
    assert hits(WORD + "\tdocs/*,models/*", "mend") == [(1, "mend")]


def test_texts_that_need_no_search_are_those_without_a_word_that_every_match_has():
    assert words.literals("\\bmend(s|ed)?\\b|\\btwo[_ ]of[_ ]four\\b|Kept?Tensor") == ["mend", "four", "tensor"]
    assert words.literals("\\b(near|far)[_ ](experts?|ranks)\\b|\\bmend\\b") == []


@pytest.mark.parametrize("wrong", ["mend", "\\bmend\\b\t", "me(nd\tfix", "mend\tfix\ta\tb"])
def test_a_list_that_is_wrong_is_refused(wrong):
    with pytest.raises(ValueError):
        words.read_rules(wrong + "\n")


def test_comments_and_blank_lines_are_no_rules():
    assert not words.read_rules("# mend\n\n")


def test_no_rule_asks_for_a_word_that_another_refuses():
    rules = words.read_rules((ROOT / words.LIST).read_text())
    assert rules
    for rule in rules:
        for _, found, other in words.findings("x.md", rule.instead, rules):
            raise AssertionError(f"{words.LIST}:{rule.number}: writes {found}, which line {other.number} refuses")
