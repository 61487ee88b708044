"""Texts with wildcards, as `--filter` and a policy name cases."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable


def matches(text: str, patterns: Iterable[str]) -> bool:
    """Whether any pattern is found in the text; `*` and `?` are wild, brackets are themselves."""
    return any(_compiled(pattern).search(text) for pattern in patterns)


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(re.escape(pattern).replace(r"\*", ".*").replace(r"\?", "."))


def is_named(text: str, pattern: str) -> bool:
    """Whether the whole text is as the pattern says."""
    return _compiled(pattern).fullmatch(text) is not None
