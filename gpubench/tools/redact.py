"""Anonymise a run for sharing: remove people, machines and places, keep every figure (docs/sharing.md).

A removed name is replaced by its kind and twelve hexadecimal digits, such as `host-3fa81c09d2e4`. The digits are a
keyed hash: two runs of one device have the same pseudonym, and nobody without the key can test names against it.
Redacting again changes nothing."""

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
from gpubench.tools.redact_text import PseudonymOf, TextRedactor

_DIGITS = 12  # hexadecimal digits of the hash: 48 bits, enough to keep the names of a fleet distinct
_KEPT_HOST_FACTS = frozenset(  # these facts identify no machine
    {"system", "machine", "cpus", "cpu", "memory_bytes", "governor", "numa", "shared memory", "ptrace scope"}
)
_IDENTIFYING_DETAIL = re.compile(
    r"serial|uuid|guid|hostname|address|(?<![a-z])(?:user|path|pci|mac|ip|id|asset|tag)(?![a-z])|\bboard$",
    re.IGNORECASE,
)
# Names that many machines and accounts have: hiding the word `host` would damage sentences and protect nobody.
_COMMON_NAMES = frozenset(
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

    `salt` is the key of the pseudonyms. `names` are further names to hide, such as a user's."""
    pseudonym_of = pseudonyms(salt)
    manifest = run.manifest
    texts = _NameRemover.of([manifest, *others], pseudonym_of, (*names, *home_users(run)))
    facts = _redact_facts(manifest.facts, pseudonym_of)
    suites = tuple(
        suite.rpartition("/")[2] for suite in manifest.settings.suites
    )  # a suite file is named after its suite
    data = tuple(_redact_data_file(file, pseudonym_of) for file in manifest.settings.data)
    settings = replace(manifest.settings, suites=suites, data=data)
    shared_manifest = replace(manifest, facts=facts, settings=settings, argv=_shared_command(manifest.argv), started="")
    warnings = tuple(re.sub(r"^.+?: (?=(after )?line \d)", "", warning) for warning in run.warnings)
    changed = with_texts(
        replace(run, manifest=shared_manifest, warnings=warnings), texts.without_names, texts.without_names_if_text
    )
    return replace(changed, manifest=replace(changed.manifest, started=manifest.started))


def without_names(
    value: Value,
    manifests: Sequence[Manifest],
    salt: bytes,
    names: Sequence[str] = (),
    suites: Collection[str] = (),
) -> Value:
    """Return a value made from the runs of these manifests, with its texts anonymised as `redacted` does.

    `value` is a dataclass or a container of them."""
    texts = _NameRemover.of(manifests, pseudonyms(salt), (*names, *home_users((value, tuple(manifests)))), suites)
    return with_texts(value, texts.without_names, texts.without_names_if_text)


def pseudonyms(salt: bytes) -> PseudonymOf:
    """Return the function from a kind and a name to a pseudonym, which is the same in all documents with this salt."""

    @functools.cache
    def pseudonym_of(kind: str, name: str) -> str:
        """Return the pseudonym of a name: `kind-` and 12 hexadecimal digits; a pseudonym stays unchanged."""
        if PSEUDONYM.fullmatch(name):
            return name
        digest = hmac.new(salt, f"{kind}\0{name}".encode(errors="replace"), hashlib.sha256).hexdigest()
        return f"{kind}-{digest[:_DIGITS]}"

    return pseudonym_of


def _redact_facts(facts: Facts, pseudonym_of: PseudonymOf) -> Facts:
    """Return the facts of a machine with pseudonyms for its host, its devices and other facts that identify it."""
    where = dict(facts.host).get("hostname", "")
    return replace(
        facts,
        devices=tuple(_redact_device(device, where, pseudonym_of) for device in facts.devices),
        host=tuple((name, _redact_host_fact(name, value, pseudonym_of)) for name, value in facts.host),
    )


def _redact_host_fact(name: str, value: str, pseudonym_of: PseudonymOf) -> str:
    """Return the `value` of the host's fact `name`: unchanged if it identifies no machine, else its pseudonym."""
    return (
        value
        if name in _KEPT_HOST_FACTS or not value
        else pseudonym_of("host" if name == "hostname" else "name", value)
    )


def _redact_device(device: Device, hostname: str, pseudonym_of: PseudonymOf) -> Device:
    """Return the device with a pseudonym for its UUID, without its PCI id, and with pseudonyms in its details."""
    identity = device.uuid or (f"{hostname} {device.pci or device.id}" if hostname else "")
    details = tuple(
        (name, pseudonym_of("name", value) if _IDENTIFYING_DETAIL.search(name) and value else value)
        for name, value in device.details
    )
    return replace(device, uuid=pseudonym_of("device", identity) if identity else "", pci="", details=details)


def _redact_data_file(file: DataFile, pseudonym_of: PseudonymOf) -> DataFile:
    """Return the record of a user's data file with pseudonyms for its path and its hash."""
    return replace(
        file, path=pseudonym_of("path", file.path), sha256=pseudonym_of("file", file.sha256) if file.sha256 else ""
    )


def _shared_command(argv: Sequence[str]) -> tuple[str, ...]:
    """Return the program and the command of a command line, such as `gpubench run`, without its arguments."""
    return ("gpubench", *(word for word in argv[1:2] if re.fullmatch(r"[a-z]{1,12}", word)))


@dataclass(frozen=True, slots=True)
class _NameRemover:
    """Removes names from texts: first the names that a run's fields contain, then anything that looks like a name."""

    pattern: re.Pattern[str]  # matches each of these names
    pseudonym_by_name: dict[str, str]  # name in lower case → its pseudonym
    redactor: TextRedactor

    @classmethod
    def of(
        cls,
        manifests: Sequence[Manifest],
        pseudonym_of: PseudonymOf,
        users: Sequence[str],
        more_suites: Collection[str] = (),
    ) -> _NameRemover:
        """Return the remover of all names in the fields of these manifests and of these users."""
        suites = frozenset((*more_suites, *(suite.name for manifest in manifests for suite in manifest.suites)))
        pseudonym_by_name: dict[str, str] = {}
        field_names = [field_name for manifest in manifests for field_name in _names_in_fields(manifest)]
        for kind, name, full_name in (*(("user", person, person.lower()) for person in users), *field_names):
            if is_searchable_name(name) and name not in suites and len(pseudonym_by_name) < _MOST_NAMES:
                pseudonym_by_name[name.lower()] = pseudonym_of(kind, full_name)
        alternatives = "|".join(re.escape(name) for name in sorted(pseudonym_by_name, key=len, reverse=True))
        pattern = re.compile(
            rf"(?<![A-Za-z0-9])(?:{alternatives})(?![A-Za-z0-9])" if alternatives else r"(?!)", re.IGNORECASE
        )
        values = (value for manifest in manifests for _, value in manifest.facts.versions)
        versions = frozenset(value for value in values if _VERSION.fullmatch(value))
        paths = frozenset(path for manifest in manifests for path in _paths(manifest))
        return cls(pattern, pseudonym_by_name, TextRedactor(pseudonym_of, versions, suites, paths))

    def without_names(self, text: str) -> str:
        """Return the text with its names replaced by pseudonyms; a text that is a pseudonym is returned unchanged."""
        if PSEUDONYM.fullmatch(text):
            return text
        if not text.isprintable():  # otherwise the end of an escape sequence could touch a name and hide it
            text = "\n".join(map(clean, text.split("\n")))
        text = self.pattern.sub(self._matched_pseudonym, text)
        return text if text in self.redactor.versions else self.redactor.redact(text)

    def _matched_pseudonym(self, match: re.Match[str]) -> str:
        """Return the pseudonym of a name that `pattern` matched, in upper or lower case."""
        name = match[0].lower()
        if name in self.pseudonym_by_name:
            return self.pseudonym_by_name[name]
        # a few letters match others that lower() does not produce: `ſ` matches `s`
        same = (
            name_in_lower_case
            for name_in_lower_case in self.pseudonym_by_name
            if re.fullmatch(re.escape(name_in_lower_case), match[0], re.IGNORECASE)
        )
        return self.pseudonym_by_name[next(same)]

    def without_names_if_text(self, text: str) -> str:
        """Return a text that code chose, such as a label: unchanged if it looks like an identifier, else redacted."""
        if _CODE_WORD.fullmatch(text) or (_CODE_WORDS.fullmatch(text) and self.redactor.redact(text) == text):
            return text
        return self.without_names(text)


def is_searchable_name(name: str) -> bool:
    """Return whether a name is to be searched for in texts, which hides it wherever it occurs.

    It must have 3 to 256 characters, be none of the names that many machines have (`host`, `localhost`), and be no
    pseudonym."""
    return _SHORTEST <= len(name) <= _LONGEST and name.lower() not in _COMMON_NAMES and not PSEUDONYM.fullmatch(name)


def _names_in_fields(manifest: Manifest) -> Iterator[tuple[str, str, str]]:
    """Yield the names in a run's fields: kind, name, and the name whose pseudonym replaces it."""
    facts = manifest.facts
    for name, value in facts.host:
        if name not in _KEPT_HOST_FACTS and value:
            kind = "host" if name == "hostname" else "name"
            yield from ((kind, part, value) for part in (value, value.partition(".")[0]))
    for device in facts.devices:
        yield "device", device.uuid, device.uuid
        yield "pci", device.pci, device.pci
        yield from (("name", value, value) for name, value in device.details if _IDENTIFYING_DETAIL.search(name))
    yield from (("path", path, path) for path in _paths(manifest) if re.search(r"[\s:;,|()\[\]{}]", path))


def _paths(manifest: Manifest) -> Iterator[str]:
    """Yield the paths in the arguments and in the data files of a run, each followed by the folders above it."""
    for word in (*(file.path for file in manifest.settings.data), *manifest.argv[1:_MOST_NAMES]):
        path = word.rpartition("=")[2]
        while len(path) <= _LONGEST and path.strip("/").count("/"):
            yield path
            path = path.rpartition("/")[0]


def home_users(value: object) -> list[str]:
    """Return the names of the users whose home folders occur in the texts of a value, each once."""
    users: dict[str, None] = {}

    def collect_users(text: str) -> str:
        """Collect the users in a text, and return it unchanged."""
        users.update(dict.fromkeys(_PERSON.findall(text)))
        return text

    with_texts(value, collect_users)
    return list(users)
