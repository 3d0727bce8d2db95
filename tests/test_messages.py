"""Messages between ranks: every object comes back equal, and reading one runs no code."""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mage.config.errors import UserError
from mage.ranks.messages import decode, encode
from mage.types import Completion, Task, TurnRef

ATOMS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
KEYS = st.integers() | st.text() | st.tuples(st.integers(), st.text())
ITEMS = st.recursive(
    ATOMS,
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(KEYS, inner),
    max_leaves=8,
)


@given(ITEMS)
def test_plain_objects_come_back_equal(item):
    found = decode(encode(item))
    assert found == item
    assert type(found) is type(item)


def test_records_come_back_equal():
    task = Task("kuhn_poker", 2**62 + 1, 1, "a" * 40, "train")
    completion = Completion(tuple(range(40)), (-0.1,) * 40, "\ud800 text" * 9, "stop", 3)
    item = [
        (task, completion, TurnRef(0, 1, 2, -1, "a" * 40)),
        Counter({("x", 1): 2.5}),
        Path("a/b"),
    ]
    assert decode(encode(item)) == item
    assert isinstance(decode(encode(item))[1], Counter)


@pytest.mark.parametrize("times", [1, 20])
def test_numbers_keep_every_bit(times):
    values = [0.1, 1e-310, -0.0, float("inf"), 1 / 3] * times
    assert [one.hex() for one in decode(encode(values))] == [one.hex() for one in values]
    assert decode(encode(float("nan"))) != decode(encode(float("nan")))


@pytest.mark.parametrize("largest", [2**31 - 1, 2**31, 2**63 - 1, 2**63, True])
def test_long_lists_of_whole_numbers(largest):
    item = (*range(40), -3, largest)
    assert decode(encode(item)) == item
    assert type(decode(encode(item))[-1]) is type(largest)


def test_a_long_object_that_occurs_twice_is_sent_once():
    long = tuple(range(1000))
    assert len(encode([long] * 50)) < 2 * len(encode(long))
    found = decode(encode([long] * 50))
    assert found == [long] * 50
    assert found[0] is found[49]


@dataclass
class _Armed:
    """A record that would tell if a message ran its code."""

    value: int

    def __post_init__(self) -> None:
        raise AssertionError("a message ran code")

    def __setstate__(self, state: object) -> None:
        raise AssertionError("a message ran code")


def test_reading_runs_no_code_of_a_record():
    message = json.dumps(["record", __name__, "_Armed", [7]]).encode()
    assert decode(message).value == 7


@pytest.mark.parametrize(
    "data",
    [
        ["record", "os", "system", ["true"]],
        ["record", "subprocess", "Popen", ["true"]],
        ["record", "antigravity", "x", []],  # a module that is not loaded
        ["enum", "os", "environ", "PATH"],
        ["call", "os.system", "true"],
        ["tensor", "load", [1], ""],
    ],
)
def test_foreign_objects_are_refused(data):
    with pytest.raises(UserError, match="another rank has sent"):
        decode(json.dumps(data).encode())


def test_unknown_types_are_not_sent():
    with pytest.raises(TypeError, match="cannot send an object of the type function"):
        encode(lambda: None)
