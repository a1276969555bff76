#!/usr/bin/env python3
"""Writes tests/golden/chat_templates.json: texts that jinja2 renders from small templates of our own.

Each case is a template, the number of its variables, and the text, or null where jinja2 raises. Needs jinja2 3.1.6.
"""
import json
import pathlib
import sys

from golden_tools import GOLDEN

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "compare" / "data"))
import chat_oracle  # noqa: E402

VALUES = {
    "n": 7, "neg": -7, "f": 2.5, "big": 9007199254740993, "s": "Hello World", "u": "é日本😀x", "sp": " \t\u00a0pad\u3000\n", "e": "", "t": True, "z": None,
    "l": [3, 1, 2], "words": ["pear", "Apple", "fig", "apple"], "d": {"b": 1, "a": [1, "x", None], "C": {"k": 2.0}}, "q": "it's \"q\" \\ \n",
    "rows": [{"name": "x", "v": 1, "in": {"k": "p"}}, {"name": "y", "v": 2, "in": {"k": "q"}}, {"name": "z"}], "html": "<a href='x'>&\"</a>",
    "csv": "a,b,,c", "empty": [], "nested": [[1, [2]], {"k": {"j": [True]}}], "items_key": {"items": 1, "get": 2, "pop": 3, "other": 4},
    "tiny": 1e-7, "huge": 1e20, "exact": 1e16, "small": 123456.789, "cond": "yes",
}
# Grouped by what they try; a line is a template.
EXPRESSIONS = r"""
{{ n + 1 }} {{ n - 10 }} {{ n * 3 }} {{ n / 2 }} {{ n // 2 }} {{ neg // 2 }} {{ neg % 3 }} {{ n % -3 }} {{ 2 ** 10 }} {{ -2 ** 2 }} {{ 2 ** -1 }}
{{ f + 1 }} {{ f * 2 }} {{ f // 1 }} {{ neg / 2 }} {{ -f }} {{ +n }} {{ 7.5 % 2 }} {{ -7.5 % 2 }} {{ 7.5 // -2 }} {{ true + true }} {{ 1e3 }} {{ 1.5e-5 }} {{ 0x1F }} {{ 1_000 }}
{{ tiny }} {{ huge }} {{ exact }} {{ small }} {{ big }} {{ 0.1 + 0.2 }} {{ 100.0 }} {{ 1 / 3 }} {{ 5e-324 }} {{ 1e15 * 10 }} {{ 123456789012345680.0 }}
{{ n == 7 }} {{ n == 7.0 }} {{ n != 7 }} {{ 1 == true }} {{ "1" == 1 }} {{ 1 < 2 < 3 }} {{ 3 > 2 > 2 }} {{ "a" < "b" }} {{ [1, 2] < [1, 3] }} {{ none == false }} {{ l == [3, 1, 2] }}
{{ 1 < "a" }}
{{ none < 1 }}
{{ "a" + 1 }}
{{ none + "a" }}
{{ missing + "a" }}
{{ n / 0 }}
{{ n % 0 }}
{{ missing.attribute }}
{{ missing["x"] }}
{{ missing() }}
{{ d.nothing.more }}
{{ d.nothing }}|{{ missing }}|{{ z }}|{{ t }}|{{ missing == d.nothing }}|{{ missing == none }}
{{ t and n }} {{ e or "x" }} {{ e and "x" }}| {{ not e }} {{ not l }} {{ z or missing or 0 }} {{ (e or none) is none }} {{ not not n }}
{{ "x" if t }}|{{ "x" if e }}|{{ "x" if e else "y" }}|{{ 1 if e else 2 if e else 3 }}|{{ ("a" if t else "b") ~ "c" }}|{{ "a" ~ "b" if t else "c" }}
{{ ("x" if e) is defined }} {{ ("x" if e) is undefined }}
{{ "a" ~ 1 ~ none ~ 2.0 ~ true ~ missing ~ [1] }}
{{ 1 ~ 2 + 3 }}
{{ 1 ~ 2 * 3 }} {{ "a" + "b" ~ "c" }} {{ "ab" * 2 }} {{ 2 * [1, 2] }} {{ "x" * -1 }}|{{ (1,) * 2 }}
{{ "a" in s }} {{ "World" in s }} {{ 1 in l }} {{ 9 not in l }} {{ "b" in d }} {{ "k" in missing }} {{ not "x" in "xyz" }} {{ "" in s }} {{ 1.0 in l }}
{{ 1 in "123" }}
{{ "a" in none }}
{{ "a" in 5 }}
{{ u[0] }}{{ u[1] }}{{ u[-1] }}{{ u[3] }} {{ u[9] }}| {{ u[1:3] }} {{ u[::-1] }} {{ u[::2] }} {{ u[-2:] }} {{ u[:-1] }} {{ u[5:1] }}| {{ u[4:0:-2] }} {{ u | length }}
{{ l[0] }} {{ l[-1] }} {{ l[5] }}| {{ l[1:] }} {{ l[::-1] }} {{ l[-100:100] }} {{ l[2:0:-1] }} {{ l["x"] }}| {{ l.0 }} {{ (1, 2, 3)[1:] }} {{ l[true] }} {{ s[2:][:3] }} {{ l[:] }} {{ l[::-2] }}
{{ l[::0] }}
{{ d["b"] }} {{ d.b }} {{ d["x"] }}| {{ d.a[1] }} {{ d["C"].k }} {{ d.get("b") }} {{ d.get("x") }} {{ d.get("x", 5) }} {{ {1: "a", "1": "b", none: "c", true: "d"}[1] }} {{ {1: "a"}[1.0] }} {{ {(1, 2): 3}[(1, 2)] }}
{{ items_key.items is defined }} {{ items_key["items"] }} {{ items_key.other }} {{ items_key.pop is defined }} {{ items_key["pop"] }} {{ items_key.get("get") }} {{ d.items is callable }} {{ d["items"] is defined }} {{ d["nothing"] is defined }}
{{ {[1]: 2} }}
{{ l }} {{ d }} {{ q }} {{ [q] }} {{ (1,) }} {{ () }} {{ [none, true, 1.0, "a"] }} {{ {"k": (1, 2)} }} {{ nested }} {{ ["it's"] }} {{ ['"'] }} {{ ["'\""] }} {{ [u, sp] }} {{ ["\x00\x7f\xad\u200b\U000e0001"] }} {{ {} }} {{ [missing] }}
{{ "a\tb\n\x41\u00e9\'\"\\ \q" }} {{ 'single "double"' }} {{ "adja" "cent" }} {{ "multi
line" }}
{{ (1, 2) == (1, 2) }} {{ (1, 2) == [1, 2] }} {{ {"a": 1, "b": 2} == {"b": 2, "a": 1} }} {{ [1, 2] + [3] }} {{ (1,) + (2, 3) }} {{ 1, 2 }}
{{ [1] + (2,) }}
{{ range(3) | list }} {{ range(1, 4) | list }} {{ range(5, 0, -2) | list }} {{ range(3) }} {{ range(2, 8, 3) }} {{ range(4)[1] }} {{ range(4) | length }} {{ 2 in range(4) }}
{{ range(100001) | length }}
{{ range(1, 2, 0) }}
{{ dict(a=1, b="x") }} {{ dict([("a", 1)], b=2) }} {{ dict({"a": 1}, a=3) }} {{ dict() }}
{{ namespace(a=1).a }} {{ namespace({"x": 2}).x }} {{ namespace(a=1) }} {{ namespace(a=1).b is defined }}
{{ namespace(_a=1) }}
{{ strftime_now("%d %b %Y") }} {{ strftime_now("%Y-%m-%d %H:%M:%S %A %j") }}
{{ raise_exception("no") }}
{{ -n | abs }} {{ -1 | abs }} {{ (n + 1) | string ~ "x" }} {{ "a" | upper ~ "b" | upper }} {{ n is number and f is float }} {{ not n is none }} {{ n | string is string }}
{{ s.upper().lower().title() }} {{ s.split()[0] }} {{ "a.b".split(".")[-1] | upper }} {{ (s).split("o") }} {{ "x"["upper"]() }} {{ d["get"]("b") }}
{{ l.append(4) }}
{{ d.update({"x": 1}) }}
{{ items_key.pop("x") }}
{{ l.append is defined }} {{ s.__class__ }}|{{ d.__class__ is defined }}
{{ s.__class__.x }}
{{ l.sort() }}
{{ s.foo is defined }} {{ n.foo is defined }} {{ z.foo is defined }} {{ l.foo }}|{{ s["foo"] }}
{{ 5 is divisibleby 5 }} {{ 5 is divisibleby(2) }} {{ n is odd }} {{ n is even }} {{ n in [7] and not n in [8] }} {{ none is none }} {{ missing is none }} {{ d is mapping }} {{ l is mapping }}
{{ [1 if t else 2, 3] }} {{ {"a": 1 if e else 2} }} {{ [l | first, l | last] }} {{ (l | sort)[0] }} {{ l[n - 6] }} {{ d["a"][d.b:] }}
{{ 1 if missing is defined else 2 }} {{ 1 if d.a is iterable and d.a is not string else 2 }} {{ 3 if d["a"] is sequence else 4 }}
"""
FILTERS = r"""
{{ s | upper }} {{ s | lower }} {{ s | capitalize }} {{ s | title }} {{ "they're o-k (yes)" | title }} {{ "they're o-k".title() }} {{ "ß ǆ ﬁ Σ ΑΣ İ" | upper }} {{ "ß ǆ ﬁ ΑΣ ΑΣΑ İI" | lower }} {{ "ǆß".title() }} {{ "éCOLE" | capitalize }} {{ n | upper }}
{{ sp | trim }}|{{ sp.strip() }}|{{ sp.lstrip() }}|{{ sp.rstrip() }}|{{ "xxaxx" | trim("x") }}|{{ "xyaxy".strip("yx") }}|{{ "\n\na\n".lstrip("\n") }}|{{ n | trim }}|{{ "\x1c\x1fa\u200b " | trim | length }}|{{ "日a日".strip("日") }}
{{ s | length }} {{ d | length }} {{ l | count }} {{ e | length }} {{ missing | length }} {{ u | count }}
{{ n | length }}
{{ z | length }}
{{ l | first }} {{ l | last }} {{ s | first }} {{ u | last }} {{ empty | first }}| {{ empty | last is undefined }} {{ d | first }} {{ missing | first }}| {{ missing | last }}| {{ range(3) | last }}
{{ l | join }} {{ l | join(", ") }} {{ rows | join("-", attribute="name") }} {{ rows | join(attribute="name") }} {{ "abc" | join(".") }} {{ d | join("+") }} {{ [1, none, "x"] | join(d="|") }} {{ missing | join }}|
{{ n | join }}
{{ l | sort }} {{ words | sort }} {{ words | sort(case_sensitive=true) }} {{ l | sort(reverse=true) }} {{ rows[:2] | sort(attribute="v", reverse=true) | map(attribute="name") | list }} {{ [(2, "b"), (1, "a")] | sort }}
{{ [1, "a"] | sort }}
{{ words | unique | list }} {{ words | unique(true) | list }} {{ l | reverse | list }} {{ s | reverse }} {{ words | min }} {{ words | max }} {{ l | max }} {{ rows[:2] | max(attribute="v") }} {{ empty | max }}| {{ l | sum }} {{ rows[:2] | sum(attribute="v") }} {{ [[1], [2]] | sum(start=[]) }}
{{ rows | map(attribute="name") | list }} {{ rows | map(attribute="in.k", default="-") | list }} {{ words | map("upper") | join(" ") }} {{ l | map("string") | list }} {{ csv.split(",") | map("default", "none", true) | list }} {{ rows | map(attribute="v") | list }}
{{ rows | selectattr("v") | map(attribute="name") | list }} {{ rows | selectattr("v", "equalto", 2) | list | length }} {{ rows | rejectattr("v", "defined") | map(attribute="name") | list }} {{ rows | selectattr("name", "in", ["x", "z"]) | map(attribute="name") | list }} {{ rows | selectattr("in.k", "==", "q") | first }}
{{ l | select("gt", 1) | list }} {{ l | reject("odd") | list }} {{ [0, 1, "", "a"] | select | list }} {{ [0, 1] | reject | list }} {{ ["a", 1] | select("string") | list }} {{ z | select | list }} {{ z | map("upper") | list }}
{{ "yes" if rows | selectattr("v", "equalto", 99) else "no" }} {{ (rows | selectattr("v"))[0] }}| {{ rows | selectattr("v") | list | length }} {{ l | map("string") is iterable }} {{ l | map("string") is sequence }}
{{ l | map("string") | length }}
{{ l | map("string") | last }}
{% set g = l | map("string") %}{{ g | join }}{{ g | join }}|{{ g | list }}
{% set g = l | select %}{{ g | first }}{{ g | first }}{{ 2 in g }}{{ g | list }}
{{ missing | default("x") }} {{ e | default("x") }}| {{ e | default("x", true) }} {{ z | default("x") }} {{ z | d("x", boolean=true) }} {{ d.q | default }}| {{ missing | default(none) }}
{{ d | items | list }} {{ d.items() | list }} {{ d.items() }} {{ d.keys() }} {{ d.values() | list }} {{ d | dictsort }} {{ d | dictsort(true) }} {{ {"x": 2, "y": 1} | dictsort(by="value") }} {{ d | dictsort(reverse=true) | first }} {{ missing | items | list }} {{ d | list }}
{{ l | items }}{{ l | items | list }}
{{ d | tojson }} {{ d | tojson(indent=2) }} {{ l | tojson(indent=4) }} {{ u | tojson }} {{ u | tojson(ensure_ascii=true) }} {{ q | tojson }} {{ "\x00\x1f\x7f\b\f/<>&'" | tojson }} {{ d | tojson(sort_keys=true) }} {{ d | tojson(separators=(",", ":")) }} {{ {} | tojson(indent=2) }} {{ [] | tojson }} {{ [tiny, huge, exact, f, 1.0, big, true, none] | tojson }} {{ {1: 1, none: 2, true: 3, 1.5: 4} | tojson }} {{ (1, 2) | tojson }} {{ nested | tojson(indent=1) }} {{ d | tojson(indent="--") }} {{ d | tojson(true, 2) }} {{ [] | tojson(indent=0) }}{{ l | tojson(indent=0) }}
{{ missing | tojson }}
{{ range(2) | tojson }}
{{ {(1, 2): 3} | tojson }}
{{ d.items() | tojson }}
{{ d | tojson | safe }} {{ html | safe }} {{ html | escape }} {{ html | e | e }} {{ (html | safe) + "<" }} {{ "<" + (html | safe) }} {{ (html | safe) ~ "<" }} {{ html | safe | upper }} {{ html | forceescape }} {{ html | safe | forceescape }} {{ [html | safe] }} {{ (html | safe).replace("a", "<") }} {{ html | safe | replace("a", "<") }} {{ html | safe is escaped }} {{ (html | safe)[:2] + "<" }} {{ "<".join([html | safe]) }} {{ ("<" | safe).join(["&"]) }} {{ (html | safe | trim) + "&" }}
{{ s | replace("l", "L") }} {{ s | replace("l", "L", 2) }} {{ s.replace("o", "") }} {{ s.replace("", "-") }} {{ s.replace("l", "L", 1) }} {{ n | replace("7", "8") }} {{ "aaa".replace("aa", "b") }} {{ "" | replace("", "x") }} {{ s | replace("", "-", 3) }}
{{ "42" | int }} {{ "4.9" | int }} {{ "x" | int }} {{ "x" | int(5) }} {{ f | int }} {{ "0x1f" | int(base=16) }} {{ " 7 " | int }} {{ true | int }} {{ z | int }} {{ "1_0" | int }} {{ -2.7 | int }} {{ "1e3" | int }} {{ "-12" | int }} {{ l | int }} {{ "" | int(-1) }}
{{ missing | int }}
{{ "1.5" | float }} {{ "x" | float }} {{ n | float }} {{ "x" | float(2.5) }} {{ "1e3" | float }} {{ " -2 " | float }} {{ "inf" | float }} {{ "1_0.5" | float }} {{ ".5" | float }} {{ "5." | float }}
{{ 2.5 | round }} {{ 3.5 | round }} {{ 2.675 | round(2) }} {{ 7 | round }} {{ 2.1 | round(method="ceil") }} {{ 2.15 | round(1, "floor") }} {{ -2.5 | round | int }} {{ 1234.5678 | round(2) }}
{{ "a\nb\n\nc" | indent }} {{ "a\nb" | indent(2, true) }} {{ "a\n\nb" | indent(2, blank=true) }} {{ "a\nb" | indent("> ") }}
{{ "a b  c" | wordcount }} {{ [1, [2]] | string }} {{ n | string | length }} {{ rows[0] | attr("name") is defined }} {{ s | list }} {{ d | list }} {{ (1, 2) | list }} {{ missing | list }} {{ missing | string }}| {{ missing | trim }}| {{ s | string | upper | lower }}
{{ csv.split(",") }} {{ csv.split(",", 1) }} {{ csv.rsplit(",", 1) }} {{ " a  b ".split() }} {{ " a  b c ".split(none, 1) }} {{ " a  b c ".rsplit(none, 1) }} {{ "abc".split("x") }} {{ "".split(",") }} {{ "".split() }} {{ "a--b--c".split("--", maxsplit=1) }} {{ "<t>x</t>".split("</t>")[0].split("<t>")[-1] }}
{{ "a".split("") }}
{{ s.startswith("Hell") }} {{ s.endswith("d") }} {{ s.startswith(("x", "H")) }} {{ s.find("o") }} {{ s.rfind("o") }} {{ s.find("q") }} {{ u.find("😀") }} {{ s.count("l") }} {{ "-".join(["a", "b"]) }} {{ s.partition(" ") }} {{ s.rpartition("o") }} {{ s.partition("q") }} {{ s.removeprefix("Hello ") }} {{ s.removesuffix("x") }} {{ "a\nb\r\nc".splitlines() }} {{ "12".isdigit() }} {{ "".isdigit() }} {{ "ab".isalpha() }} {{ s.swapcase() }} {{ s.isupper() }} {{ "AB 1".isupper() }} {{ "ab".islower() }} {{ " \n".isspace() }} {{ s.index("W") }} {{ l.index(1) }} {{ l.count(3) }} {{ l.copy() }} {{ s.startswith("World", 6) }}
{{ s.index("q") }}
{{ "-".join([1]) }}
{{ s.split(1) }}
{{ s.upper(1) }}
{{ s | replace("a") }}
{{ s | upper(1) }}
{{ s | default(nothing=1) }}
"""
TESTS = r"""
{% for v in [none, true, 0, 7, 2.5, "a", [1], (1,), {"k": 1}, range(2), missing, d.items(), l | map("string")] %}{{ v is defined }}{{ v is none }}{{ v is string }}{{ v is mapping }}{{ v is iterable }}{{ v is sequence }}{{ v is number }}{{ v is integer }}{{ v is float }}{{ v is boolean }}{{ v is true }}{{ v is false }}{{ v is callable }}{{ v is undefined }}{{ "T" if v else "F" }};{% endfor %}
{{ 1 is eq 1 }} {{ 1 is ne 1 }} {{ 1 is lt 2 }} {{ 2 is ge(2) }} {{ "a" is in ["a"] }} {{ "a" is not in "b" }} {{ none is sameas none }} {{ 1 is sameas true }} {{ "AB" is upper }} {{ "ab" is lower }} {{ 1 is equalto 1.0 }} {{ 3 is greaterthan 2 }} {{ 3 is lessthan 2 }} {{ n is not string }} {{ n is divisibleby 7 and t }}
{{ raise_exception is callable }} {{ range is defined }} {{ d.get is callable }} {{ namespace() is mapping }} {{ namespace() is iterable }}
"""
# Templates of several lines, separated by lines of "---".
STATEMENTS = r"""
{% for x in l %}{{ x }}{% if not loop.last %}, {% endif %}{% endfor %}
---
{% for x in l %}{{ loop.index }}/{{ loop.index0 }}/{{ loop.revindex }}/{{ loop.revindex0 }}/{{ loop.first }}/{{ loop.last }}/{{ loop.length }}/{{ loop.depth }}/{{ loop.previtem }}/{{ loop.nextitem }}/{{ loop.cycle("a", "b") }};{% endfor %}
---
{% for x in l if x > 1 %}{{ x }}:{{ loop.index }}/{{ loop.length }}/{{ loop.last }}/{{ loop.previtem is defined }}/{{ loop.nextitem }};{% else %}none{% endfor %}
---
{% for x in l if x > 10 %}{{ x }}{% else %}none{% endfor %}|{% for x in [] %}x{% else %}empty{% endfor %}|{% for x in missing %}x{% else %}undefined{% endfor %}
---
{% for x in none %}x{% endfor %}
---
{% for x in 5 %}x{% endfor %}
---
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for k in d %}{{ k }}{% endfor %}{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}{% for c in u %}{{ c }}.{% endfor %}
---
{% for a, b in [[1, 2, 3]] %}{{ a }}{% endfor %}
---
{% for a, b in [1] %}{{ a }}{% endfor %}
---
{% for x in range(9) %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 5 %}{% break %}{% endif %}{{ x }}{% endfor %}
---
{% set x = 1 %}{% for y in l %}{% set x = x + y %}{{ x }},{% endfor %}{{ x }}
---
{% set ns = namespace(x=1, l=[]) %}{% for y in l %}{% set ns.x = ns.x + y %}{% set ns.l = ns.l + [y] %}{% endfor %}{{ ns.x }} {{ ns.l }}{% set ns.new = 5 %}{{ ns.new }}
---
{% set ns = namespace(found=false) %}{% for x in l if not ns.found %}{{ x }}{{ loop.last }}{% if x == 1 %}{% set ns.found = true %}{% endif %}{% endfor %}
---
{% set ns = namespace(found=false) %}{% for x in l if not ns.found %}{{ x }}{% if x == 3 %}{% set ns.found = true %}{% endif %}{% endfor %}
---
{% set d.x = 1 %}
---
{% set missing.x = 1 %}
---
{% set ns = namespace() %}{% set ns._x = 1 %}
---
{% for x in l %}{% if loop.first %}{% set seen = x %}{% endif %}{{ seen }}|{% endfor %}{{ seen is defined }}
---
{% if t %}{% set a = 1 %}{% else %}{% set a = 2 %}{% endif %}{{ a }}{% if e %}a{% elif z %}b{% elif n == 7 %}c{% else %}d{% endif %}{% if e %}x{% endif %}
---
{% set a, b = 1, "x" %}{{ a }}{{ b }}{% set c = 1, 2 %}{{ c }}{% set (x, y) = l[:2] %}{{ x }}{{ y }}
---
{% set a, b = 1 %}
---
{% set text %}
  block {{ n }}
{% endset %}[{{ text }}]{% set up | upper | trim %} b {{ s }} {% endset %}[{{ up }}]{{ up is string }}
---
{% set ns = namespace() %}{% set ns.text %}in{% set inner = 1 %}{% endset %}{{ ns.text }}{{ inner is defined }}
---
{% macro greet(name, greeting="Hello", punctuation=greeting ~ "!") %}{{ greeting }}, {{ name }}{{ punctuation }}{% endmacro %}{{ greet("A") }}|{{ greet("B", "Hi") }}|{{ greet(name="C", punctuation=".") }}|{{ greet() }}|{{ greet(greeting="G", name="D") }}
---
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}
---
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=2) }}
---
{% macro m(a) %}{{ a is defined }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, k=4) }}{{ m() }}{{ m(*l) }}{{ m(**{"a": 1, "z": 2}) }}
---
{% macro wrap(tag) %}<{{ tag }}>{{ caller() }}</{{ tag }}>{% endmacro %}{% call wrap("b") %}in {{ n }}{% endcall %}{% macro each(items) %}{% for i in items %}{{ caller(i, loop.index) }}{% endfor %}{% endmacro %}{% call(x, y=0) each(l) %}[{{ x }}:{{ y }}]{% endcall %}
---
{% macro m() %}x{% endmacro %}{% call m() %}y{% endcall %}
---
{% macro fact(k) %}{% if k <= 1 %}1{% else %}{{ k * (fact(k - 1) | int) }}{% endif %}{% endmacro %}{{ fact(10) }}
---
{% macro outer(x) %}{% macro inner(y) %}{{ x }}{{ y }}{% endmacro %}{{ inner(2) }}{% endmacro %}{{ outer(1) }}{{ m2 is defined }}
---
{% set v = "global" %}{% macro show() %}{{ v }}{{ n }}{% endmacro %}{% for v in ["loop"] %}{{ show() }}{{ v }}{% endfor %}{% set v = "later" %}{{ show() }}
---
{% macro m(x) %}{% set x = x + 1 %}{{ x }}{% endmacro %}{% set x = 5 %}{{ m(1) }}{{ x }}{{ m(m(1) | int) }}{{ m("a") if false else "-" }}
---
{% with a = 1, b = n %}{{ a }}{{ b }}{% set c = 3 %}{% endwith %}{{ a is defined }}{{ c is defined }}{% with %}{% set n = 8 %}{{ n }}{% endwith %}{{ n }}
---
{% filter upper %}text {{ s }}{% endfilter %}{% filter replace("a", "b") | upper %}banana{% endfilter %}
---
{% raw %}{{ not }} {% rendered %}{% endraw %}|{%- raw -%}  {{ x }}  {%- endraw -%}  |
---
a {# comment {{ x }} #} b {#- trimmed -#}  c
{# whole line #}
d
---
  {% if t %}
  indented
    {% endif %}
end
---
  {%+ if t %}
x{% endif +%}
y
---
{%- if t -%}

  a

{%- endif -%}

b
---
{{ n -}}   x   {{- n }}
{{ n }}
last
---
line
{% if t %}
in
{% endif %}

after
---
x {% if t %} y {% endif %} z
---
{% for m in rows -%}
  {{ m.name }}
{%- endfor %}

---
{% for x in l %}
  {% if x == 1 %}
one
  {% else %}
{{ x }}
  {% endif %}
{% endfor %}
---
{%- set ns = namespace(i=0) -%}
{%- for row in rows -%}
    {%- if row["in"] is defined and row["in"]["k"] == "q" %}
        {%- set ns.i = loop.index0 %}
    {%- endif %}
{%- endfor -%}
{{ ns.i }}
---
{% generation %}a{{ s }}{% endgeneration %}b{% for x in l %}{% generation %}{{ x }}{% endgeneration %}{% if loop.first %}-{% endif %}{% endfor %}
---
{% macro g(x) %}[{% generation %}{{ x }}{% endgeneration %}]{% endmacro %}{{ g("é") }}{{ g(1) | upper }}{% generation %}{% set leak = 1 %}x{% endgeneration %}{{ leak is defined }}
---
{%- generation -%}  a {% if t %}
b{% endif %}
{% endgeneration %}
c
---
{% print n, s %}{% set f2 = d.get %}{{ f2("b") }}{% set up = s.upper %}{{ up() }}
---
{% for x in l %}{{ loop }}{% endfor %}
---
{% for row in rows %}{% for k, v in row | items %}{{ loop.index }}{{ k }}{% endfor %}{{ loop.index }};{% endfor %}
---
{% set loop = 5 %}{% for x in l %}{{ loop.index }}{% endfor %}{{ loop }}
---
{% set x = namespace(l=[]) %}{% for a in l %}{% set x.l = x.l + [{"i": loop.index0, "v": a}] %}{% endfor %}{{ x.l | tojson }}{{ x.l | selectattr("v", "gt", 1) | map(attribute="i") | list }}
---
{% break %}
---
{% if t %}
---
{% endif %}
---
{{ n
---
{{ }}
---
{% for x l %}{% endfor %}
---
{% nosuch %}
---
{{ n | nosuch }}
---
{{ n is nosuch }}
---
{{ (1 }}
---
{{ 1 ] }}
---
{{ "a }}
---
{# open
---
{% raw %} open
---
{{ a b }}
---
{{ 1 $ 2 }}
---
{{ x.1.2 }}
---
{% set true = 1 %}
---
{% macro m(a=1, b) %}{% endmacro %}
---
{{ f(a=1, 2) }}
---
{% for x in l %}{% set loop = 1 %}{% endfor %}
---
{{ l | map(attribute="x", "y") }}
---
{{ n is defined is defined }}
"""
CHATS = r"""
{% for message in messages %}{{ "<|im_start|>" + message["role"] + "\n" + message["content"] + "<|im_end|>" + "\n" }}{% endfor %}{% if add_generation_prompt %}{{ "<|im_start|>assistant\n" }}{% endif %}
---
{{- bos_token }}
{%- if messages and messages[0].role == "system" %}
  {%- set system_message = messages[0].content | trim %}
  {%- set loop_messages = messages[1:] %}
{%- else %}
  {%- set system_message = "" %}
  {%- set loop_messages = messages %}
{%- endif %}
{%- macro render(message) -%}
  {%- if message.content is string -%}{{ message.content }}{%- elif message.content is iterable -%}
    {%- for part in message.content if part.type == "text" -%}{{ part.text }}{%- endfor -%}
  {%- endif -%}
{%- endmacro %}
{%- if tools %}[TOOLS]{% for tool in tools %}{{ tool | tojson }}{% if not loop.last %},{% endif %}{% endfor %}[/TOOLS]{% endif %}
{%- for message in loop_messages %}
  {%- if (message.role == "user") != (loop.index0 % 2 == 0) and not tools %}
    {{- raise_exception("Roles must alternate, got " ~ message.role) }}
  {%- endif %}
  {%- if message.role == "assistant" %}
    {%- generation %}{{ render(message) }}{%- for call in message.tool_calls %}{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}}{%- endfor %}{{ eos_token }}{%- endgeneration %}
  {%- else %}[{{ message.role | upper }}]{{ render(message) }}{%- if loop.first and system_message %} ({{ system_message }}){%- endif %}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}[ASSISTANT]{%- endif %}
"""


def lines(text):
    """Templates of a line each; a line that does not begin with a tag goes on with the one before."""
    return [t.replace("\0", "\n") for t in text.strip("\n").replace("multi\nline", "multi\0line").split("\n")]


def main():
    env, sets = chat_oracle.environment(), [VALUES, *chat_oracle.conversations()]
    small = [t for text in (EXPRESSIONS, FILTERS, TESTS) for t in lines(text)]
    small += [t.strip("\n") for t in STATEMENTS.split("---\n")]
    cases = [(t, 0) for t in small] + [(t.strip("\n"), i) for t in CHATS.split("---\n") for i in range(1, len(sets))]
    out, raised = [], 0
    for template, i in cases:
        try:
            got = chat_oracle.rendered(env.from_string(template), sets[i])
        except Exception:  # a syntax error, or one of the compiler
            got = {"error": ""}
        raised += "error" in got
        generated = "".join(map(str, got.get("generated", [])))
        out.append([template if i < 2 else None, i, got.get("text"), generated if "1" in generated else ""])
    text = json.dumps({"date": chat_oracle.DATE, "variables": sets, "cases": out}, ensure_ascii=False, separators=(",", ":")).replace('],["', '],\n["').replace("],[null", "],\n[null")
    (GOLDEN / "chat_templates.json").write_text(text + "\n")
    print(f"{len(cases)} cases, {raised} of them raise, {len(text)} bytes")


if __name__ == "__main__":
    main()
