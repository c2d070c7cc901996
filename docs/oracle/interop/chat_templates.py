#!/usr/bin/env python3
"""Compares internal/jinja with transformers' rendering of chat templates.

    chat_templates.py                 random expressions, and the templates of testdata: equal, or refused by gpupipe
    chat_templates.py --write         write the golden cases of the Go test, testdata/cases.jsonl

A line of the cases defines variables or a template by name, or is a case: a name, the names of a template (or its text)
and of variables, and what transformers renders; null: it fails.
"""
import argparse
import datetime
import glob
import itertools
import json
import os
import random
import subprocess
import sys

from transformers.utils.chat_template_utils import _compile_jinja_template

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.join(HERE, "../../../internal/jinja")
FAMILIES = os.path.join(PACKAGE, "testdata/families")

NOW = datetime.datetime(2024, 7, 6, 15, 4, 5)

TOOLS = [{"type": "function", "function": {"name": "weather", "description": "The weather of a city <now> & \"later\"", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "description": "Größe, 城市"}, "days": {"type": "integer", "default": 3, "minimum": 0.5},
                                     "unit": {"type": ["string", "null"], "enum": ["°C", "°F"]}}, "required": ["city"]}}}]
CALL = [{"id": "call00001", "type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich", "days": 2, "deep": {"a": [1, 2.5, None, True]}}}}]

CONVERSATIONS = {
    "one": dict(messages=[{"role": "user", "content": "Hello"}]),
    "system": dict(messages=[{"role": "system", "content": "Be brief.\n"}, {"role": "user", "content": "  Hello \n"}]),
    "turns": dict(messages=[{"role": "system", "content": "S"}, {"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": " 2 "},
                            {"role": "user", "content": "And 'more' \"quotes\"?"}]),
    "unicode": dict(messages=[{"role": "user", "content": "Grüße, 世界 👩‍🚀 ẞ ﬁ \u200b\ttab"}, {"role": "assistant", "content": "naïve é\u0301"},
                              {"role": "user", "content": "नमस्ते"}]),
    "tools": dict(messages=[{"role": "user", "content": "Weather?"}, {"role": "assistant", "content": None, "tool_calls": CALL},
                            {"role": "tool", "name": "weather", "tool_call_id": "call00001", "content": "{\"rain\": false}"}], tools=TOOLS),
    "thinking": dict(messages=[{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nSo.", "reasoning_content": "hm"},
                               {"role": "user", "content": "Really?"}], enable_thinking=False),
    "reasoning": dict(messages=[{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So.", "reasoning_content": "because", "thinking": "because"},
                                {"role": "user", "content": "Go on"}], enable_thinking=True, reasoning_effort="high"),
    "parts": dict(messages=[{"role": "user", "content": [{"type": "text", "text": "Look: "}, {"type": "image"}, {"type": "text", "text": "what?"}]}]),
    "last": dict(messages=[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], add_generation_prompt=False),
    "empty": dict(messages=[{"role": "user", "content": ""}]),
    "none": dict(messages=[]),
    "bad": dict(messages=[{"role": "assistant", "content": "I begin"}, {"role": "assistant", "content": "and go on"}]),
}


def render(template, variables, now=None):
    """What transformers renders, or None where it fails."""
    try:
        compiled = _compile_jinja_template(template)
        if now:
            compiled = compiled.environment.from_string(template, globals={"strftime_now": now.strftime})
        return compiled.render(**variables)
    except Exception:
        return None


def variables(conversation):
    return {"bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": True, "tools": None, "documents": None, **conversation}


def families(folder):
    for name, conversation in CONVERSATIONS.items():
        yield {"define": name, "variables": variables(conversation)}
    for path in sorted(glob.glob(os.path.join(folder, "*.jinja"))):
        with open(path, encoding="utf-8") as f:
            template = f.read()
        family = os.path.basename(path)[:-6]
        yield {"define": family, "template": template} if folder != FAMILIES else {"define": family, "file": f"families/{family}.jinja"}
        for name, conversation in CONVERSATIONS.items():
            yield {"name": f"{family}/{name}", "template": family, "variables": name, "want": render(template, variables(conversation), NOW)}


VARIABLES = {"s": "Hello World, it's é日本 \n x", "t": "a,b,,c", "e": "", "n": 7, "m": -3, "z": 0, "f": 2.5, "g": -0.1, "h": 1e20, "yes": True, "no": False, "nil": None,
             "l": [3, 1, 2], "ls": ["b", "A", "c", "é"], "lf": [1.5, 2, True], "el": [], "d": {"b": 1, "a": 2, "c": None}, "ed": {}, "dn": {"x": {"y": [1, {"z": "é"}]}, "items": 5},
             "ms": [{"role": "user", "content": "Hi", "n": 1}, {"role": "assistant", "content": "Yo", "n": 3}, {"role": "User", "content": None, "n": 2}]}

# Productions of expressions: S a string, I an int, F a float, N a number, L a list, D a dict, B a bool, X any value.
GRAMMAR = {
    "S": ["s", "t", "e", "'%s-%s' % (X, X)", "'a %s' % X", "S ~ X", "S + S", "S[I]", "S[I:I]", "S[::-1]", "S[::I]", "S[:I]", "S * (I % 4)", "S.upper()", "S.lower()", "S.title()",
          "S.capitalize()", "S.strip()", "S.strip('a ')", "S.lstrip()", "S.rstrip('x\\n ')", "S.replace('l', S)", "S.replace('o', '', 1)", "S|upper", "S|lower", "S|title", "S|capitalize",
          "S|trim", "S|trim('H')", "S|replace('e', 'E')", "X|string", "L|join(', ')", "L|join", "ms|map(attribute='role')|join('|')", "S.join(ls)", "', '.join(ls|sort)", "X|tojson", "D|tojson(indent=2)",
          "X|tojson(indent=N)", "D|tojson(sort_keys=true)", "X|tojson(ensure_ascii=true)", "L|tojson(separators=(',', ':'))", "S|indent", "S|indent(2, true)", "S|indent('> ')", "S|first", "S|last", "S|reverse", "'%d' % N",
          "'%.2f' % N", "'%5d|%-5s|' % (I, S)", "'%05.1f' % N", "'{} {}'.format(X, I)", "'{0}{0}'.format(S)", "'{a}'.format(a=I)", "'{:.2f}'.format(F)", "'{:>8}'.format(S)", "'{:,}'.format(I * 12345)", "'%s'|format(X)", "S|default('q', true)",
          "undef|default('q')", "d.get('q', S)", "S if B else S", "S or S", "S and S", "'x' 'y'", "'\\u00e9\\n\\t\\'\\\"\\\\'", "S|center(I + 20)", "S.ljust(9)", "S.rjust(12, '.')", "S.zfill(5)", "S.swapcase()", "S.removeprefix('a')",
          "S.removesuffix('x')", "S.center(15)", "ms[0].role", "ms[-1]['role']", "ms|map(attribute='content')|select|first", "dn.x.y[1].z", "dn['x']['y'][-1]['z']", "S|e", "S|safe", "(S|safe) ~ '<'", "X ~ X", "S|list|join('.')", "S.split(',')|last",
          "(L|string)[1:]", "S|string|upper"],
    "I": ["n", "m", "z", "1", "2", "-1", "0x1F", "1_000", "I + I", "I - I", "I * I", "I // I", "I % I", "-I", "+I", "S|length", "L|length", "D|length", "S|count", "L|count", "N|int", "S|int", "S|int(I)", "'12'|int", "' 7 '|int", "'3.9'|int", "S.find('o')",
          "S.rfind('l')", "S.count('l')", "S.index('')", "L|first", "l|last", "l|max", "l|min", "l|sum", "l[I]", "I ** 2", "I|abs", "ms|sum(attribute='n')", "ms|length", "I if B else I", "range(I)|length", "(B)|int", "B + I", "d.b", "d['a']", "dn['items']", "l.index(1)", "l.count(2)",
          "range(9)[I]", "S|length // 2", "ms|selectattr('n', 'gt', 1)|list|length"],
    "F": ["f", "g", "h", "0.5", "1e3", "2.0", "1.5e-7", "1e16", "F + N", "F * N", "F - N", "I / I", "N / N", "F // N", "F % N", "N|float", "'2.5'|float", "S|float", "F|round", "F|round(1)", "F|round(2, 'floor')", "F|round(method='ceil')", "-F", "F|abs", "lf|sum", "lf|max"],
    "N": ["I", "F", "B"],
    "L": ["l", "ls", "lf", "el", "ms", "[X, X]", "[X]", "(X, X)", "(X,)", "()", "[]", "L + L", "L[I:I]", "L[::-1]", "L[1:]", "L[:-1]", "L[::2]", "S.split()", "S.split(',')", "S.split('l', 1)", "S.rsplit(' ', 1)", "S.split(' ', I)", "S.splitlines()", "S.splitlines(true)", "S.partition(',')", "S.rpartition('o')",
          "S|list", "D|list", "D.keys()|list", "D.values()|list", "D.items()|list", "D|items|list", "D|dictsort", "D|dictsort(reverse=true)", "D|dictsort(by='value')", "L|list", "l|sort", "ls|sort", "ls|sort(case_sensitive=true)", "l|sort(reverse=true)", "ms|sort(attribute='n')", "L|reverse|list", "ls|unique|list",
          "L|map('string')|list", "ls|map('upper')|list", "ms|map(attribute='role')|list", "ms|map(attribute='q', default='w')|list", "l|select('odd')|list", "L|select|list", "L|reject|list", "l|reject('gt', 1)|list", "ms|selectattr('content')|list", "ms|selectattr('role', 'equalto', 'user')|list", "ms|selectattr('role', 'in', ['user'])|list",
          "ms|rejectattr('role', '==', 'user')|list", "ms|groupby('role')", "ms|groupby('role')|map(attribute='list')|list", "ms|groupby('role', case_sensitive=true)|map('first')|list", "L|batch(2)|list", "L|batch(2, 'f')|list", "L|slice(2)|list", "L|slice(2, 'f')|list", "range(3)|list", "range(I, 5)|list", "range(9, 0, -2)|list", "L * (I % 3)",
          "L if B else L", "L or L", "ms|unique(attribute='role')|list", "L|first|list"],
    "D": ["d", "ed", "dn", "{'k': X, 'a': X}", "{}", "{1: 'x', 1.0: 'y', none: X}", "ms[0]", "dict(a=I)", "dict(d, q=X)", "{(1, 2): X}", "ms|first", "ms[I]", "{'a': {'b': X}}", "d.copy()"],
    "B": ["yes", "no", "true", "none is none", "X == X", "X != X", "N < N", "N >= N", "S < S", "1 < I < 5", "X in L", "S in S", "S in D", "X not in L", "not X", "X and X", "X or X", "X is defined", "undef is defined", "X is none", "X is not none", "X is string", "X is number", "X is integer", "X is float", "X is boolean",
          "X is mapping", "X is iterable", "X is sequence", "X is true", "X is false", "X is callable", "I is odd", "I is even", "I is divisibleby 3", "X is eq(X)", "I is gt 2", "X is in L", "X is equalto X", "X is sameas none", "S is upper", "S is lower", "S.startswith('a')", "S.endswith(('x', 'c'))", "S.startswith('H', 0)", "S.isdigit()", "S.isalpha()", "S.isupper()", "S.islower()",
          "S.isspace()", "S.istitle()", "S.isascii()", "L == L", "L < L", "D == D", "undef is undefined", "undef == none", "(X|default(I)) == I", "X is not defined", "B is not true"],
    "X": ["S", "S", "I", "F", "L", "D", "B", "nil", "undef", "X.q", "X['q']", "X[0]", "X|default(X)", "X if B else X", "X if B", "(X)", "d.q", "d.c", "s.q", "nil.q", "L|first", "L|last", "D.values()", "D.keys()", "D.items()", "range(I)", "L|max", "L|min", "D.get(S)", "D.get(S, X)", "dn.get('x').y", "l[9]", "-N", "N + N", "N * N", "X + X", "undef.q"],
}

# Statements around expressions.
STATEMENTS = ["{{ X }}", "{{ X }}|{{ X }}", "{{- S -}} \n x", "{% if X %}a{% elif B %}b{% else %}c{% endif %}", "{% for i in L %}{{ i }}{{ loop.index }}{{ loop.last }};{% else %}none{% endfor %}",
              "{% for k, v in D.items() %}{{ k }}={{ v }},{{ loop.revindex }}{{ loop.length }}{% endfor %}", "{% for i in L if i %}{{ loop.index0 }}{{ i }}{{ loop.previtem }}{{ loop.nextitem }}{% endfor %}",
              "{% set a, b = X, X %}{{ b }}{{ a }}", "{% set a = X %}{% for i in L %}{% set a = i %}{{ a }}{% endfor %}{{ a }}", "{% set ns = namespace(a=X) %}{% for i in L %}{% set ns.a = i %}{% endfor %}{{ ns.a }}",
              "{% macro p(a, b=I) %}[{{ a }}{{ b }}]{% endmacro %}{{ p(X) }}{{ p(b=X, a=S) }}{{ p() }}", "{% macro p() %}{{ caller(X) }}{% endmacro %}{% call(v) p() %}<{{ v }}>{% endcall %}", "{% macro p() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ p(X, k=X) }}",
              "{% filter upper %}a{{ S }}{% endfilter %}", "{% set x %}{{ S }} {% endset %}[{{ x }}]{{ x is string }}", "{% set x | trim %} {{ S }} {% endset %}[{{ x }}]", "{% with a = X, b = S %}{{ a }}{{ b }}{% endwith %}{{ a }}",
              "{% for i in range(6) %}{% if i == I %}{% continue %}{% endif %}{% if i > 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "{% generation %}{{ X }}{% set q = 1 %}{% endgeneration %}{{ q }}",
              "  {%- if B %}\n  {{ S }}\n  {%- endif %}\n\n{# c #}\n  {# d -#}\n z", "{% for i in L recursive %}{{ i }}{% if i is iterable and i is not string and i %}({{ loop(i) }}){{ loop.depth }}{% endif %}{% endfor %}", "{% for i in L %}{{ loop.cycle('a', 'b') }}{{ loop.changed(i) }}{% endfor %}",
              "{% raw %}{{ x }}{% endraw %}\n {% if B +%}\n a{% endif %}", "\n  {% for m in ms -%}\n {{ m.role }}: {{ m['content'] }}\n {%- endfor +%}\n", "{% if ms|selectattr('role', 'equalto', S) %}y{% endif %}", "{% set a = namespace(x=I, y=[]) %}{% set a.y = a.y + [X] %}{{ a.y }}{{ a.q }}",
              "{% set j = joiner(', ') %}{% for i in L %}{{ j() }}{{ i }}{% endfor %}", "{% set c = cycler(X, I) %}{{ c.next() }}{{ c.next() }}{{ c.current }}", "{% for a, b in D|dictsort %}{{ a }}{% endfor %}", "{% for g, i in ms|groupby('role') %}{{ g }}{{ i|length }}{% endfor %}"]


def grow(text, depth, r):
    """A text in which productions replace capital letters that stand alone."""
    out, quote = [], ""
    for i, c in enumerate(text):
        if c in "'\"":
            quote = "" if quote == c else quote or c
        alone = not (text[i - 1:i].isalnum() or text[i + 1:i + 2].isalnum() or text[i - 1:i] in ("_", "\\"))
        if c in GRAMMAR and alone and not quote:
            c = grow(r.choice(GRAMMAR[c][:3] if depth <= 0 and c != "N" else GRAMMAR[c]), depth - 1, r)
            c = c if c.isalnum() else "(" + c + ")" if r.random() < .8 else c
        out.append(c)
    return "".join(out)


def fuzz(n, seed):
    yield {"define": "fuzz", "variables": VARIABLES}
    r = random.Random(seed)
    for i in range(n):
        template = grow(r.choice(STATEMENTS), r.randint(0, 3), r)
        want = render(template, VARIABLES)
        if want is None or "object at 0x" not in want:  # addresses differ from run to run
            yield {"name": f"fuzz {i}", "text": template, "variables": "fuzz", "want": want}


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--write", action="store_true", help="write testdata/cases.jsonl")
    a.add_argument("--families", default=FAMILIES, metavar="FOLDER", help="templates to render")
    a.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    a.add_argument("--count", type=int, default=20000)
    a = a.parse_args()
    path = os.path.join(os.environ.get("SCRATCH", "/tmp"), "chat_templates.jsonl")
    if a.write:
        path, a.seed, a.count = os.path.join(PACKAGE, "testdata/cases.jsonl"), 1, 400
    with open(path, "w", encoding="utf-8") as f:
        for case in itertools.chain(families(a.families), fuzz(a.count, a.seed)):
            f.write(json.dumps(case, ensure_ascii=False) + "\n")
    if a.write:
        return
    done = subprocess.run(["go", "test", ".", "-run", "^TestTransformersRenderings$", "-count=1", "-v", "-args", "-cases", path], cwd=PACKAGE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(done.stdout[-40000:])
    summary = [line.split(": ", 1)[1] for line in done.stdout.splitlines() if " cases" in line]
    if done.returncode or not summary:
        sys.exit(f"the renderings differ (--seed {a.seed})")
    print(summary[-1].strip(), f"(--seed {a.seed})")


if __name__ == "__main__":
    main()
