"""Hides the parts of a text that can tell whose a machine is or where it stands; `redact_patterns` says how they look.

First go the parts that can hold blanks: keys, quoted paths, values with the names of secrets. Then each word by itself.
"""

from __future__ import annotations

import functools
import ipaddress
import itertools
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

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
    _known: dict[str, str] = field(default_factory=dict)  # words and what becomes of them

    def hidden(self, text: str) -> str:
        """The text without such parts."""
        lowered = text.lower()
        for kind, pattern, triggers in patterns.SPANS:
            if any(trigger in lowered for trigger in triggers):
                text = pattern.sub(functools.partial(self._span, kind), text)
        return patterns.WORD.sub(self._word_found, self._without_values(text))

    def _span(self, kind: str, found: re.Match[str]) -> str:
        """A part with blanks in it, of which the group goes; what begins with a public path is none."""
        text, whole = found[1], found[0]
        if kind == "path":
            return text if _is_public(text.partition(" ")[0]) else self._path(text)
        start = found.start(1) - found.start()
        return f"{whole[:start]}{self.token(kind, text)}{whole[start + len(text) :]}"

    def _without_values(self, text: str) -> str:
        """Hide the value alone of `--token=…`: its name stays."""
        parts, at = [], 0
        while found := patterns.NAME.search(text, at):
            parts.append(text[at : found.end()])
            at = found.end()
            pattern = _value_pattern(found[1] or found[3], found[2] or found[4])
            if pattern and (value := pattern.match(text, at)):
                parts.append(self._value(value[0]))
                at = value.end()
        return "".join([*parts, text[at:]])

    def _value(self, value: str) -> str:
        bare = value.lstrip("\\").lstrip("\"'").rstrip(",.:")
        if not bare or patterns.PLAIN_VALUE.fullmatch(bare):
            return value
        start = value.index(bare)
        return f"{value[:start]}{self.token('value', bare)}{value[start + len(bare) :]}"

    def _word_found(self, found: re.Match[str]) -> str:
        word, at = found[0], found.start()
        if word[0] == "/" and word.count("/") == 1 and found.string[at - 1 : at] in (")", "]"):
            return word  # of `/proc/[pid]/stat`, `(a + b)/c`
        if word not in self._known:
            self._known[word] = self._word(word)
        return self._known[word]

    def _word(self, word: str) -> str:
        """Hide what a word names, but the full stop behind it; of an assignment each side by itself."""
        if word.startswith("<"):
            return word
        if len(word) > patterns.LONGEST_WORD:
            return self.token("value", word)
        stem = word.rstrip(".:!?")
        before, mark, rest = stem.partition("://")
        names, equals, scheme = before.rpartition("=")
        if mark and rest and scheme:
            url = self.token("url", f"{scheme}{mark}{rest}")
            return f"{self._word(names) if names else ''}{equals}{url}{word[len(stem) :]}"
        return "=".join(map(self._part, stem.split("="))) + word[len(stem) :]

    def _part(self, text: str) -> str:
        """A word with no assignment in it."""
        if patterns.KEPT.fullmatch(text) or text in self.versions or not text:
            return text
        if kind := _kind(text):
            return self.token(kind, text)
        if "/" in text:
            return self._slashed(text)
        if ":" in text:
            return self._with_colons(text)
        return text

    def _with_colons(self, text: str) -> str:
        """What is no address as a whole: `file.py:3`, `10.17.3.250:80`, `PCI:0000:9b:00`."""
        name, _, rest = text.partition(":")
        if patterns.ENDPOINT.fullmatch(text) and not _is_address(name) and not patterns.KEPT.fullmatch(name):
            is_kept = (
                name.lower() in patterns.NO_HOSTS or patterns.SOURCE.search(name) or patterns.TRANSFER.fullmatch(text)
            )
            return text if is_kept else self.token("host", text)
        if patterns.ON_BUS.fullmatch(text) or (name.lower() == "pci" and patterns.PCI.fullmatch(rest)):
            return f"{name}:{self.token('pci', rest)}"
        return ":".join(map(self._part, text.split(":")))

    def _slashed(self, text: str) -> str:
        """Words with slashes between them, which are a path, or a unit, a case's id, a name of two parts."""
        if option := re.match(r"-[A-Za-z](?=/)", text):
            return f"{option[0]}{self._slashed(text[2:])}"
        place, colon, behind = text.partition(":")
        if colon:
            return f"{self._part(place)}:{self._part(behind)}" if behind.count(":") < 8 else self.token("path", text)
        if text.startswith(("/", "~", "./", "../")) or text in self.paths:
            return self._path(text)
        parts = text.split("/")
        if len(parts) == 2 and parts[1].isdigit() and _is_address(parts[0]):
            return f"{self.token('ip', parts[0])}/{parts[1]}"
        if parts[0] in self.suites or patterns.OURS.fullmatch(text):
            return text
        if len(parts) > 2 or patterns.FILE.search(parts[-1]) or patterns.HOST.fullmatch(parts[0]):
            return self._path(text)
        return "/".join(map(self._part, parts))

    def _path(self, path: str) -> str:
        """A path's pseudonym; behind it the part that belongs to a package, so that a traceback stays one."""
        if _is_public(path):
            return path
        stem = path.rstrip(".")
        code = patterns.CODE.match(stem)
        inner = next((part for part in code.groups() if part), "") if code else ""
        return f"{self.token('path', stem)}{'/' if inner else ''}{inner}{path[len(stem) :]}"


@functools.lru_cache(maxsize=4096)
def _value_pattern(name: str, sign: str) -> re.Pattern[str] | None:
    """How the value ends that a name and a sign (`: `, `=`, a blank) announce; None if it is none to hide."""
    if patterns.PSEUDONYM.match(name):  # of a text that was redacted before: `secret-3fa81c09d2e4: refused`
        return None
    parts = re.split(r"[_.-]+", name.strip("-").lower())
    parts += ["".join(pair) for pair in itertools.pairwise(parts)]
    is_assigned = "=" in sign or "'" in sign or '"' in sign
    if not patterns.HEADERS.isdisjoint(parts):
        return patterns.LINE
    names = patterns.CREDENTIALS | patterns.OWNERS
    if is_assigned or name.startswith("--"):
        names |= patterns.ASSIGNED_OWNERS
    is_variable = is_assigned and patterns.VARIABLE.fullmatch(name)
    return patterns.VALUE if is_variable or not names.isdisjoint(parts) else None


def _kind(text: str) -> str:
    """The kind of an identifier that a word is as a whole; empty if it is none."""
    found = next((kind for kind, pattern in _IDENTIFIERS if pattern.fullmatch(text)), "")
    if found == "host" and text.startswith(patterns.NO_LABELS):
        return ""
    if found:
        return found
    if _is_address(text):
        return "ip"
    return "secret" if _is_by_chance(text) else ""


_IDENTIFIERS = (
    ("device", patterns.DEVICE),
    ("mac", patterns.MAC),
    ("pci", patterns.PCI),
    ("id", patterns.CONTAINER),
    ("secret", patterns.KEY),
    ("mail", patterns.MAIL),
    ("host", patterns.HOST),
    ("path", re.compile(r"(?:[A-Za-z]:|%\w+%|\.{1,2})\\.*|\\\\[^\\].*", re.DOTALL)),
)


def _is_by_chance(text: str) -> bool:
    """Whether a text looks like a key: small and capital letters and digits that change at every other place."""
    if not patterns.OPAQUE.fullmatch(text):
        return False
    classes = ["1" if each.isdigit() else "A" if each.isupper() else "a" if each.isalpha() else "" for each in text]
    changes = sum(bool(one and other and one != other) for one, other in itertools.pairwise(classes))
    return {"A", "a", "1"} <= set(classes) and changes >= len(text) / 2


def _is_public(path: str) -> bool:
    """Whether a path is one that every machine has, or none: `/.`, `//`."""
    if len(path) > patterns.LONGEST_WORD:
        return False
    return patterns.PUBLIC.fullmatch(path) is not None or not re.search(r"\w", path)


def _is_address(text: str) -> bool:
    """Whether a text is the address of a machine; that of every machine itself (127.0.0.1) tells nothing."""
    if text.count(".") != 3 and (":" not in text or not re.search(r"\d", text)):
        return False  # without a digit it is C++: `a::b`
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return not (found.is_loopback or found.is_unspecified)
