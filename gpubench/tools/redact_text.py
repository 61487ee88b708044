"""Hides the parts of a text that can tell whose a machine is or where it stands; `redact_patterns` has them all."""

from __future__ import annotations

import ipaddress
import itertools
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass

from gpubench.tools import redact_patterns as patterns

Token = Callable[[str, str], str]
"""Gives the pseudonym of a name, by its kind: `token("host", "gpu17")` is `host-3fa81c09d2e4`."""


@dataclass(frozen=True, slots=True)
class Hiding:
    """Puts pseudonyms in the place of the parts of a text that can tell who or where.

    `versions` are texts that look like addresses and are none, `suites` the first words of case ids, which look like
    relative paths, and `paths` relative paths that are hidden however short they are.
    """

    token: Token
    versions: Collection[str] = ()
    suites: Collection[str] = ()
    paths: Collection[str] = ()

    def hidden(self, text: str) -> str:
        """The text without such parts."""
        return patterns.OPAQUE.sub(self._opaque, patterns.PATTERN.sub(self._replaced, text))

    def _replaced(self, found: re.Match[str]) -> str:
        kind = patterns.KIND_OF[found.lastgroup or ""]
        whole = found[0]
        if kind in ("value", "serial"):
            return self._value(found, kind)
        if kind == "folder":
            return self._folder(whole)
        if kind == "relative":
            return self._relative(whole)
        if kind == "path":
            return self._path(whole)
        if kind == "kept" or self._is_kept(kind, whole):
            return whole
        return self.token("host" if kind == "endpoint" else kind, whole)

    def _value(self, found: re.Match[str], kind: str) -> str:
        """Hide the value alone of `--token=…`, `serial number …`: its name stays."""
        group = (found.lastindex or 0) + 1  # the one inside the pattern's own
        value, whole = found[group], found[0]
        bare = value.lstrip("\\").lstrip("\"'").rstrip(",.:")
        if not bare or patterns.PLAIN_VALUE.fullmatch(bare):
            return whole
        start = found.start(group) - found.start() + value.index(bare)
        return f"{whole[:start]}{self.token(kind, bare)}{whole[start + len(bare) :]}"

    def _is_kept(self, kind: str, text: str) -> bool:
        """Whether a text that is written like an identifier is none."""
        if kind == "ip":
            return text in self.versions or not _is_address(text)
        if kind == "endpoint":
            name = text.partition(":")[0]
            is_code = patterns.SOURCE.search(name) or patterns.TRANSFER.fullmatch(text)
            return name.lower() in patterns.NO_HOSTS or is_code is not None
        return kind == "host" and text.startswith(patterns.NO_LABELS)

    def _folder(self, text: str) -> str:
        """A path that begins with a slash, a dot or a tilde, and perhaps words behind it that can be a part of it."""
        base, space, rest = text.partition(" ")
        if _is_public(base.rstrip(".")):
            return f"{base}{space}{self.hidden(rest)}"
        return self._path(text)

    def _relative(self, text: str) -> str:
        """Words with slashes between them, which are a path, or a unit, a case's id, a name of two parts."""
        parts = text.split("/")
        if text in self.paths:
            return self.token("path", text)
        if parts[0] in self.suites or patterns.OURS.fullmatch(text[: patterns.LONGEST_PATH]):
            return text
        if len(parts) > 2 or patterns.FILE.search(parts[-1]):
            return self._path(text)
        return "/".join(map(self.hidden, parts))

    def _path(self, path: str) -> str:
        """A path's pseudonym; behind it the part that belongs to a package, so that a traceback stays one."""
        if _is_public(path):
            return path
        stem = path.rstrip(".")
        code = patterns.CODE.match(stem) if len(path) <= patterns.LONGEST_PATH else None
        inner = next((part for part in code.groups() if part), "") if code else ""
        return f"{self.token('path', stem)}{'/' if inner else ''}{inner}{path[len(stem) :]}"

    def _opaque(self, found: re.Match[str]) -> str:
        """Hide what looks like a key: its letters and digits change by chance."""
        text = found[0]
        kinds = list(map(_kind, text))
        changes = sum(bool(one and other and one != other) for one, other in itertools.pairwise(kinds))
        is_key = {"A", "a", "1"} <= set(kinds) and changes >= len(text) / 2
        return self.token("secret", text) if is_key else text


def _kind(letter: str) -> str:
    if letter.isdigit():
        return "1"
    return ("A" if letter.isupper() else "a") if letter.isalpha() else ""


def _is_public(path: str) -> bool:
    return len(path) <= patterns.LONGEST_PATH and patterns.PUBLIC.fullmatch(path) is not None


def _is_address(text: str) -> bool:
    """Whether a text is the address of a machine; that of every machine itself (127.0.0.1) tells nothing."""
    if ":" in text and not re.search(r"\d", text):
        return False  # `a::b` is C++
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return False
    return not (found.is_loopback or found.is_unspecified)
