"""Bodies that nobody sends by accident: broken, wrong in type, far too long, or costly to understand."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

Fields = dict[str, Any]
Hostile = tuple[str, bytes]
"""A path, and what is posted there."""

USUAL: Fields = {
    "messages": [{"role": "user", "content": "Hi"}],
    "prompt": "Hi",
    "input": "Hi",
    "tokens": [1, 2],
    "max_tokens": 2,
}
LONG_SHARE = 0.04
LONGEST = 8 << 20
"""Bytes, somewhat beyond what the server takes."""

ODD: list[Any] = ["x" * 5000, [0] * 300]
ODD += json.loads(r"""[
    null, true, false, 0, -1, 1, 2147483648, 9223372036854775808, -9223372036854775809,
    1180591620717411303424, 0.5, -0.0, 1e308, 1e-320, "", " ", "\u0000", "\ud83d\ude00", "-1", "NaN", "null",
    "../../etc/passwd", "http://127.0.0.1:1/", [], [null], [[]], [[[]]], [-1], [1099511627776],
    ["a", 1, null], [{}], {}, {"": ""}, {"type": "object"}, {"role": "user"}, [{"role": "user"}],
    {"a": {"b": []}}, [{"role": "tool", "content": [{"type": "image_url"}]}]
]""")
PATTERNS = (
    "(a|a)*b",
    "((a*)*)*c",
    "(x{1000}){1000}",
    "a{0,2147483648}",
    "(?=a)b",
    "(a)\\1",
    "[",
    "(" * 3000,
    "(?:(?:(?:.|a)+)+)+$",
    "[\\u0000-\\U0010ffff]{500}",
    ".*" * 400,
    "^(([a-z])+.)+[A-Z]([a-z])+$",
    "\\p{Nope}",
)
GRAMMARS = (
    "",
    "root ::= ",
    "root ::= root",
    "root ::= root root | root",
    'root ::= "a" missing',
    "start: start start",
    'start: "a"{100000}',
    "root ::= " + "(" * 2000,
    "start: /" + "(a*)*" * 200 + "/",
    "\0",
    "%import common.INT",
    "root ::= " + " | ".join(f'"{index}"' for index in range(20000)),
    'root ::= ("a" | "a")* root?',
)
SCHEMAS: tuple[Any, ...] = (
    {"$ref": "#"},
    {"$ref": "http://127.0.0.1:1/x"},
    {"$ref": "#/$defs/none"},
    {"type": "nope"},
    {"enum": []},
    False,
    {"allOf": [{"type": "string"}, {"type": "integer"}]},
    {"pattern": "(a|a)*b"},
    {"multipleOf": 1e-300},
    {"minItems": 2**40, "type": "array"},
    {"minLength": 2**62, "type": "string"},
    {"required": ["a"] * 5000},
    {"const": "x" * 60000},
    {"enum": list(range(50000))},
    {"properties": {str(index): {} for index in range(5000)}},
    {"oneOf": [{"type": "object", "properties": {str(index): {"const": index}}} for index in range(300)]},
    {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"},
)


def nested(levels: int, of: str) -> bytes:
    opening, closing = {"list": (b"[", b"]"), "object": (b'{"a":', b"}")}[of]
    return opening * levels + b"1" + closing * levels


def hostile(document: Fields, number: int, seed: int = 0) -> Iterator[Hostile]:
    """For the paths, and with the fields, of an OpenAPI document."""
    rng = random.Random(seed)
    named = fields_by_path(document)
    for _ in range(number):
        path = rng.choice(sorted(named))
        base = {name: value for name, value in USUAL.items() if name in named[path]}
        kind = rng.choice((odd, broken, costly)) if rng.random() > LONG_SHARE else long
        yield path, kind(rng, base, sorted(named[path]))


def fields_by_path(document: Fields) -> dict[str, set[str]]:
    """The names in the bodies that are posted there."""
    found: dict[str, set[str]] = {}
    for path, operations in document["paths"].items():
        content = operations.get("post", {}).get("requestBody", {}).get("content", {})
        pending = [content["application/json"]["schema"]] if content else []
        while pending:
            schema = pending.pop()
            pending += [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
            if reference := schema.get("$ref"):
                pending.append(document["components"]["schemas"][reference.rpartition("/")[2]])
            found.setdefault(path, set()).update(schema.get("properties", ()))
    return {path: names for path, names in found.items() if names}


def odd(rng: random.Random, base: Fields, names: list[str]) -> bytes:
    """Some fields with values that they cannot have, or only just."""
    for name in rng.sample(names, min(len(names), rng.randint(1, 4))):
        base[name] = rng.choice(ODD)
    if rng.random() < 0.1:
        del base[rng.choice(sorted(base))]
    return json.dumps(base).encode("utf-8", "surrogatepass")


def broken(rng: random.Random, base: Fields, names: list[str]) -> bytes:
    """Not JSON, or not by a hair."""
    whole = json.dumps(base).encode()
    cut = rng.randrange(len(whole))
    return rng.choice(
        (
            whole[:cut],
            whole[:cut] + bytes([rng.randrange(256)]) + whole[cut:],
            whole + whole,
            b"\xef\xbb\xbf" + whole,
            rng.randbytes(rng.randint(0, 2000)),
            nested(rng.choice((65, 1000, 30000)), rng.choice(("list", "object"))),
            whole[:-1] + b',"prompt":NaN,"messages":Infinity}',
            whole[:-1] + b',"prompt":"\\ud800","messages":[{"role":"user","content":"\\udfff"}]}',
            whole[:-1] + b',"temperature":1' + b"0" * 5000 + b"}",
            whole[:-1] + b',"a":' + nested(60, "list") + b"}",
        )
    )


def costly(rng: random.Random, base: Fields, names: list[str]) -> bytes:
    """Small, and much work for whoever believes it."""
    schema = rng.choice(SCHEMAS)
    for _ in range(rng.choice((0, 0, 5, 40))):
        schema = (
            {"anyOf": [schema, {"type": "array", "items": schema}]} if rng.random() < 0.1 else {"not": schema}
        )
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    turns = [{"role": "user", "content": "Hi"}]
    turn = {
        "role": "assistant",
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{"}}],
    }
    base |= rng.choice(
        (
            {"guided_regex": rng.choice(PATTERNS)},
            {"guided_grammar": rng.choice(GRAMMARS)},
            {"guided_json": schema},
            {"guided_choice": ["x" * index for index in range(600)]},
            {"structured_outputs": {"json": schema, "regex": "a"}},
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}},
            {"response_format": {"type": "structural_tag", "structures": [schema], "triggers": ["<"]}},
            {"tools": [tool] * rng.choice((1, 100)), "tool_choice": "required"},
            {"tools": [tool], "tool_choice": {"type": "function", "function": {"name": "g"}}},
            {"messages": turns * 300},
            {"messages": [*turns, turn, {"role": "tool", "content": "x", "tool_call_id": "2"}]},
            {"chat_template": "{% for a in range(10**9) %}{% endfor %}"},
            {"chat_template_kwargs": {"messages": [], "self": 1, "__class__": 2, "cycler": 3}},
            {"stop": ["a" * index for index in range(1, 400)]},
            {"bad_words": [" ".join("abc" * index) for index in range(1, 60)]},
            {"n": 2**20, "best_of": 2**20, "max_tokens": 2**40},
            {"n": 16, "use_beam_search": True, "temperature": 0},
            {"prompt": [[index % 300] * 100 for index in range(200)]},
            {"prompt": [2**31, -5]},
            {"logit_bias": {str(index): 100 for index in range(3000)}},
            {"allowed_token_ids": list(range(-5, 3000))},
            {"prompt_logprobs": 2**31, "logprobs": 2**31, "top_logprobs": 2**31},
        )
    )
    return json.dumps(base).encode()


def long(rng: random.Random, base: Fields, names: list[str]) -> bytes:
    """From a few hundred KiB to beyond the cap, in one field."""
    size = int(LONGEST * rng.uniform(0.03, 1.1))
    item, value = rng.choice(
        (
            ("x", None),
            (1, None),
            (-1.5, None),
            ([], None),
            ({"a": 1}, None),
            ({"role": "user", "content": "Hi"}, None),
            ({"type": "text", "text": "a"}, None),
            (None, "ab " * (size // 3)),
            (None, "\u6f22" * (size // 6)),
            (None, "a" * size),
            (None, {str(index): index for index in range(size // 16)}),
        )
    )
    if item is not None:
        value = [item] * (size // (len(json.dumps(item)) + 2))
    usual = [name for name in ("prompt", "messages", "input", "tokens", "stop", "tools") if name in names]
    base[rng.choice(usual or names)] = value
    if rng.random() < 0.2:
        base["truncate_prompt_tokens"] = 5
    return json.dumps(base).encode()
