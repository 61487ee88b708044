"""What may be shared of a run: who and where are taken out, what was measured stays. docs/sharing.md is the rule.

A name that is taken out becomes a word of its kind and twelve hexadecimal digits, `host-3fa81c09d2e4`: the
digits are a keyed hash, so that two runs of one device still have one name, and nobody without the key can try
names out against it. Redacting again changes nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from gpubench.base.walk import Value, with_texts
from gpubench.model import DataFile, Device, Facts, Manifest, Run

_DIGITS = 12  # of the hash: 48 bits, of which a fleet holds a handful
_HOST_KEPT = frozenset({"system", "machine", "cpus", "cpu", "memory_bytes", "governor", "numa"})  # they name no machine
_NAMES_ONE = re.compile(r"serial|uuid|guid|hostname|address|\b(board|user|path|pci|mac|ip|id)\b", re.IGNORECASE)
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
_TOKEN = re.compile(r"[a-z]+-[0-9a-f]{12}")
_VERSION = re.compile(r"[\w.+~-]{1,64}")
# Where a path names no person: what the kernel, the distribution and the vendors put there.
_PUBLIC = re.compile(r"/(proc|sys|dev|usr|lib|lib64|bin|opt/rocm[\w.-]*|opt/nvidia)(/[\w.+-]+)*/?")
# Our own folders that a case leads through, one by one: of another's below one called gpubench nothing is to be read.
_FOLDERS = (
    "gpubench|collectors|reports|suites|suites/(?:bandwidth|collectives|compression|gemm|ipc|latency|p2p)|"
    "gpubench/(?:analysis(?:/views)?|api|authoring|base|cli|devices(?:/backends|/native)?|importers|judging|knowledge|"
    "measuring|model|plugins|stats|testing|tools(?:/gating|/history|/monitor|/profile)?)"
)
_CODE = re.compile(rf".*/(?:site|dist)-packages/(.+)|.*/lib/python[\d.]+/(.+)|.*?/((?:{_FOLDERS})/\w+\.py)$")
_PERSON = re.compile(r"(?:/home/|/Users/|[A-Za-z]:\\Users\\|/user\.)([\w.-]+)")

# kind → how it is written; of a text that several match, the first is taken
_PATTERNS = (
    ("url", r"\b[A-Za-z][A-Za-z0-9+.-]*://[^\s\"'<>]+"),
    ("mail", r"[\w.+-]+@[\w-]+(?:\.[\w-]+)*"),
    ("device", r"\b(?:(?:GPU|MIG)-)?[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"),
    ("mac", r"\b[0-9a-fA-F]{2}(?:[:-][0-9a-fA-F]{2}){5}\b"),
    ("pci", r"\b(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]\b"),
    ("quoted", r"(?<=[\"'])(?:~|/|[A-Za-z]:\\)[^\"'\n]+(?=[\"'])"),
    ("path", r"(?<![\w/.)\]])(?:~[\w.-]*)?/(?:[^\s\"'`<>|:;,()\[\]{}/]+/?)+"),
    ("path", r"(?<!\w)(?:[A-Za-z]:\\|\\\\)[^\s\"'<>|:;,]+"),
    ("ip6", r"(?<![\w:.])[0-9a-fA-F]{0,4}(?::[0-9a-fA-F]{0,4}){2,7}(?![\w:])"),
    ("ip", r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.])"),
    ("serial", r"(?i:(?<=serial number )|(?<=serial )|(?<=serial: )|(?<=serial=))[A-Z0-9-]{5,}"),
    ("env", r"\b[A-Z][A-Z0-9_]{2,}=(?!=)\S+"),
)
_PATTERN = re.compile("|".join(f"(?P<p{number}>{pattern})" for number, (_, pattern) in enumerate(_PATTERNS)))

Token = Callable[[str, str], str]


def redacted(run: Run, salt: bytes, names: Sequence[str] = ()) -> Run:
    """The run without what says whose it is and where it stands; `names` are words that say so, as a user's.

    Host and user names, device UUIDs, PCI ids, serials, addresses, paths, variables of the environment and the
    command line: in the fields that are for them, and wherever they stand in a text.
    """
    token = _tokens(salt)
    manifest = run.manifest
    texts = _Texts.of([manifest], token, (*names, *_people(run)))
    facts = _facts(manifest.facts, token)
    suites = tuple(suite.rpartition("/")[2] for suite in manifest.settings.suites)  # of a file its name is its suite's
    data = tuple(_data(file, token) for file in manifest.settings.data)
    settings = replace(manifest.settings, suites=suites, data=data)
    known = replace(manifest, facts=facts, settings=settings, argv=_command(manifest.argv), started="")
    warnings = tuple(re.sub(r"^.+?: (?=(after )?line \d)", "", warning) for warning in run.warnings)
    changed = with_texts(replace(run, manifest=known, warnings=warnings), texts.cleared)
    return replace(changed, manifest=replace(changed.manifest, started=manifest.started))


def without_names(value: Value, manifests: Sequence[Manifest], salt: bytes, names: Sequence[str] = ()) -> Value:
    """A value that was made of the runs of these manifests, with the texts in it cleared as `redacted` clears them."""
    texts = _Texts.of(manifests, _tokens(salt), (*names, *_people((value, tuple(manifests)))))
    return with_texts(value, texts.cleared)


def _tokens(salt: bytes) -> Token:
    def token(kind: str, name: str) -> str:
        if _TOKEN.fullmatch(name):
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
    versions: frozenset[str]
    token: Token

    @classmethod
    def of(cls, manifests: Sequence[Manifest], token: Token, people: Sequence[str]) -> _Texts:
        """The names that runs and people have, the longest first, so that none is hidden only in part."""
        suites = {suite.name for manifest in manifests for suite in manifest.suites}
        tokens: dict[str, str] = {}
        known = [found for manifest in manifests for found in _known(manifest)]
        for kind, name, whole in (*known, *(("user", person, person.lower()) for person in people)):
            if _is_a_name(name) and name not in suites:
                tokens.setdefault(name.lower(), token(kind, whole))
        words = "|".join(re.escape(name) for name in sorted(tokens, key=len, reverse=True))
        pattern = re.compile(rf"(?<![A-Za-z0-9])(?:{words})(?![A-Za-z0-9])" if words else r"(?!)", re.IGNORECASE)
        values = (value for manifest in manifests for _, value in manifest.facts.versions)
        versions = frozenset(value for value in values if _VERSION.fullmatch(value))
        return cls(pattern, tokens, versions, token)

    def cleared(self, text: str) -> str:
        """The text without names."""
        if _TOKEN.fullmatch(text) or text in self.versions:
            return text
        text = self.known.sub(lambda found: self.tokens[found[0].lower()], text)
        return _PATTERN.sub(self._hidden, text)

    def _hidden(self, found: re.Match[str]) -> str:
        kind, text = _PATTERNS[int((found.lastgroup or "p0")[1:])][0], found[0]
        if kind in ("path", "quoted"):
            return self._path(text)
        if kind in ("ip", "ip6"):
            return self.token("ip", text) if text not in self.versions and _is_address(text) else text
        if kind == "env":
            name, _, value = text.partition("=")
            return f"{name}={self.token('value', value)}"
        return self.token(kind, text)

    def _path(self, path: str) -> str:
        """A path's pseudonym; behind it the part that belongs to a package, so that a traceback stays one."""
        if _PUBLIC.fullmatch(path):
            return path
        code = _CODE.search(path)
        inner = next((part for part in code.groups() if part), "") if code else ""
        return f"{self.token('path', path)}/{inner}" if inner else self.token("path", path)


def _is_a_name(name: str) -> bool:
    return len(name) >= _SHORTEST and name.lower() not in _COMMON and not _TOKEN.fullmatch(name)


def _is_address(text: str) -> bool:
    if ":" in text and not re.search(r"\d", text):
        return False  # `a::b` is C++
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _known(manifest: Manifest) -> Iterator[tuple[str, str, str]]:
    """What the fields of a run name: the kind, the name, and what it stands for (a host's first label for the host)."""
    facts = manifest.facts
    for name, value in facts.host:
        if name not in _HOST_KEPT:
            kind = "host" if name == "hostname" else "name"
            yield from ((kind, part, value) for part in (value, value.partition(".")[0]))
    for device in facts.devices:
        yield "device", device.uuid, device.uuid
        yield "pci", device.pci, device.pci
        yield from (("name", value, value) for name, value in device.details if _NAMES_ONE.search(name))
    for word in (*(file.path for file in manifest.settings.data), *manifest.argv[1:]):
        yield from (("path", part, part) for part in _paths(word.rpartition("=")[2]))


def _paths(word: str) -> Iterator[str]:
    """A path as it was given, and the folders above it, where it is more than one name."""
    while word.strip("/").count("/"):
        yield word
        word = word.rpartition("/")[0]


def _people(value: object) -> list[str]:
    """Whose home folders the texts of a run name."""
    found: dict[str, None] = {}

    def look(text: str) -> str:
        found.update(dict.fromkeys(_PERSON.findall(text)))
        return text

    with_texts(value, look)
    return list(found)
