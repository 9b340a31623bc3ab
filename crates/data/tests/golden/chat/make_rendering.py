"""What transformers renders, for tests/chat_rendering.rs: writes rendering.json beside this file.

    python make_rendering.py            # transformers 5.24, jinja2 3.1.6

`templates`: the built-in templates on the conversations below. `expressions`: small templates with Python's ways.
"""

import json
import pathlib
import re

from transformers.utils.chat_template_utils import render_jinja_template

HERE = pathlib.Path(__file__).parent
BUILT_IN = HERE / "../../../src/chat/templates"

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a place, <now> & \"later\"",
            "parameters": {
                "type": "object",
                "properties": {
                    "zoo": {"type": "string", "enum": ["a", "b"]},
                    "city": {"type": "string", "default": "Zürich"},
                    "days": {"type": "number", "maximum": 1.5, "minimum": 0, "exclusive": True, "x": None},
                },
                "required": [],
            },
        },
    },
    {"type": "function", "function": {"name": "now", "parameters": {}}},
]


def call(name, **arguments):
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


CONVERSATIONS = {
    "one turn": {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]},
    "turns": {
        "messages": [
            {"role": "system", "content": " Be brief. "},
            {"role": "user", "content": "  2+2?\n"},
            {"role": "assistant", "content": "\n4 "},
            {"role": "user", "content": "3+3?"},
            {"role": "assistant", "content": "6"},
        ]
    },
    "system in the middle": {
        "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"},
            {"role": "system", "content": "c"},
            {"role": "user", "content": "d"},
            {"role": "assistant", "content": "e"},
        ]
    },
    "empty contents": {
        "messages": [
            {"role": "system", "content": ""},
            {"role": "user", "content": ""},
            {"role": "assistant", "content": ""},
        ]
    },
    "unicode": {
        "messages": [
            {"role": "user", "content": "naïve 🤖 \u2028 日本\r\n\ttab \x1f"},
            {"role": "assistant", "content": "\u00a0“ok” <b>&amp;</b>\n\n"},
        ]
    },
    "tools": {
        "messages": [
            {"role": "user", "content": "Weather?"},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [call("get_weather", city="Zürich", days=[1, 2.5, True, None, {"é": "\"q\" <b>"}], n=1e20)],
            },
            {"role": "tool", "name": "get_weather", "content": "{\"t\": 21}"},
            {"role": "assistant", "content": "21 degrees."},
        ],
        "tools": TOOLS,
    },
    "two calls": {
        "messages": [
            {"role": "system", "content": "S"},
            {"role": "user", "content": "Both?"},
            {"role": "assistant", "content": "Wait.", "tool_calls": [call("now"), call("get_weather", city="X")]},
            {"role": "tool", "content": "12:00"},
            {"role": "tool", "content": "sun"},
            {"role": "assistant", "content": "Noon, sun."},
            {"role": "user", "content": "Thanks"},
        ],
        "tools": TOOLS,
    },
    "thoughts": {
        "messages": [
            {"role": "user", "content": "1?"},
            {"role": "assistant", "content": "<think>\nfirst\n</think>\n\nOne"},
            {"role": "user", "content": "2?"},
            {"role": "assistant", "content": "Two", "reasoning_content": "second"},
        ]
    },
    "user twice": {
        "messages": [
            {"role": "user", "content": "a"},
            {"role": "user", "content": "b"},
            {"role": "assistant", "content": "c"},
        ]
    },
    "assistant first": {
        "messages": [{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]
    },
}

VARIABLES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}

MESSAGES = [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c", "x": [1, 2.0, "q'"], "n": {"k": 1}}]

EXPRESSIONS = [
    # printing
    "{{ true }} {{ false }} {{ none }} {{ missing }}|{{ 1.0 }} {{ 1e16 }} {{ 1e-5 }} {{ 0.1 + 0.2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }}",
    "{{ [1, 'a', \"it's\", true, none, 1.5, 'q\"', 'é\\n'] }} {{ {'a': 1, 'b': {'c': []}} }} {{ (1, 2) }} {{ (1,) }}",
    "{{ messages[1] }} {{ messages[1].x | string }} {{ 'a' ~ 1 ~ 'b' }}",
    # tojson
    "{{ messages | tojson }}",
    "{{ messages[1] | tojson(indent=2) }}",
    "{{ {'b': '<é>&\\'\"\\n\\t/\\\\', 'a': [[], {}], 'c': 1e100} | tojson(indent=4, ensure_ascii=true, sort_keys=true) }}",
    "{{ [1, {'a': 2}] | tojson(separators=(',', ':')) }} {{ 'x' | tojson }} {{ none | tojson }} {{ 1e22 | tojson }}",
    # strings
    "{{ ' a '.strip() }}|{{ 'xxaxx'.strip('x') }}|{{ '\\n\\na\\n'.lstrip('\\n') }}|{{ ' a '.rstrip() }}|{{ '\x1f a \u3000' | trim }}|",
    "{{ 'a,b,,c'.split(',') }} {{ ' a  b '.split() }} {{ 'a b c'.split(' ', 1) }} {{ 'a b c'.split(maxsplit=1) }} {{ 'a/b/c'.rsplit('/', 1) }} {{ ' a b  c '.rsplit(none, 1) }} {{ ''.split() }} {{ ''.split(',') }}",
    "{{ 'a<x>b<x>c'.split('<x>')[-1] }} {{ 'a<x>b'.split('<x>')[0].rstrip('\\n').split('q')[-1] }}",
    "{{ 'abc'.startswith('ab') }} {{ 'abc'.endswith(('x', 'c')) }} {{ 'abc'.upper() }} {{ 'ab cd'.title() }} {{ 'aBC'.capitalize() }} {{ 'AbC'.lower() }} {{ 'a-b'.replace('-', '+') }} {{ 'aaa'.replace('a', 'b', 2) }}",
    "{{ 'abcabc'.find('c') }} {{ 'abc'.rfind('x') }} {{ 'aXbXc'.count('X') }} {{ '12'.isdigit() }} {{ ', '.join(['a', 'b']) }} {{ 'a\\nb\\r\\nc\\x0b\\n'.splitlines() }} {{ 'k=v=w'.partition('=') }} {{ 'k=v=w'.rpartition('=') }} {{ 'abc'.removeprefix('a') }} {{ 'abc'.removesuffix('c') }} {{ ' \\n'.isspace() }}",
    "{{ 'a{}b{}'.format(1, 'x') }} {{ '%s-%d' % ('a', 3) if false else '' }} {{ 'abcdef'[1:3] }} {{ 'abc'[-1] }} {{ 'abcdef'[::-1] }} {{ 'abc'[:-1] }} {{ 'naïve'[2:] }} {{ 'ab' * 2 }} {{ 'a' in 'abc' }} {{ 'x' not in 'abc' }}",
    "{{ 'hello world' | capitalize }} {{ 'hello' | upper | lower }} {{ 'a' | replace('a', 'b') }} {{ 'a\\nb' | indent(2) }} {{ 'a\\nb' | indent(2, true) }} {{ 'abc' | length }} {{ 'ab' | list }} {{ '3' | int + 1 }} {{ '2.5' | float }} {{ 'a b' | title }} {{ 3.7 | round }} {{ 3.14159 | round(2) }} {{ -3 | abs }}",
    # lists and dictionaries
    "{{ [1,2,3][1:] }} {{ [1,2,3][::-1] }} {{ [1,2,3][-1] }} {{ messages[:-1] | length }} {{ messages[-1]['role'] }} {{ [1] + [2] }} {{ (messages[1:] + messages[:1]) | map(attribute='role') | list }}",
    "{% for k, v in messages[1].items() %}{{ k }}={{ v }};{% endfor %}{{ messages[0].get('x') }} {{ messages[0].get('x', 'd') }} {{ messages[1].keys() | list }} {{ messages[1].values() | list }} {{ messages[1].n.k }} {{ 'x' in messages[1] }}",
    "{{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ messages | rejectattr('role', '==', 'user') | map(attribute='content') | join(', ') }} {{ [3,1,2] | sort }} {{ [1,1,2] | unique | list }} {{ [1,2] | join('-') }} {{ [1, none, true] | join(', ') }} {{ [1,2,3] | first }} {{ [1,2,3] | last }} {{ [1,2] | sum }} {{ [1,2,3] | reverse | list }} {{ {'b': 1, 'a': 2} | dictsort }} {{ {'b': 1} | items | list }} {{ [1,2,3] | select('odd') | list }} {{ [1,2] | min }} {{ [[1,2],[3]] | map('length') | list }} {{ ['a', 'b'] | map('upper') | list }}",
    "{{ dict(a=1, b='x') }} {{ range(3) | list }} {{ range(1, 4) | list }} {{ missing | default('d') }} {{ '' | default('d', true) }} {{ none | default('d') }}",
    # tests
    "{{ 'a' is string }} {{ 'a' is iterable }} {{ 'a' is sequence }} {{ {} is mapping }} {{ {} is sequence }} {{ [] is sequence }} {{ [] is iterable }} {{ 1 is number }} {{ true is number }} {{ true is integer }} {{ 1.0 is float }} {{ true is boolean }} {{ 1 is boolean }}",
    "{{ none is none }} {{ missing is defined }} {{ missing is undefined }} {{ true is true }} {{ 1 is true }} {{ false is false }} {{ 3 is odd }} {{ 4 is even }} {{ 9 is divisibleby(3) }} {{ 1 is eq(1) }} {{ 'a' is in(['a']) }} {{ 1 is not none }} {{ messages[1:] is iterable }} {{ messages[1:] is sequence }} {{ 5 is sameas 5 }} {{ messages is not string }} {{ none is iterable }} {{ none is sequence }} {{ 5 is iterable }} {{ range(2) is iterable }} {{ missing is iterable }}",
    # statements
    "{% set ns = namespace(n=0, l=[]) %}{% for m in messages %}{% set ns.n = ns.n + loop.index %}{% set ns.l = ns.l + [m.role] %}{% endfor %}{{ ns.n }} {{ ns.l }}",
    "{% for m in messages %}{{ loop.index }}/{{ loop.length }} {{ loop.first }} {{ loop.last }} {{ loop.revindex }} {{ loop.index0 }} {{ loop.cycle('a', 'b') }} {{ loop.previtem.role if loop.previtem is defined else '-' }} {{ loop.nextitem.role if loop.nextitem is defined else '-' }};{% else %}none{% endfor %}",
    "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}{% for m in [] %}x{% else %}empty{% endfor %}{% for m in messages %}{% if loop.last %}{% break %}{% endif %}{{ m.role }}{% continue %}no{% endfor %}",
    "{% macro f(x, y='d', z=none) %}<{{ x }}{{ y }}{% if z is not none %}{{ z }}{% endif %}>{% endmacro %}{{ f(1) }}{{ f(1, y=2) }}{{ f(1, 2, z=3) }}",
    "{% set x %}a{{ 1 }}b{% endset %}{{ x | upper }}{{ x }}{% set a, b = 1, 2 %}{{ a + b }}{% filter upper %}abc{% endfilter %}{% with q = 3 %}{{ q }}{% endwith %}",
    "{% set x = 1 %}{% for i in [1, 2] %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}{% if x == 1 and not missing or false %}yes{% elif x %}no{% endif %}{{ 'a' if missing }}|{{ 'a' if x else 'b' }}",
    "a\n  {% if true %}\n  b\n  {%- endif %}\n\n  {# note #}\nc {{ 1 -}}\n  d\n{%- for i in [1] %}\n    e\n{% endfor %}\n   {{ 2 }}\nf\n",
    "{%- if true -%}\n  x\n{%- endif %}\n  {%+ if true %}y{% endif +%}\nz\n\n",
    "{% raw %}{{ x }}{% endraw %}{{ '{{' }}{{ \"a\" 'b' }}{{ 1 if 1 < 2 <= 2 else 0 }}{{ not true }}{{ 2 ** 3 }}{{ [1, 2] == [1, 2] }}{{ 'a' < 'b' }}",
    "{{ bos_token }}{{ eos_token }}{{ sep_token is defined }}{{ tools is none }}{{ documents is none }}{{ add_generation_prompt }}",
    # what a template may refuse
    "{{ raise_exception('Only user\\'s turn') }}",
    "{{ messages[0].content + none }}",
    "{{ missing.attribute }}",
    "{{ messages[5].role }}",
    "{{ [1].append(2) }}",
    # generation marks
    "{% for m in messages %}{{ m.role }}\n{% if m.role == 'assistant' %}\n{% generation %}\n{{ m.content }}!\n{% endgeneration %}\n{% endif %}\n{% endfor %}end",
    "{%- for m in messages -%}\n{{ m.role }}:\n  {%- generation -%}\n  é{{ m.content }}{% if loop.last %}.{% endif %}\n{%- endgeneration -%}\n{%- endfor -%}",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% generation %}{% set ns.n = ns.n + 1 %}{% set y = 2 %}{{ ns.n }}{{ loop.index }}{{ y }}{% endgeneration %}{{ y is defined }}{% endfor %}",
    "{% generation %}{% for m in messages %}{{ loop.index }}{% set a = 1 %}{% endfor %}{% endgeneration %}{{ a is defined }}{% generation %}{% endgeneration %}",
]


def render(template, messages, add_generation_prompt, tools=None, marks=False):
    try:
        [text], marks = render_jinja_template(
            [messages],
            tools=tools,
            chat_template=template,
            add_generation_prompt=add_generation_prompt,
            return_assistant_tokens_mask=marks,
            **VARIABLES,
        )
        return {"text": text} | ({"marks": marks[0]} if marks else {})
    except Exception as problem:
        return {"error": str(problem)}


def main():
    templates = []
    for path in sorted(BUILT_IN.glob("*.jinja")):
        for name, conversation in CONVERSATIONS.items():
            for prompt in [False, True] if name in ("turns", "two calls") else [False]:
                row = render(path.read_text(), conversation["messages"], prompt, conversation.get("tools"))
                templates.append({"template": path.stem, "conversation": name, "prompt": prompt} | row)
    expressions = []
    for template in EXPRESSIONS:
        marks = re.search(r"\{\%-?\s*generation", template) is not None
        expressions.append({"template": template} | render(template, MESSAGES, False, marks=marks))
    golden = {
        "variables": VARIABLES,
        "conversations": CONVERSATIONS,
        "templates": templates,
        "messages": MESSAGES,
        "expressions": expressions,
    }
    text = json.dumps(golden, ensure_ascii=False, indent=1)
    # Unicode's own line ends would confuse editors.
    text = text.replace("\u2028", "\\u2028").replace("\x1f", "\\u001f")
    (HERE / "rendering.json").write_text(text + "\n")


main()
