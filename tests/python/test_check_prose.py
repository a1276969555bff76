"""scripts/checks/check-prose.py: what it counts, and that a limit never rises."""
import json

from conftest import script

prose = script("check-prose")


def keys(path, text):
    return [key for key, _, _ in prose.findings(path, text)]


def test_a_comment_that_begins_without_its_subject_is_counted_once_for_its_folder():
    assert keys("kernels/norm/x.h", "// Of all rows.\n// Of it this line goes on.\nint a;") == ["comments of kernels/norm"]
    assert keys("app/x.cpp", "int a;  ///< whether it runs\n") == ["comments of app"]
    assert keys("scripts/x.py", "# What is left.\n") == ["comments of scripts"]
    assert not keys("app/x.cpp", "// Total bytes of all rows.\nf(\"// Of a string\");\n#include <x>\n")
    assert not keys("app/x.cpp", "// Total bytes\n// of all rows.\n")


def test_sentences_of_documents_are_counted_outside_code_tables_and_headings():
    text = "# Of headings\n\nA page.\nOf this it\nspeaks.\n\n- Where it stands.\n\n| Of | tables |\n\n```\nOf code\n```\n"
    assert keys("docs/x.md", text) == ["sentences of docs/x.md", "sentences of docs/x.md"]


def test_forms_that_say_what_a_thing_is_not():
    assert keys("app/x.h", "// An id that is no token.\n") == ["forms in app"]
    assert not keys("app/x.h", "// There is no file. It is no longer here.\n")


def test_a_planted_sentence_fails_and_lower_never_raises(tmp_path, monkeypatch, capsys):
    limits = tmp_path / "limits.json"
    most = json.loads(prose.LIMITS.read_text())["most"]
    key = next(iter(most))
    limits.write_text(json.dumps({"subjects_since": "HEAD", "most": {**most, key: most[key] - 1}}))
    monkeypatch.setattr(prose, "LIMITS", limits)
    for arguments in (["x"], ["x", "--lower"]):
        monkeypatch.setattr(prose.sys, "argv", arguments)
        try:
            prose.main()
            raise AssertionError("expected a refusal")
        except SystemExit as end:
            assert end.code == 1
        assert f"{key}: {most[key]}, expected at most {most[key] - 1}" in capsys.readouterr().out
    assert json.loads(limits.read_text())["most"].get(key, 0) == most[key] - 1
