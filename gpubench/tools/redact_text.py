"""Hide the parts of a text that can identify a machine or its owner; `redact_patterns` defines how they look.

Parts that can contain spaces come first: keys, quoted paths, values with names of secrets. Then each word by itself."""

import functools
import ipaddress
import itertools
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from gpubench.tools import redact_patterns as patterns

PseudonymOf = Callable[[str, str], str]
"""Returns the pseudonym of a kind and a name: `("host", "gpu17")` gives `host-3fa81c09d2e4`."""


@dataclass(frozen=True, slots=True)
class TextRedactor:
    """Replaces the parts of a text that can identify people, machines or places by pseudonyms.

    `pseudonym_of` returns the pseudonym of a kind and a name."""

    pseudonym_of: PseudonymOf
    versions: Collection[str] = ()
    suites: Collection[str] = ()
    paths: Collection[str] = ()
    _redacted_words: dict[str, str] = field(default_factory=dict)  # words → their replacements

    def redact(self, text: str) -> str:
        """Return the text with pseudonyms in place of the parts that can identify people, machines or places."""
        lowered = text.lower()
        for kind, pattern, triggers in patterns.SPANS:
            if any(trigger in lowered for trigger in triggers):
                text = pattern.sub(functools.partial(self._redact_span, kind), text)
        return patterns.WORD.sub(self._redact_match, self._redact_values(text))

    def _redact_span(self, kind: str, match: re.Match[str]) -> str:
        """Return the whole match of a pattern of SPANS, with a pseudonym of this kind in place of group 1."""
        text, whole = match[1], match[0]
        if kind == "path":
            return text if _is_public_path(text.partition(" ")[0]) else self._redact_path(text)
        start = match.start(1) - match.start()
        return f"{whole[:start]}{self.pseudonym_of(kind, text)}{whole[start + len(text) :]}"

    def _redact_values(self, text: str) -> str:
        """Return the text with pseudonyms in place of the values of secrets and owners: `--token=…`; names stay."""
        parts, at = [], 0
        while match := patterns.NAME.search(text, at):
            parts.append(text[at : match.end()])
            at = match.end()
            pattern = _value_pattern(match[1] or match[3], match[2] or match[4])
            if pattern and (value := pattern.match(text, at)):
                parts.append(self._redact_value(value[0]))
                at = value.end()
        return "".join([*parts, text[at:]])

    def _redact_value(self, value: str) -> str:
        """Return `value` with a pseudonym in place of the text within its quotes; `true` and the like stay."""
        bare = value.lstrip("\\").lstrip("\"'").rstrip(",.:")
        if not bare or patterns.PLAIN_VALUE.fullmatch(bare):
            return value
        start = value.index(bare)
        return f"{value[:start]}{self.pseudonym_of('value', bare)}{value[start + len(bare) :]}"

    def _redact_match(self, match: re.Match[str]) -> str:
        """Return the word that WORD matched, hidden if it identifies a person, a machine or a place."""
        word, at = match[0], match.start()
        if word[0] == "/" and word.count("/") == 1 and match.string[at - 1 : at] in (")", "]"):
            return word  # part of `/proc/[pid]/stat` or `(a + b)/c`
        if word not in self._redacted_words:
            self._redacted_words[word] = self._redact_word(word)
        return self._redacted_words[word]

    def _redact_word(self, word: str) -> str:
        """Return a word with its identifying parts hidden; a punctuation mark at its end stays."""
        if word.startswith("<"):
            return word
        if len(word) > patterns.LONGEST_WORD:
            return self.pseudonym_of("value", word)
        stem = word.rstrip(".:!?")
        before, mark, rest = stem.partition("://")
        names, equals, scheme = before.rpartition("=")
        if mark and rest and scheme:
            url = self.pseudonym_of("url", f"{scheme}{mark}{rest}")
            return f"{self._redact_word(names) if names else ''}{equals}{url}{word[len(stem) :]}"
        return "=".join(map(self._redact_part, stem.split("="))) + word[len(stem) :]

    def _redact_part(self, text: str) -> str:
        """Return a word without `=`, hidden if it identifies a person, a machine or a place."""
        if patterns.KEPT.fullmatch(text) or text in self.versions or not text:
            return text
        if kind := _identifier_kind(text):
            return self.pseudonym_of(kind, text)
        if "/" in text:
            return self._redact_with_slashes(text)
        if ":" in text:
            return self._redact_with_colons(text)
        return text

    def _redact_with_colons(self, text: str) -> str:
        """Return a word with colons, hidden in whole or part: `10.17.3.250:80`, `PCI:0000:9b:00`."""
        name, _, rest = text.partition(":")
        if patterns.ENDPOINT.fullmatch(text) and not _is_address(name) and not patterns.KEPT.fullmatch(name):
            is_kept = (
                name.lower() in patterns.NO_HOSTS or patterns.SOURCE.search(name) or patterns.TRANSFER.fullmatch(text)
            )
            return text if is_kept else self.pseudonym_of("host", text)
        if patterns.ON_BUS.fullmatch(text) or (name.lower() == "pci" and patterns.PCI.fullmatch(rest)):
            return f"{name}:{self.pseudonym_of('pci', rest)}"
        return ":".join(map(self._redact_part, text.split(":")))

    def _redact_with_slashes(self, text: str) -> str:
        """Return words joined by slashes: a path is hidden; a unit, a case id or a name of two parts is kept."""
        if option := re.match(r"-[A-Za-z](?=/)", text):
            return f"{option[0]}{self._redact_with_slashes(text[2:])}"
        place, colon, behind = text.partition(":")
        if colon:
            return (
                f"{self._redact_part(place)}:{self._redact_part(behind)}"
                if behind.count(":") < 8
                else self.pseudonym_of("path", text)
            )
        if text.startswith(("/", "~", "./", "../")) or text in self.paths:
            return self._redact_path(text)
        parts = text.split("/")
        if len(parts) == 2 and parts[1].isdigit() and _is_address(parts[0]):
            return f"{self.pseudonym_of('ip', parts[0])}/{parts[1]}"
        if parts[0] in self.suites or patterns.OURS.fullmatch(text):
            return text
        if len(parts) > 2 or patterns.FILE.search(parts[-1]) or patterns.HOST.fullmatch(parts[0]):
            return self._redact_path(text)
        return "/".join(map(self._redact_part, parts))

    def _redact_path(self, path: str) -> str:
        """Return the pseudonym of a path; the part inside a package is kept, so that tracebacks stay readable."""
        if _is_public_path(path):
            return path
        stem = path.rstrip(".")
        package_path = patterns.CODE.match(stem)
        inner = next((part for part in package_path.groups() if part), "") if package_path else ""
        return f"{self.pseudonym_of('path', stem)}{'/' if inner else ''}{inner}{path[len(stem) :]}"


@functools.lru_cache(maxsize=4096)
def _value_pattern(name: str, sign: str) -> re.Pattern[str] | None:
    """Return the pattern of the value after `name` and `sign` (`: `, `=`, a space); None if it need not be hidden."""
    if patterns.PSEUDONYM.match(name):  # the text was redacted before: `secret-3fa81c09d2e4: refused`
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


def _identifier_kind(text: str) -> str:
    """Return the kind of identifier that a whole word is, such as `mac`, `ip` or `secret`; empty if it is none."""
    kind = next((name for name, pattern in _IDENTIFIERS if pattern.fullmatch(text)), "")
    if kind == "host" and text.startswith(patterns.NO_LABELS):
        return ""
    if kind:
        return kind
    if _is_address(text):
        return "ip"
    return "secret" if _looks_random(text) else ""


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


def _looks_random(text: str) -> bool:
    """Return whether a text looks like a key: it has lower case, upper case and digits, which alternate often."""
    if not patterns.OPAQUE.fullmatch(text):
        return False
    classes = [
        "1" if letter.isdigit() else "A" if letter.isupper() else "a" if letter.isalpha() else "" for letter in text
    ]
    changes = sum(
        bool(previous and following and previous != following) for previous, following in itertools.pairwise(classes)
    )
    return {"A", "a", "1"} <= set(classes) and changes >= len(text) / 2


def _is_public_path(path: str) -> bool:
    """Return whether a path exists on every machine, as `/proc` does, or contains no letter and no digit."""
    if len(path) > patterns.LONGEST_WORD:
        return False
    return patterns.PUBLIC.fullmatch(path) is not None or not re.search(r"\w", path)


def _is_address(text: str) -> bool:
    """Return whether a text is an IP address that can identify a machine; 127.0.0.1 and 0.0.0.0 identify none."""
    if text.count(".") != 3 and (":" not in text or not re.search(r"\d", text)):
        return False  # without a digit it is C++: `a::b`
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return not (address.is_loopback or address.is_unspecified)
