"""Tests that JSON and TOML of any shape, depth and size is read as declared, or refused in one sentence."""

from typing import Any, NotRequired, TypedDict

import pytest

from cse import InputError
from cse.io import parse_json, read_json, read_toml

NOT_JSON = {
    "empty": b"",
    "not UTF-8": b'{"a": "\xff"}',
    "cut": b'{"a": [1, 2',
    "two values": b'{"a": 1} {"a": 2}',
    "deep": b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep objects": b'{"a": ' * 100_000 + b"1" + b"}" * 100_000,
    "integer of 5,000 digits": b'{"a": ' + b"9" * 5000 + b"}",
}


class Shape(TypedDict):
    a: int
    b: list[str]
    c: NotRequired[dict[str, float] | None]


@pytest.mark.parametrize("content", NOT_JSON.values(), ids=NOT_JSON)
def test_what_is_not_json_is_refused_in_one_sentence(tmp_path, content):
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(InputError, match=r"x\.json: is not valid JSON \(.{5,200}\); do this$") as caught:
        read_json(tmp_path / "x.json", dict[str, Any], "; do this")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "w: must be an object, got a list$"),
        ("null", "w: must be an object, got null$"),
        ('{"b": []}', "w: a: is missing$"),
        ('{"a": "1", "b": []}', "w: a: must be an integer, got '1'$"),
        ('{"a": true, "b": []}', "w: a: must be an integer, got true$"),
        ('{"a": 1.5, "b": []}', "w: a: must be an integer, got 1.5$"),
        ('{"a": 1, "b": {"c": 1}}', "w: b: must be a list, got an object$"),
        ('{"a": 1, "b": ["x", 2]}', "w: b: 2: must be text, got 2$"),
        ('{"a": 1, "b": [], "c": {"d": [1]}}', "w: c: d: must be a number, got a list$"),
        ('{"a": 1, "b": [], "c": 3}', "w: c: must be an object or null, got 3$"),
        (f'{{"a": "{"9" * 5000}", "b": []}}', "w: a: must be an integer, got '9{58}\u2026$"),
    ],
)
def test_a_value_of_another_shape_is_refused_with_its_place(content, message):
    with pytest.raises(InputError, match=message):
        parse_json(content, Shape, "w")


@pytest.mark.parametrize(
    "content",
    [
        b"\xff",
        b"a = ",
        b"a = " + b"9" * 5000,
        b"a = " + b"[" * 50_000,
        b"a = 0x" + b"f" * 5000,
        b"[a" + b".a" * 50_000 + b"]",
    ],
    ids=["not UTF-8", "cut", "digits", "depth", "hexadecimal", "tables"],
)
def test_toml_that_cannot_be_read_is_refused_in_one_sentence(tmp_path, content):
    (tmp_path / "x.toml").write_bytes(content)
    with pytest.raises(InputError, match=r"x\.toml: .{5,200}$"):
        read_toml(tmp_path / "x.toml", dict[str, str])
