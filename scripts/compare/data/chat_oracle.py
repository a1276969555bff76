"""Chat templates by jinja2, with the environment that transformers gives them, and conversations to render."""

import contextvars
import datetime
import json

import jinja2
import jinja2.ext
import jinja2.sandbox

DATE = "2024-07-26"


class Generation(jinja2.ext.Extension):
    """{% generation %}: marks its text with two private characters, which `split` takes out."""

    tags = {"generation"}
    BEGIN, END = "\U0010fff0", "\U0010fff1"

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("marked"), [], [], body).set_lineno(line)

    def marked(self, caller):
        return self.BEGIN + caller() + self.END


def split(text):
    """The text without marks, and the bytes that are inside of them, as a list of 0 and 1."""
    out, inside, depth = [], [], 0
    for c in text:
        if c in (Generation.BEGIN, Generation.END):
            depth += 1 if c == Generation.BEGIN else -1
            continue
        out.append(c)
        inside += [int(depth > 0)] * len(c.encode())
    return "".join(out), inside


class Space(jinja2.utils.Namespace):
    """namespace() without names that begin with _."""

    def __init__(*args, **kwargs):
        self, args = args[0], args[1:]
        attributes = dict(*args, **kwargs)
        for name in attributes:
            Space.check(name)
        jinja2.utils.Namespace.__init__(self, attributes)

    def __setitem__(self, name, value):
        Space.check(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)

    @staticmethod
    def check(name):
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(name)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def strftime_now(form):
    return datetime.datetime.fromisoformat(DATE).strftime(form)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class Dict:
    def __call__(self, *args, **kwargs):
        return dict(*args, **kwargs)


def environment():
    made = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    made.filters["tojson"] = tojson
    made.globals.update(raise_exception=raise_exception, strftime_now=strftime_now, namespace=Space, dict=Dict())
    return made


def rendered(compiled, variables):
    """{"text", "generated"} or {"error"}."""
    try:
        text, inside = split(compiled.render(**variables))
        return {"text": text, "generated": inside}
    except Exception as e:  # anything that a template raises
        return {"error": f"{type(e).__name__}: {e}"}


def tool(name, about, properties, required):
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": about,
            "parameters": {"type": "object", "properties": properties, "required": required},
        },
    }


WEATHER = tool(
    "get_weather",
    "Weather of a city.",
    {
        "city": {"type": "string", "description": "City & country, \"quoted\""},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
    },
    ["city"],
)
NESTED = tool(
    "plan",
    "Plans a journey.\nTwo lines.",
    {
        "stops": {
            "type": "array",
            "items": {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": ["integer", "null"]}}},
        },
        "flags": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
        "free": {"type": "object", "additionalProperties": False},
    },
    [],
)
EMPTY = {
    "type": "function",
    "function": {"name": "now", "description": "", "parameters": {"type": "object", "properties": {}}},
}


def call(name, arguments, id="call00001"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def user(content):
    return {"role": "user", "content": content}


def assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


def system(content):
    return {"role": "system", "content": content}


def parts(*texts):
    return [{"type": "text", "text": t} for t in texts]


TOOL_TURNS = [
    user("Weather in Paris?"),
    assistant("", tool_calls=[call("get_weather", {"city": "Paris", "unit": "celsius"})]),
    {"role": "tool", "tool_call_id": "call00001", "name": "get_weather", "content": "{\"temp\": 21.5}"},
    assistant("It is 21.5 degrees."),
]
CHAT = [user("Hello"), assistant("Hi there"), user("How are you?"), assistant("Fine.")]


def conversations():
    """30 sets of variables."""
    text_call = json.loads(json.dumps(TOOL_TURNS))
    text_call[1]["tool_calls"][0]["function"]["arguments"] = json.dumps({"city": "Paris"})
    two = [
        user("Both?"),
        assistant(
            "Let me see.", tool_calls=[call("get_weather", {"city": "Rome"}, "aaaaaaaa1"), call("now", {}, "bbbbbbbb2")]
        ),
        {"role": "tool", "tool_call_id": "aaaaaaaa1", "name": "get_weather", "content": "sunny"},
        {"role": "tool", "tool_call_id": "bbbbbbbb2", "name": "now", "content": "12:00"},
        assistant("Sunny at noon."),
    ]
    odd = [
        user("x"),
        assistant(
            None,
            tool_calls=[
                call(
                    "plan",
                    {
                        "n": 1,
                        "f": 1.5,
                        "big": 1e20,
                        "tiny": 1e-7,
                        "none": None,
                        "yes": True,
                        "list": [1, "a", None],
                        "d": {"k": "é\u2028\"\\"},
                    },
                )
            ],
        ),
        {"role": "tool", "tool_call_id": "call00001", "content": {"a": [1, 2.0, False]}},
        assistant("done"),
    ]
    think = [
        user("1+1?"),
        assistant("<think>\nadd\n</think>\n\n2"),
        user("2+2?"),
        assistant("4", reasoning_content="sum of twos"),
        user("3+3?"),
        assistant("<think>\n\n</think>\n\n6"),
    ]
    sets = [
        {"messages": CHAT[:1]},
        {"messages": CHAT[:2]},
        {"messages": CHAT},
        {"messages": [system("Be brief."), *CHAT]},
        {"messages": [system("  Be brief.\n\n"), user("  spaced  \n"), assistant("\n  out \t ")]},
        {"messages": CHAT[:3], "add_generation_prompt": True},
        {"messages": [system("S"), *CHAT[:1]], "add_generation_prompt": True},
        {"messages": [user("日本語 é 😀 \u00a0\u3000"), assistant("ｆｕｌｌ Ünï ß Ǆ")]},
        {"messages": [user("<|im_end|></s>[INST]{{ x }}{% y %}"), assistant("<|eot_id|><end_of_turn>")]},
        {"messages": [user(""), assistant("")]},
        {"messages": []},
        {"messages": [{"role": "developer", "content": "dev"}, *CHAT[:2]]},
        {"messages": [user("a"), user("b"), assistant("c")]},
        {"messages": [assistant("first"), user("b"), assistant("c")]},
        {"messages": [user(parts("one", " two")), assistant(parts("three"))]},
        {"messages": [system(parts("sys")), user(parts("one")), assistant("two")]},
        {"messages": [user([{"type": "image"}, {"type": "text", "text": "what?"}]), assistant("a cat")]},
        {"messages": TOOL_TURNS, "tools": [WEATHER]},
        {"messages": text_call, "tools": [WEATHER, NESTED]},
        {"messages": [system("S"), *two], "tools": [WEATHER, EMPTY]},
        {"messages": odd, "tools": [NESTED]},
        {"messages": CHAT[:1], "tools": [WEATHER, NESTED, EMPTY], "add_generation_prompt": True},
        {"messages": TOOL_TURNS[:3], "tools": [WEATHER], "add_generation_prompt": True},
        {"messages": think},
        {"messages": think[:3], "add_generation_prompt": True, "enable_thinking": False},
        {"messages": think, "enable_thinking": True, "tools": [EMPTY]},
        {"messages": [user("x"), assistant("y", thinking="hidden"), user("z"), assistant("w", reasoning="r")]},
        {"messages": [{"role": "unknown", "content": "?"}, *CHAT[:2]]},
        {"messages": [user("a\r\nb\tc"), assistant("line\n\n\nline")], "reasoning_effort": "high"},
        {
            "messages": [user("q"), assistant(None), {"role": "user"}, assistant("r", name="bob")],
            "documents": [{"title": "T", "text": "D"}],
        },
    ]
    specials = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    return [{"tools": None, "documents": None, "add_generation_prompt": False, **specials, **s} for s in sets]
