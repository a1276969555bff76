#include "runtime/chat/jinja.h"

#include <catch2/catch.hpp>
#include <ctime>
#include <fstream>

#include "base/time_scale.h"

using namespace ltrain;
using namespace ltrain::chat;
using Json = nlohmann::ordered_json;
using Catch::Matchers::Contains;
using Source = JinjaVariable::Source;

namespace {

constexpr const char* kDate = "2024-07-26";

std::vector<JinjaVariable> variables_of(const Json& json) {
  std::vector<JinjaVariable> variables;
  for (const auto& [name, value] : json.items())
    variables.push_back({name, value,
                         name == "messages" ? Source::messages
                         : name == "tools"  ? Source::data
                                            : Source::setting});
  return variables;
}

/// The text and a '1' for each byte of a generation block; nothing for an error.
std::optional<std::pair<std::string, std::string>> rendered(const std::string& source, const Json& json) {
  try {
    const Rendered done = JinjaTemplate(source, "t").render(variables_of(json), kDate);
    std::string generated(done.text.size(), '0');
    for (const Span& span : done.spans)
      if (span.generation)
        for (size_t i = span.begin; i < span.end; ++i) generated[i] = '1';
    return std::pair(done.text, generated);
  } catch (const Error& e) {
    CHECK(e.code() == ExitCode::data);
    return std::nullopt;
  }
}

std::string text(const std::string& source, const Json& json = Json::object()) {
  return JinjaTemplate(source, "t").render(variables_of(json), kDate).text;
}

/// The text where bytes from data are in capital brackets: "a[[b]]".
std::string marked(const std::string& source, const Json& json) {
  std::vector<JinjaVariable> variables;
  for (const auto& [name, value] : json.items())
    variables.push_back({name, value, name == "messages" ? Source::messages : Source::data});
  const Rendered done = JinjaTemplate(source, "t").render(variables, kDate);
  std::string out;
  for (const Span& span : done.spans) {
    const std::string part = done.text.substr(span.begin, span.end - span.begin);
    out += span.from_data ? "[" + part + "]" : part;
  }
  return out;
}

std::string parse_error(const std::string& source) {
  try {
    JinjaTemplate(source, "t.jinja");
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

std::string render_error(const std::string& source, const Json& json = Json::object(),
                         const JinjaLimits& limits = {}) {
  try {
    JinjaTemplate(source, "t.jinja", limits).render(variables_of(json), kDate);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a template renders the text and the generation spans of jinja2") {
  std::ifstream file(LTRAIN_SOURCE_DIR "/tests/golden/chat_templates.json");
  const Json golden = Json::parse(file);
  std::string source;
  int texts = 0, errors = 0;
  for (const Json& one : golden.at("cases")) {
    if (!one[0].is_null()) source = one[0].get<std::string>();
    const Json& variables = golden.at("variables").at(one[1].get<size_t>());
    const auto got = rendered(source, variables);
    INFO(source << "\nvariables " << one[1]);
    CHECK(got.has_value() == !one[2].is_null());
    if (one[2].is_null()) {
      ++errors;
      continue;
    }
    ++texts;
    if (!got) continue;
    CHECK(got->first == one[2].get<std::string>());
    const std::string generated = one[3].get<std::string>();
    CHECK(got->second == (generated.empty() ? std::string(got->second.size(), '0') : generated));
  }
  CHECK(texts > 140);
  CHECK(errors > 80);
}

TEST_CASE(
    "an unknown name of a template is an error with line and nearest name before anything is rendered") {
  CHECK_THAT(parse_error("a\n{{ x | uper }}"), Contains("t.jinja:2: no filter \"uper\"; nearest: upper"));
  CHECK_THAT(parse_error("{% if x is strng %}{% endif %}"),
             Contains("t.jinja:1: no test \"strng\"; nearest: string"));
  CHECK_THAT(parse_error("\n\n{% if false %}{{ x.startwith('a') }}{% endif %}"),
             Contains("t.jinja:3: no method \"startwith\"; nearest: startswith"));
  CHECK_THAT(parse_error("{{ raise_exeption('a') }}"),
             Contains("no function \"raise_exeption\"; nearest: raise_exception"));
  CHECK_THAT(parse_error("{% macro render(x) %}{% endmacro %}{{ rendr(1) }}"), Contains("nearest: render"));
  CHECK_THAT(parse_error("{% fro x in y %}{% endfor %}"), Contains("no tag \"fro\"; nearest: for"));
  CHECK_THAT(parse_error("{{ x | map('uper') }}"), Contains("no filter \"uper\"; nearest: upper"));
  CHECK_THAT(parse_error("{{ x | selectattr('a', 'equal') }}"),
             Contains("no test \"equal\"; nearest: equalto"));
  CHECK_THAT(parse_error("{{ x | xmlattr }}"), Contains("no filter \"xmlattr\""));
  CHECK_THAT(parse_error("{% include 'x' %}"), Contains("the tag include is not supported"));
  CHECK_THAT(parse_error("{% for x in y recursive %}{% endfor %}"),
             Contains("recursive loops are not supported"));
  CHECK(parse_error("{% set ns = namespace() %}{% macro f() %}{% endmacro %}{% set ns.f = f %}{{ ns.f() }}")
            .empty());
}

TEST_CASE("a syntax error names the line and what was expected") {
  CHECK_THAT(parse_error("a\n{% if x %}\nb"),
             Contains("t.jinja:3: expected {% endif %}, got the end of the template"));
  CHECK_THAT(parse_error("{{ a\nb }}"), Contains("t.jinja:2: expected }}, got \"b\""));
  CHECK_THAT(parse_error("{{ 'a }}"), Contains("a string without its end '"));
  CHECK_THAT(parse_error("\xff"), Contains("expected UTF-8"));
  CHECK_THAT(parse_error("{{ 99999999999999999999 }}"), Contains("expected an integer below 2^63"));
  CHECK_THAT(parse_error("{{ \"\\ud800\" }}"), Contains("no such character"));
}

TEST_CASE("an error while rendering names the line") {
  CHECK_THAT(render_error("a\n\n{{ x.y }}"), Contains("t.jinja:3: 'x' is undefined"));
  CHECK_THAT(render_error("{% set a = 1 %}\n{{ a + 'b' }}"), Contains("t.jinja:2: + of int and str"));
  CHECK_THAT(
      render_error("{% macro m() %}\n{{ raise_exception('roles must alternate') }}{% endmacro %}\n{{ m() }}"),
      Contains("t.jinja:2: roles must alternate"));
  CHECK_THAT(render_error("{{ [1].append(2) }}"), Contains("templates may not change lists"));
  CHECK_THAT(render_error("{{ 9223372036854775807 + 1 }}"), Contains("outside of 64 bits"));
  CHECK_THAT(render_error("{{ x }}", Json::parse(R"({"x": 18446744073709551615})")),
             Contains("larger than 2^63 - 1"));
}

TEST_CASE("bytes from data stay known through operations on strings") {
  const Json json = Json::parse(
      R"({"messages": [{"role": "user", "content": "  Data x  ", "list": ["p", {"k": "<q>"}]}]})");
  const auto of = [&](const std::string& expression) {
    return marked("{% set m = messages[0] %}{{ " + expression + " }}", json);
  };
  CHECK(of("'<' + m.role + '>' ~ m.content ~ '</>'") == "<user>[  Data x  ]</>");
  CHECK(of("('<' + m.content + '>')[2:5]") == "[ Da]");
  CHECK(of("('a' + m.content)[:4]") == "a[  D]");
  CHECK(of("m.content | trim | upper ~ '!'") == "[DATA X]!");
  CHECK(of("m.content.strip().replace('x', 'lit')") == "[Data ]lit");
  CHECK(of("'a-b'.replace('-', m.content.strip())") == "a[Data x]b");
  CHECK(of("m.content.split('x')[0] + '|'") == "[  Data ]|");
  CHECK(of("[m.content.split()[0], 'lit'] | join('+')") == "[Data]+lit");
  CHECK(of("(m.content ~ '!')[::-1]") == "![  x ataD  ]");
  CHECK(of("m.list | tojson") == "[\"[p]\", {\"[k]\": \"[<q>]\"}]");
  CHECK(of("m.list") == "['[p]', {'[k]': '[<q>]'}]");
  CHECK(of("m.content | title") == "[  Data X  ]");
  CHECK(of("'%s' ~ (m.list | first | string | safe)") == "%s[p]");
  CHECK(of("(m.list[1].k | escape)") == "[&lt;q&gt;]");
  CHECK(of("('l\n' + m.content) | indent(2)") == "l\n  [  Data x  ]");
  CHECK(marked("{% set x %}a{{ messages[0].content | trim }}{% endset %}{% macro f(y) %}({{ y }}){% endmacro "
               "%}{{ f(x) }}{% filter upper %}{{ x }}{% endfilter %}",
               json) == "(a[Data x])A[DATA X]");
}

TEST_CASE("spans cover the text without gaps") {
  const Json json = Json::parse(
      R"({"messages": [{"role": "user", "content": "é"}, {"role": "assistant", "content": "b"}]})");
  const Rendered done = JinjaTemplate(
                            "{% for m in messages %}<{{ m.role }}>{% generation %}{{ m.content }}.{% "
                            "endgeneration %}{% endfor %}",
                            "t")
                            .render(variables_of(json), kDate);
  CHECK(done.text == "<user>é.<assistant>b.");
  size_t end = 0;
  std::string kinds;
  for (const Span& span : done.spans) {
    CHECK(span.begin == end);
    end = span.end;
    kinds += (span.from_data ? "d" : "t") + std::to_string(span.generation) + " ";
  }
  CHECK(end == done.text.size());
  CHECK(kinds == "t0 d1 t1 t0 d2 t2 ");
}

TEST_CASE("hostile templates end with an error soon") {
  const std::clock_t started = std::clock();  // seconds of this process, since other tests run beside it
  const auto many = [](const std::string& part, int count) {
    std::string all;
    for (int i = 0; i < count; ++i) all += part;
    return all;
  };
  JinjaLimits small;
  small.steps = 200'000;
  small.output_bytes = 1 << 20;
  small.all_bytes = 16 << 20;
  // Size of text, work, and memory.
  CHECK_THAT(render_error("{% set ns = namespace(x='ab') %}{% for i in range(99999) %}{% set ns.x = ns.x + "
                          "ns.x %}{% endfor %}",
                          {}, small),
             Contains("more than 1048576 bytes"));
  CHECK_THAT(render_error("{{ 'x' * 99999999999 }}", {}, small), Contains("more than"));
  CHECK_THAT(render_error("{{ [1] * 99999999999 }}", {}, small), Contains("more than"));
  CHECK_THAT(
      render_error("{% for a in range(999) %}{% for b in range(999) %}{% endfor %}{% endfor %}", {}, small),
      Contains("more than 200000 steps"));
  CHECK_THAT(render_error("{% set ns = namespace(x=[1]) %}{% for i in range(99999) %}{% set ns.x = [ns.x, "
                          "ns.x] %}{% endfor %}",
                          {}, small),
             Contains("nested deeper"));
  CHECK_THAT(render_error("{% set ns = namespace(x=[1]) %}{% for i in range(100) %}{% set ns.x = [ns.x, "
                          "ns.x] %}{% endfor %}{{ ns.x }}",
                          {}, small),
             Contains("more than"));
  CHECK_THAT(render_error("{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(100) %}{% set ns.x = "
                          "[ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
                          {}, small),
             Contains("more than"));
  CHECK_THAT(render_error("{{ 'x' | indent(999999999999) }}", {}, small), Contains("more than"));
  CHECK_THAT(render_error("{{ 2 ** 99999999 }}", {}, small), Contains("outside of 64 bits"));
  CHECK_THAT(render_error("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), Contains("nested deeper"));
  CHECK_THAT(render_error("{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns }}"),
             Contains("nested deeper"));
  CHECK(render_error("{% set ns = namespace() %}{% set ns.x = ns %}{% set ns.y = [ns, loop] %}{% macro m() "
                     "%}{% endmacro %}{% set ns.m = m %}")
            .empty());
  CHECK(render_error("{% set ns = namespace(x=0) %}{% for i in range(20000) %}{% set old = ns.x %}{% macro "
                     "f() %}{{ old }}{% endmacro %}{% set ns.x = f %}{% endfor %}")
            .empty());
  CHECK_THAT(render_error("{% set ns = namespace(x={}) %}{% for i in range(20000) %}{% set ns.x = {'a': "
                          "ns.x.get} %}{% endfor %}"),
             Contains("nested deeper"));
  // Depth of the source.
  CHECK_THAT(parse_error("{{ " + many("(", 100'000)), Contains("nested deeper"));
  CHECK_THAT(parse_error("{{ " + many("[", 100'000)), Contains("nested deeper"));
  CHECK_THAT(parse_error("{{ " + many("not ", 100'000) + "1 }}"), Contains("nested deeper"));
  CHECK_THAT(parse_error("{{ " + many("-", 100'000) + "1 }}"), Contains("nested deeper"));
  CHECK_THAT(parse_error("{{ 1" + many(" + 1", 100'000) + " }}"), Contains("more than 300 levels"));
  CHECK_THAT(parse_error("{{ x" + many(".a", 100'000) + " }}"), Contains("more than 300 levels"));
  CHECK_THAT(parse_error("{{ x" + many(" | trim", 100'000) + " }}"), Contains("more than 300 levels"));
  CHECK_THAT(parse_error("{{ 1" + many(" if 1 else 1", 50'000) + " }}"), Contains("nested deeper"));
  CHECK_THAT(parse_error(many("{% if x %}", 100'000)), Contains("nested deeper"));
  CHECK_THAT(parse_error("{% set " + many("(", 100'000)), Contains("nested deeper"));
  CHECK_THAT(parse_error(std::string((1 << 20) + 1, 'x')), Contains("expected at most 1048576"));
  CHECK(text("{% if false %}{% else %}a{% endif %}" +
             many("{% if false %}b" + many("{% elif false %}c", 5000) + "{% endif %}", 2)) == "a");
  CHECK(static_cast<double>(std::clock() - started) / CLOCKS_PER_SEC < 10 * time_scale());
}

TEST_CASE("a date of chat templates has the form YYYY-MM-DD") {
  const JinjaTemplate parsed("{{ strftime_now('%d %B %Y, %A') }}", "t");
  CHECK(parsed.render({}, "2025-03-01").text == "01 March 2025, Saturday");
  for (const char* bad : {"", "2025-3-1", "2025-13-01", "20250301xx", "2025-03-32"})
    CHECK_THROWS_WITH(parsed.render({}, bad), Contains("expected YYYY-MM-DD"));
}
