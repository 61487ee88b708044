"""Match texts with the wildcard patterns by which `--filter` and a policy select cases."""

import functools
import re
from collections.abc import Iterable


def matches(text: str, patterns: Iterable[str]) -> bool:
    """Return whether any pattern occurs in the text; `*` and `?` are wildcards, brackets are plain characters."""
    return any(_compiled(pattern).search(text) for pattern in patterns)


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(re.escape(pattern).replace(r"\*", ".*").replace(r"\?", "."))


def is_named(text: str, pattern: str) -> bool:
    """Return whether the pattern matches the whole text."""
    return _compiled(pattern).fullmatch(text) is not None
