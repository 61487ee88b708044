"""Encode the plain data that ranks of different nodes exchange: JSON in which bytes and tuples are tagged.

A pickle from another machine could run any code, so values that cross nodes are None, booleans, numbers, texts, bytes
and lists or tuples of these, and nothing else."""

import base64
import binascii
import json
from typing import Any

import numpy as np

from gpubench.base.errors import SuiteError

MOST_BYTES = 2**11  # the most bytes of a value as JSON: addresses, tokens and decisions are shorter
_BYTES, _TUPLE = "bytes", "tuple"


def encode(value: object) -> bytes:
    """Return a value of plain data as JSON; NumPy scalars become Python numbers.

    Raises SuiteError if it is no plain data or takes more than `MOST_BYTES` bytes."""
    try:
        content = json.dumps(_tagged(value), separators=(",", ":")).encode("ascii")
    except RecursionError:
        raise SuiteError("a value exchanged between nodes is nested too deeply") from None
    if len(content) > MOST_BYTES:
        raise SuiteError(
            f"a value exchanged between nodes takes {len(content)} bytes, of which {MOST_BYTES} are allowed"
        )
    return content


def _tagged(value: object) -> Any:
    """Return a value for JSON, in which bytes become `{"bytes": base64}` and tuples `{"tuple": list}`."""
    if isinstance(value, np.generic):
        value = value.item()
    match value:
        case None | bool() | int() | float() | str():
            return value
        case bytes():
            return {_BYTES: base64.b64encode(value).decode("ascii")}
        case list():
            return [_tagged(item) for item in value]
        case tuple():
            return {_TUPLE: [_tagged(item) for item in value]}
    raise SuiteError(
        f"ranks of different nodes cannot exchange a {type(value).__name__}; exchange None, booleans, numbers, texts, "
        "bytes and lists or tuples of these"
    )


def decode(content: bytes) -> Any:
    """Return the value that `encode` was given. Raises ValueError if these bytes hold no such value."""
    try:
        return _untagged(json.loads(content))
    except (RecursionError, binascii.Error, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"bytes from another node that are no plain data: {type(error).__name__}") from None


def _untagged(value: Any) -> Any:
    """Return a value that was read from JSON, with the bytes and tuples that `_tagged` has replaced."""
    match value:
        case {"bytes": str(text), **rest} if not rest:
            return base64.b64decode(text, validate=True)
        case {"tuple": list(items), **rest} if not rest:
            return tuple(_untagged(item) for item in items)
        case dict():
            raise ValueError("bytes from another node that are no plain data: an object")
        case list():
            return [_untagged(item) for item in value]
    return value
