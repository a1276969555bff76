"""scripts/checks/check-names.py: what a source defines for itself."""

from conftest import script

names = script("check-names")


def found(text):
    return [name for _, name, _ in names.own_definitions("namespace ltrain {\n" + text + "\n}  // namespace ltrain\n")]


def test_constants_types_and_functions_of_an_anonymous_namespace_are_seen():
    text = "namespace {\nconstexpr int kA = 1;\nstruct B { int c = 0; };\nint f(const B& b, int n = 2) { return 1; }\n}  // namespace\n"
    assert found(text) == ["kA", "B", "f(const B&, int)"]
    assert found("static bool g() { return true; }\nstatic const char* kD[] = {\"}\"};") == ["g()", "kD"]


def test_members_locals_and_shared_definitions_are_not():
    assert found("int f() {\n  constexpr int kA = 1;\n  return kA;\n}\nvoid C::g(int n) { h(n); }\nconstexpr int kB = 2;") == []


def test_text_and_comments_are_passed_over():
    assert found('namespace {\n// constexpr int kA = 1;\n/// text\nconst char* const kText = R"(struct B {)";\n}  // namespace') == ["kText"]


def test_functions_of_other_parameters_have_other_names():
    one, two = found("namespace {\nint f(int a) { return a; }\nint f(double a) { return 1; }\n}  // namespace\n")
    assert one != two


def test_types_of_named_namespaces_are_seen_by_namespace():
    text = "namespace ltrain {\nstruct A {};\nstruct B;\nnamespace {\nstruct C {};\n}\n}\nnamespace ltrain::app {\nclass A final {\n struct D {};\n};\n}\n"
    assert [(space, name) for space, name, _ in names.shared_types(text)] == [("ltrain", "A"), ("ltrain::app", "A")]
