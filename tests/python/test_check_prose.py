"""scripts/checks/check-prose.py: what it counts, and that a limit never rises."""
import json
import subprocess

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
    assert keys("app/x.cpp", "// Total bytes.\n//\n// As late as it may be.\n") == ["comments of app"]


def test_sentences_of_documents_are_counted_outside_code_tables_and_headings():
    text = "# Of headings\n\nA page.\nOf this it\nspeaks.\n\n- Where it stands.\n\n| Of | tables |\n\n```\nOf code\n```\n"
    assert keys("docs/x.md", text) == ["sentences of docs/x.md", "sentences of docs/x.md"]


def test_forms_that_say_what_a_thing_is_not():
    assert keys("app/x.h", "// An id that is no token.\n") == ["forms in app"]
    assert not keys("app/x.h", "// There is no file. It is no longer here.\n")


def run(monkeypatch, capsys, *arguments):
    """Exit code and output of the check."""
    monkeypatch.setattr(prose.sys, "argv", ["check-prose.py", *arguments])
    try:
        prose.main()
        code = 0
    except SystemExit as end:
        code = end.code
    return code, capsys.readouterr().out


def test_a_planted_sentence_and_a_long_subject_fail_and_lower_never_raises_a_limit(tmp_path, monkeypatch, capsys):
    def commit(subject):
        subprocess.run(["git", "-c", "user.name=n", "-c", "user.email=e", "commit", "-q", "--allow-empty", "-m", subject],
                       cwd=tmp_path, check=True)
        return subprocess.run(["git", "rev-parse", "HEAD"], cwd=tmp_path, check=True, capture_output=True,
                              text=True).stdout.strip()

    def limit(most):
        limits.write_text(json.dumps({"subjects_since": first, "most": most}))

    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    first, limits, source = commit("Begin"), tmp_path / "limits.json", tmp_path / "app.cpp"
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    monkeypatch.setattr(prose, "LIMITS", limits)
    source.write_text("// Total bytes.\n")
    subprocess.run(["git", "add", "app.cpp"], cwd=tmp_path, check=True)
    limit({"comments of app.cpp": 2})
    assert run(monkeypatch, capsys)[0] == 0
    source.write_text("// Of all rows.\n")
    limit({})
    for arguments in ([], ["--lower"]):
        code, said = run(monkeypatch, capsys, *arguments)
        assert code == 1 and "comments of app.cpp: 1, expected at most 0" in said
        assert json.loads(limits.read_text())["most"] == {}
    limit({"comments of app.cpp": 2})
    assert run(monkeypatch, capsys, "--lower")[0] == 0
    assert json.loads(limits.read_text())["most"] == {"comments of app.cpp": 1}
    commit("x" * 73)
    code, said = run(monkeypatch, capsys)
    assert code == 1 and "73 characters, expected at most 72" in said
