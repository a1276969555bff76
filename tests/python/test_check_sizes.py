"""scripts/checks/check-sizes.py: which functions and folders it sees, and what it refuses."""

from conftest import script

sizes = script("check-sizes")


def body(lines):
    return "  f();\n" * lines


def names(text):
    return [(lines, name) for lines, _, name in sizes.functions(text)]


def test_functions_members_and_kernels_count_from_their_name_to_the_closing_brace():
    text = ("namespace ltrain {\nstruct A : B {\n  int f() const {\n    return 1;\n  }\n};\n"
            "template <class T>\nvoid g(T t,\n       int n) {\n  if (n) {\n    h([&] { return 2; });\n  }\n}\n"
            "__global__ void __launch_bounds__(128) k(int n) { }\n}  // namespace ltrain\n")
    assert names(text) == [(3, "f"), (7, "g"), (1, "k")]


def test_tables_and_braces_in_text_are_not_functions():
    assert names('const int kTable[] = {\n  f(1),\n  f(2)};\nconst char* t = "void f() {";\nenum class E { a };\n') == []


def test_a_function_of_more_than_100_lines_is_refused():
    assert sizes.too_long({"base/x.cpp": "void f() {\n" + body(98) + "}\n"})[0] == []
    wrong = sizes.too_long({"base/x.cpp": "void f() {\n" + body(99) + "}\n"})[0]
    assert wrong == ["base/x.cpp:1: f has 101 lines, expected at most 100"]


def test_kernels_have_a_limit_of_their_own():
    text = "void f() {\n" + body(150) + "}\n"
    assert sizes.too_long({"kernels/norm/x_cuda.cu": text})[0] == []
    assert sizes.too_long({"kernels/norm/x_cpu.cpp": text})[0]


def test_one_more_long_function_than_the_limit_is_refused():
    text = "".join(f"void f{i}() {{\n" + body(60) + "}\n" for i in range(sizes.MOST_LONG + 1))
    assert sizes.too_long({"base/x.cpp": text})[0]
    assert not sizes.too_long({"base/x.cpp": text.replace("  f();\n", "", 2)})[0]


def test_a_folder_of_more_than_40_files_is_refused():
    files = [f"app/f{i}.cpp" for i in range(40)] + ["app/data/g.cpp", "app/CMakeLists.txt"]
    assert sizes.too_full(files) == []
    assert len(sizes.too_full(files + ["app/one_more.h"])) == 1
