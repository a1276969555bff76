"""scripts/checks/check-tests.py: which assertions it sees on another thread, and which it passes over."""

from conftest import script

tests = script("check-tests")


def found(text):
    return list(tests.assertions_on_threads(text))


def test_an_assertion_in_the_lambda_of_a_thread_is_seen():
    assert found("std::thread t([&] {\n  CHECK(f({1}));\n});\nCHECK(x);") == [(2, "CHECK")]
    assert found("on_threads(2, [&](int r) { REQUIRE_THROWS_AS(g(r), Error); });") == [(1, "REQUIRE_THROWS_AS")]


def test_one_after_the_join_is_not():
    assert found("std::thread t([&] { ok = f(); });\nt.join();\nCHECK(ok);") == []
    assert found("on_threads(2, body);\nREQUIRE(seen == 2);") == []


def test_names_with_semicolons():
    text = 'TEST_CASE("one; two", "[a]") {\n  x("a;b");\n}\nTEST_CASE("whole, and right") {\n'
    assert list(tests.names_with_semicolons(text)) == [(1, "one; two")]
