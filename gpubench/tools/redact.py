"""What may be shared of a run: who and where are taken out, what was measured stays. docs/sharing.md is the rule.

A name that is taken out becomes a word of its kind and twelve hexadecimal digits, `host-3fa81c09d2e4`: the
digits are a keyed hash, so that two runs of one device still have one name, and nobody without the key can try
names out against it. Redacting again changes nothing.
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

_DIGITS = 12  # of the hash: 48 bits, of which a fleet holds a handful
_HOST_KEPT = frozenset(  # they name no machine
    {"system", "machine", "cpus", "cpu", "memory_bytes", "governor", "numa", "shared memory", "ptrace scope"}
)
_NAMES_ONE = re.compile(
    r"serial|uuid|guid|hostname|address|(?<![a-z])(?:user|path|pci|mac|ip|id|asset|tag)(?![a-z])|\bboard$",
    re.IGNORECASE,
)
# Names that a great many machines and accounts have: hiding the word `host` would spoil sentences and hide nobody.
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
_SHORTEST = 3  # letters: a shorter name stands in too many words
_LONGEST = 256  # letters of a name that is looked for in texts, and 1000 of them: both keep the time linear
_MOST_NAMES = 1000
_VERSION = re.compile(r"v?\d[\w.+~-]{0,63}")
_CODE_WORD = re.compile(r"[A-Za-z_]\w{0,63}(?::\d{1,3})?")  # of a case, a unit, a device: `triad`, `cuda:0`
_CODE_WORDS = re.compile(r"[\w%°·²³µ()]{1,64}(?:[ ./:+*-][\w%°·²³µ()*]{1,64}){0,16}")  # `nvml.clock.sm`, `mem-bw/h2d`
_PERSON = re.compile(r"(?:/home/|/Users/|[A-Za-z]:\\Users\\|/user\.)([\w.-]{1,64})")


def redacted(run: Run, salt: bytes, names: Sequence[str] = (), others: Sequence[Manifest] = ()) -> Run:
    """The run without what says whose it is and where it stands; `names` are words that say so, as a user's.

    `others` are the manifests of runs of other machines, whose names the texts of this run can hold.

    Host and user names, device UUIDs, PCI ids, serials, addresses, paths, variables of the environment and the
    command line: in the fields that are for them, and wherever they stand in a text.
    """
    token = pseudonyms(salt)
    manifest = run.manifest
    texts = _Texts.of([manifest, *others], token, (*names, *people(run)))
    facts = _facts(manifest.facts, token)
    suites = tuple(suite.rpartition("/")[2] for suite in manifest.settings.suites)  # of a file its name is its suite's
    data = tuple(_data(file, token) for file in manifest.settings.data)
    settings = replace(manifest.settings, suites=suites, data=data)
    known = replace(manifest, facts=facts, settings=settings, argv=_command(manifest.argv), started="")
    warnings = tuple(re.sub(r"^.+?: (?=(after )?line \d)", "", warning) for warning in run.warnings)
    changed = with_texts(replace(run, manifest=known, warnings=warnings), texts.cleared, texts.cleared_words)
    return replace(changed, manifest=replace(changed.manifest, started=manifest.started))


def without_names(
    value: Value,
    manifests: Sequence[Manifest],
    salt: bytes,
    names: Sequence[str] = (),
    suites: Collection[str] = (),
) -> Value:
    """A value that was made of the runs of these manifests, with the texts in it cleared as `redacted` clears them.

    `suites` are names of suites that the manifests do not hold: the ids of their cases look like paths.
    """
    texts = _Texts.of(manifests, pseudonyms(salt), (*names, *people((value, tuple(manifests)))), suites)
    return with_texts(value, texts.cleared, texts.cleared_words)


def pseudonyms(salt: bytes) -> Token:
    """Return what gives a name its pseudonym, by its kind: the same in all documents that are shared with this salt."""

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


def _device(device: Device, where: str, token: Token) -> Device:
    """One device of one machine has one pseudonym, by its UUID, or else by where it is; none where neither is known."""
    one = device.uuid or (f"{where} {device.pci or device.id}" if where else "")
    details = tuple(
        (name, token("name", value) if _NAMES_ONE.search(name) and value else value) for name, value in device.details
    )
    return replace(device, uuid=token("device", one) if one else "", pci="", details=details)


def _data(file: DataFile, token: Token) -> DataFile:
    return replace(file, path=token("path", file.path), sha256=token("file", file.sha256) if file.sha256 else "")


def _command(argv: Sequence[str]) -> tuple[str, ...]:
    """Of a command line its command: `gpubench run`."""
    return ("gpubench", *(word for word in argv[1:2] if re.fullmatch(r"[a-z]{1,12}", word)))


@dataclass(frozen=True, slots=True)
class _Texts:
    """What takes names out of texts: the names that are known from the run's fields, then what looks like one."""

    known: re.Pattern[str]
    tokens: dict[str, str]  # a known name, in small letters → its pseudonym
    hiding: Hiding

    @classmethod
    def of(
        cls, manifests: Sequence[Manifest], token: Token, people: Sequence[str], more_suites: Collection[str] = ()
    ) -> _Texts:
        """The names that runs and people have, the longest first, so that none is hidden only in part."""
        suites = frozenset((*more_suites, *(suite.name for manifest in manifests for suite in manifest.suites)))
        tokens: dict[str, str] = {}
        known = [found for manifest in manifests for found in _known(manifest)]
        for kind, name, whole in (*(("user", person, person.lower()) for person in people), *known):
            if is_a_name(name) and name not in suites and len(tokens) < _MOST_NAMES:
                tokens[name.lower()] = token(kind, whole)
        words = "|".join(re.escape(name) for name in sorted(tokens, key=len, reverse=True))
        pattern = re.compile(rf"(?<![A-Za-z0-9])(?:{words})(?![A-Za-z0-9])" if words else r"(?!)", re.IGNORECASE)
        values = (value for manifest in manifests for _, value in manifest.facts.versions)
        versions = frozenset(value for value in values if _VERSION.fullmatch(value))
        paths = frozenset(path for manifest in manifests for path in _paths(manifest))
        return cls(pattern, tokens, Hiding(token, versions, suites, paths))

    def cleared(self, text: str) -> str:
        """The text without names."""
        if PSEUDONYM.fullmatch(text):
            return text
        if not text.isprintable():  # the end of an escape sequence would stand right before a name
            text = "\n".join(map(clean, text.split("\n")))
        text = self.known.sub(self._token, text)
        return text if text in self.hiding.versions else self.hiding.hidden(text)

    def _token(self, found: re.Match[str]) -> str:
        name = found[0].lower()
        if name in self.tokens:
            return self.tokens[name]
        # a few letters match others that they do not become in small letters: `ſ` matches `s`
        same = (known for known in self.tokens if re.fullmatch(re.escape(known), found[0], re.IGNORECASE))
        return self.tokens[next(same)]

    def cleared_words(self, text: str) -> str:
        """The same of a text that code chose: it stays if it is written as such texts are."""
        if _CODE_WORD.fullmatch(text) or (_CODE_WORDS.fullmatch(text) and self.hiding.hidden(text) == text):
            return text
        return self.cleared(text)


def is_a_name(name: str) -> bool:
    """Return whether a name is looked for in texts: it is neither short nor a word that many machines have."""
    return _SHORTEST <= len(name) <= _LONGEST and name.lower() not in _COMMON and not PSEUDONYM.fullmatch(name)


def _known(manifest: Manifest) -> Iterator[tuple[str, str, str]]:
    """What the fields of a run name: the kind, the name, and what it stands for (a host's first label for the host)."""
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
    """The paths that the command line and the settings name, and the folders above them."""
    for word in (*(file.path for file in manifest.settings.data), *manifest.argv[1:_MOST_NAMES]):
        path = word.rpartition("=")[2]
        while len(path) <= _LONGEST and path.strip("/").count("/"):
            yield path
            path = path.rpartition("/")[0]


def people(value: object) -> list[str]:
    """The users whose home folders the texts of a value name."""
    found: dict[str, None] = {}

    def look(text: str) -> str:
        found.update(dict.fromkeys(_PERSON.findall(text)))
        return text

    with_texts(value, look)
    return list(found)
