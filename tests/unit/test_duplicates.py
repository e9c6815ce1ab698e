"""Duplicate members of JSON objects."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lucius.usecases.errors import Rejected
from lucius.usecases.submit.duplicate_members import count_members, refuse_duplicates

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text('":,{} \\a', max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('":a \\', max_size=3), inner, max_size=3),
    max_leaves=12,
)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"a":1,"a":1}',
        b'{"a" : 1, "a"\n: 2}',
        b'{"a":1,"\\u0061":2}',
        b'{"x":[{"y":{"b":1,"c":2,"b":3}}]}',
        b'[{"a":{}},{"a":1,"b":"\\":","a":2}]',
        b'{"a":null,"a":1}',
        b'{"":1,"":2}',
        b'{"a":{"long":{"gone":1}},"a":1,"b":"\\":"}',
    ],
)
def test_duplicate_member_is_found_at_any_depth(raw: bytes) -> None:
    with pytest.raises(Rejected, match="twice"):
        refuse_duplicates(raw, count_members(msgspec.json.decode(raw)))
    with pytest.raises(Rejected, match="twice"):
        refuse_duplicates(raw)


@given(VALUES, st.sampled_from([None, 1]))
def test_json_without_duplicate_members_is_accepted(value: Any, indent: int | None) -> None:
    raw = json.dumps(value, indent=indent).encode()
    refuse_duplicates(raw, count_members(msgspec.json.decode(raw)))
    refuse_duplicates(raw)


@given(VALUES, VALUES, st.text('":a \\', max_size=3), st.sampled_from([None, 1]))
def test_duplicated_member_of_random_json_is_refused(first: Any, second: Any, name: str, indent: int | None) -> None:
    one, two = (json.dumps(value, indent=indent) for value in (first, second))
    raw = f"[{{{json.dumps(name)}:{one}, {json.dumps(name)} :{two}}}]".encode()
    with pytest.raises(Rejected, match="twice"):
        refuse_duplicates(raw, count_members(msgspec.json.decode(raw)))


def test_huge_numbers_are_not_converted() -> None:
    refuse_duplicates(b'{"a":' + b"9" * 100_000 + b"}")
