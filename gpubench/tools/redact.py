"""Anonymise a run for sharing: remove people, machines and places, keep every figure (docs/sharing.md).

A removed name is replaced by its kind and twelve hexadecimal digits, such as `host-3fa81c09d2e4`. The digits are a
keyed hash: two runs of one device have the same pseudonym, and nobody without the key can test names against it.
Redacting again changes nothing.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from gpubench.base.clean import clean
from gpubench.base.walk import Value, with_texts
from gpubench.model import DataFile, Device, Facts, Manifest, Run
from gpubench.tools.redact_patterns import PSEUDONYM
from gpubench.tools.redact_text import Hiding, Token

_DIGITS = 12  # hexadecimal digits of the hash: 48 bits, enough to keep the names of a fleet distinct
_HOST_KEPT = frozenset(  # these facts identify no machine
    {"system", "machine", "cpus", "cpu", "memory_bytes", "governor", "numa", "shared memory", "ptrace scope"}
)
_NAMES_ONE = re.compile(
    r"serial|uuid|guid|hostname|address|(?<![a-z])(?:user|path|pci|mac|ip|id|asset|tag)(?![a-z])|\bboard$",
    re.IGNORECASE,
)
# Names that many machines and accounts have: hiding the word `host` would damage sentences and protect nobody.
_COMMON = frozenset(
    {
        "admin",
        "administrator",
        "bench",
        "build",
        "ci",
        "container",
        "data",
        "debian",
        "default",
        "dev",
        "docker",
        "gpu",
        "gpu0",
        "guest",
        "host",
        "localhost",
        "max",
        "min",
        "nobody",
        "node",
        "node0",
        "nvidia",
        "ops",
        "perf",
        "redacted",
        "root",
        "runner",
        "server",
        "test",
        "tmp",
        "ubuntu",
        "user",
        "worker",
    }
)
_SHORTEST = 3  # characters: a shorter name is part of too many words
_LONGEST = 256  # characters of a name that is searched for; with the limit on names this keeps the time linear
_MOST_NAMES = 1000
_VERSION = re.compile(r"v?\d[\w.+~-]{0,63}")
_CODE_WORD = re.compile(r"[A-Za-z_]\w{0,63}(?::\d{1,3})?")  # a case, unit or device: `triad`, `cuda:0`
_CODE_WORDS = re.compile(r"[\w%°·²³µ()]{1,64}(?:[ ./:+*-][\w%°·²³µ()*]{1,64}){0,16}")  # `nvml.clock.sm`, `mem-bw/h2d`
_PERSON = re.compile(r"(?:/home/|/Users/|[A-Za-z]:\\Users\\|/user\.)([\w.-]{1,64})")


def redacted(run: Run, salt: bytes, names: Sequence[str] = (), others: Sequence[Manifest] = ()) -> Run:
    """Return the run without anything that identifies its owner or its machine.

    `names` are further names to hide, such as a user's. `others` are the manifests of runs of other machines, whose
    names may occur in the texts of this run. Host and user names, device UUIDs, PCI ids, serial numbers, addresses,
    paths, environment variables and the command line are replaced, in their own fields and in any text.
    """
    token = pseudonyms(salt)
    manifest = run.manifest
    texts = _Texts.of([manifest, *others], token, (*names, *people(run)))
    facts = _facts(manifest.facts, token)
    suites = tuple(
        suite.rpartition("/")[2] for suite in manifest.settings.suites
    )  # a suite file is named after its suite
    data = tuple(_data(file, token) for file in manifest.settings.data)
    settings = replace(manifest.settings, suites=suites, data=data)
    shared_manifest = replace(manifest, facts=facts, settings=settings, argv=_command(manifest.argv), started="")
    warnings = tuple(re.sub(r"^.+?: (?=(after )?line \d)", "", warning) for warning in run.warnings)
    changed = with_texts(replace(run, manifest=shared_manifest, warnings=warnings), texts.cleared, texts.cleared_words)
    return replace(changed, manifest=replace(changed.manifest, started=manifest.started))


def without_names(
    value: Value,
    manifests: Sequence[Manifest],
    salt: bytes,
    names: Sequence[str] = (),
    suites: Collection[str] = (),
) -> Value:
    """Return a value made from the runs of these manifests, with its texts anonymised as `redacted` does.

    `suites` are names of further suites: the ids of their cases look like paths, but must be kept.
    """
    texts = _Texts.of(manifests, pseudonyms(salt), (*names, *people((value, tuple(manifests)))), suites)
    return with_texts(value, texts.cleared, texts.cleared_words)


def pseudonyms(salt: bytes) -> Token:
    """Return the function from a kind and a name to a pseudonym, which is the same in all documents with this salt."""

    @functools.cache
    def token(kind: str, name: str) -> str:
        if PSEUDONYM.fullmatch(name):
            return name
        digest = hmac.new(salt, f"{kind}\0{name}".encode(errors="replace"), hashlib.sha256).hexdigest()
        return f"{kind}-{digest[:_DIGITS]}"

    return token


def _facts(facts: Facts, token: Token) -> Facts:
    where = dict(facts.host).get("hostname", "")
    return replace(
        facts,
        devices=tuple(_device(device, where, token) for device in facts.devices),
        host=tuple((name, _host(name, value, token)) for name, value in facts.host),
    )


def _host(name: str, value: str, token: Token) -> str:
    return value if name in _HOST_KEPT or not value else token("host" if name == "hostname" else "name", value)


def _device(device: Device, hostname: str, token: Token) -> Device:
    """Return the device with a pseudonym from its UUID, or else from its host and PCI id; without both it has none."""
    identity = device.uuid or (f"{hostname} {device.pci or device.id}" if hostname else "")
    details = tuple(
        (name, token("name", value) if _NAMES_ONE.search(name) and value else value) for name, value in device.details
    )
    return replace(device, uuid=token("device", identity) if identity else "", pci="", details=details)


def _data(file: DataFile, token: Token) -> DataFile:
    return replace(file, path=token("path", file.path), sha256=token("file", file.sha256) if file.sha256 else "")


def _command(argv: Sequence[str]) -> tuple[str, ...]:
    """Return the program and the command of a command line: `gpubench run`."""
    return ("gpubench", *(word for word in argv[1:2] if re.fullmatch(r"[a-z]{1,12}", word)))


@dataclass(frozen=True, slots=True)
class _Texts:
    """Removes names from texts: first the names in the run's fields, then anything that looks like a name."""

    known: re.Pattern[str]
    tokens: dict[str, str]  # a known name in lower case → its pseudonym
    hiding: Hiding

    @classmethod
    def of(
        cls, manifests: Sequence[Manifest], token: Token, people: Sequence[str], more_suites: Collection[str] = ()
    ) -> _Texts:
        """Return the remover of these runs' and people's names, the longest first, so that none is hidden in part."""
        suites = frozenset((*more_suites, *(suite.name for manifest in manifests for suite in manifest.suites)))
        tokens: dict[str, str] = {}
        known_names = [known_name for manifest in manifests for known_name in _known(manifest)]
        for kind, name, whole in (*(("user", person, person.lower()) for person in people), *known_names):
            if is_a_name(name) and name not in suites and len(tokens) < _MOST_NAMES:
                tokens[name.lower()] = token(kind, whole)
        alternatives = "|".join(re.escape(name) for name in sorted(tokens, key=len, reverse=True))
        pattern = re.compile(
            rf"(?<![A-Za-z0-9])(?:{alternatives})(?![A-Za-z0-9])" if alternatives else r"(?!)", re.IGNORECASE
        )
        values = (value for manifest in manifests for _, value in manifest.facts.versions)
        versions = frozenset(value for value in values if _VERSION.fullmatch(value))
        paths = frozenset(path for manifest in manifests for path in _paths(manifest))
        return cls(pattern, tokens, Hiding(token, versions, suites, paths))

    def cleared(self, text: str) -> str:
        """Return the text without names."""
        if PSEUDONYM.fullmatch(text):
            return text
        if not text.isprintable():  # otherwise the end of an escape sequence could touch a name and hide it
            text = "\n".join(map(clean, text.split("\n")))
        text = self.known.sub(self._token, text)
        return text if text in self.hiding.versions else self.hiding.hidden(text)

    def _token(self, match: re.Match[str]) -> str:
        name = match[0].lower()
        if name in self.tokens:
            return self.tokens[name]
        # a few letters match others that lower() does not produce: `ſ` matches `s`
        same = (
            name_in_lower_case
            for name_in_lower_case in self.tokens
            if re.fullmatch(re.escape(name_in_lower_case), match[0], re.IGNORECASE)
        )
        return self.tokens[next(same)]

    def cleared_words(self, text: str) -> str:
        """Return a text that code chose; it is anonymised only if it is not written like an identifier."""
        if _CODE_WORD.fullmatch(text) or (_CODE_WORDS.fullmatch(text) and self.hiding.hidden(text) == text):
            return text
        return self.cleared(text)


def is_a_name(name: str) -> bool:
    """Return whether a name is searched for in texts: it is neither too short nor a name that many machines have."""
    return _SHORTEST <= len(name) <= _LONGEST and name.lower() not in _COMMON and not PSEUDONYM.fullmatch(name)


def _known(manifest: Manifest) -> Iterator[tuple[str, str, str]]:
    """Yield the names in a run's fields: kind, name, and full name (a host's first label stands for the host)."""
    facts = manifest.facts
    for name, value in facts.host:
        if name not in _HOST_KEPT and value:
            kind = "host" if name == "hostname" else "name"
            yield from ((kind, part, value) for part in (value, value.partition(".")[0]))
    for device in facts.devices:
        yield "device", device.uuid, device.uuid
        yield "pci", device.pci, device.pci
        yield from (("name", value, value) for name, value in device.details if _NAMES_ONE.search(name))
    yield from (("path", path, path) for path in _paths(manifest) if re.search(r"[\s:;,|()\[\]{}]", path))


def _paths(manifest: Manifest) -> Iterator[str]:
    """Yield the paths in the command line and the settings, and the folders above them."""
    for word in (*(file.path for file in manifest.settings.data), *manifest.argv[1:_MOST_NAMES]):
        path = word.rpartition("=")[2]
        while len(path) <= _LONGEST and path.strip("/").count("/"):
            yield path
            path = path.rpartition("/")[0]


def people(value: object) -> list[str]:
    """Return the users whose home folders occur in the texts of a value."""
    users: dict[str, None] = {}

    def look(text: str) -> str:
        users.update(dict.fromkeys(_PERSON.findall(text)))
        return text

    with_texts(value, look)
    return list(users)
