"""Prepare runs, judgements and other values for sharing: numbers pass, texts pass by an allow-list (docs/sharing.md).

The field of a text decides. `_rules` lists the fields that hold names, paths, commands and ids; a text in any other
field passes word by word, as `allowed_words` defines. `word` is the rule for fields of type `Word`. A name that must
stay distinct becomes a pseudonym, its kind and twelve hexadecimal digits, such as `host-3fa81c09d2e4`. The digits are
a keyed hash: one device has one pseudonym in all files with one key, and nobody can test names without the key. Sharing
again changes nothing."""

import functools
import hashlib
import hmac
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpubench.analysis.trend import Trend
from gpubench.base.clean import clean
from gpubench.base.walk import Value, with_texts
from gpubench.judging.fleet import FleetJudgement
from gpubench.model import Device, Facts, Manifest, Run
from gpubench.tools.allowed_words import LEFT_OUT, NUMBER, PSEUDONYM, Words

_DIGITS = 12  # hexadecimal digits of the hash: 48 bits, enough to keep the names of a fleet distinct
_KEPT_HOST_FACTS = frozenset(  # these facts identify no machine
    ("system", "machine", "cpus", "cpu", "memory_bytes", "governor", "numa", "shared memory", "ptrace scope")
)
_IDENTIFYING_DETAIL = re.compile(
    r"serial|uuid|guid|hostname|address|(?<![a-z])(?:user|path|pci|mac|ip|id|asset|tag)(?![a-z])|\bboard$",
    re.IGNORECASE,
)
# Names that many machines and accounts have: hiding the word `host` would damage sentences and protect nobody.
_COMMON_NAME = re.compile(
    r"admin(?:istrator)?|bench|build|ci|container|data|debian|default|dev|docker|gpu0?|guest|host|localhost|max|min"
    r"|nobody|node0?|nvidia|ops|perf|redacted|root|runner|server|test|tmp|ubuntu|user|worker",
    re.IGNORECASE,
)
_SHORTEST, _LONGEST = 3, 256  # characters of a name that is searched for in texts
_MOST_NAMES = 1000
_VERSION = re.compile(r"v?\d{1,10}(?:[.+~-][A-Za-z0-9]{1,20}){0,8}")
_DATE = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:\d\d)?")
# The name of a case, a unit, a device, a kernel or a language model: `mem-bw/h2d`, `process0/cuda:1`, `Qwen2.5-7B`.
_CODE_NAME = re.compile(r"[A-Za-z_]\w{0,255}(?:#\d{1,9})?(?:[-/]\w{1,32}|\.\d\w{0,8}){0,8}(?::\d{1,3})?")
_KEY = re.compile(  # of AWS, GitHub, GitLab, Hugging Face and others
    r"A[A-Z]{2}A[A-Z0-9]{12,}|(?:gh[a-z]_|github_pat_|gl[a-z]{2,6}-|hf_|sk-|xox[a-z]-|nvapi-|npm_|pypi-|AIza)[\w-]{12,}"
)
_COUNTER = re.compile(r"[A-Za-z_]\w{0,63}(?:\.[A-Za-z_]\w{0,63}){1,4}")
_CASE_ID = re.compile(r"([^\[\]\s]{1,256})\[([^\[\]\s]{0,1024})\]")
_SYMBOL = re.compile(r"(?=[^:]*(?:::|[(<])|\w+$)(?:[\w ,<>*&(){}\[\]#~-]|::){1,8192}")  # a kernel in C++
_RUN_FILE = re.compile(r"(.*?)((?:\.jsonl)?(?:\.gz)?)")

Rule = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class FileNames:
    """Names of run files and of their folders."""

    names: tuple[str, ...]


def shared(value: Value, salt: bytes, names: Iterable[str] = (), manifests: Sequence[Manifest] = ()) -> Value:
    """Return the value, a dataclass or a tuple, without anything that identifies its owner or its machine.

    `salt` is the key of the pseudonyms. `names` are names to hide besides the names in the value, such as the user's;
    `manifests` belong to the runs from which the value was made. Every number stays as it is."""
    return _Sharing(value, salt, names, manifests).of(value)


class _Sharing:
    """The rules for one value: `pseudonyms` of names that its fields contain, and the words that it may contain."""

    def __init__(self, value: Any, salt: bytes, names: Iterable[str], manifests: Sequence[Manifest]) -> None:
        self.salt = salt
        parts = value if isinstance(value, tuple) else (value,)
        runs = [part for part in parts if isinstance(part, Run)]
        manifests = (
            *manifests,
            *(run.manifest for run in runs),
            *(part for part in parts if isinstance(part, Manifest)),
        )
        self.labels = {file.label for manifest in manifests for file in manifest.settings.data}
        profiled = [result for run in runs for result in run.results if result.case.suite == "profile"]
        symbols = (text for result in profiled for name, text in result.notes if name == "name")
        self.symbols = frozenset(filter(_SYMBOL.fullmatch, symbols))
        sources = [moment.source for part in parts if isinstance(part, Trend) for moment in part.moments]
        pairs = (*(source.versions for source in sources), *(manifest.facts.versions for manifest in manifests))
        systems = (_system_version(dict(manifest.facts.host).get("system", "")) for manifest in manifests)
        versions = set(filter(_VERSION.fullmatch, (*(text for of_one in pairs for _, text in of_one), *systems)))
        suites = [suite for manifest in manifests for suite in manifest.suites]
        self.suites = {suite.name for suite in suites if _is_code_name(suite.name)}
        collectors = {samples.collector for run in runs for samples in run.samples}
        counters = {counter.name for manifest in manifests for counter in manifest.counters}
        dotted = filter(_COUNTER.fullmatch, counters)  # counters of any collector, such as `mytool.power`
        self.counters = {name for name in dotted if name.partition(".")[0] in collectors}
        ids = counters | {name for suite in suites for view in suite.views for name in view.cases}
        ids |= {result.case.name for run in runs for result in run.results}
        self.pseudonyms = dict(self._known_names(parts, manifests))
        for name in names:
            self.pseudonyms.setdefault(name, self.token("user", name.lower()))
        more = {*versions, *self.suites, *self.counters, *filter(_is_code_name, ids), *self.pseudonyms.values()}
        self.words = Words(more, self.suites)
        self.in_texts = {
            name.lower(): pseudonym
            for name, pseudonym in list(self.pseudonyms.items())[:_MOST_NAMES]
            if _is_searched(name, pseudonym) and name not in self.suites
        }
        alternatives = "|".join(map(re.escape, sorted(self.in_texts, key=len, reverse=True))) or r"(?!)"
        self.names = re.compile(rf"(?<![A-Za-z0-9])(?:{alternatives})(?![A-Za-z0-9])", re.IGNORECASE | re.ASCII)

    def of(self, value: Value) -> Value:
        """Return the value with each field changed by its rule."""
        return with_texts(value, self.text, self.word, dict(self._rules()))

    def _rules(self) -> Iterator[tuple[str, Rule]]:
        """Yield each field that is neither a free text nor a `Word`, with its rule; docs/sharing.md lists them."""
        rules: tuple[tuple[Rule, str], ...] = (
            (self.facts, "Manifest.facts"),
            (_command, "Manifest.argv Fleet.argv"),
            (lambda text: text if _DATE.fullmatch(text) else "", "Manifest.started Fleet.started Column.started"),
            (_each(self.suite), "Settings.suites"),
            (functools.partial(self.token, "path"), "DataFile.path"),
            (functools.partial(self.token, "file"), "DataFile.label DataFile.sha256 RunSource.key"),
            (self.parameters, "Case.params KeyFigure.params"),
            (_each(self.whole), "Settings.filters NamedLink.name Result.labels Moment.labels Entry.labels"),
            (lambda pairs: tuple((self.whole(name), count) for name, count in pairs), "Result.discarded"),
            (_each(self.warning), "Run.warnings"),
            (_each(self._name("device")), "Suspect.uuids ComponentHistory.uuids"),
            (self._name("host"), "FleetNode.name FleetNode.rack Remeasured.node Place.node RunSource.host"),
            (lambda _: "", "FleetNode.file Remeasured.file"),
            (_each(self.file_name), "FileNames.names Column.name RunComparison.name RunSource.path"),
            (_each(self.word), "Line.case Line.series Line.unit Line.devices Finding.devices Geomean.suite"),
            (_pairs(self.version), "RunSource.versions"),
            (self.version, "Manifest.gpubench Fleet.gpubench"),
            (_each(self.difference), "Change.differences"),
        )
        for rule, fields in rules:
            yield from ((field, rule) for field in fields.split())

    # --- the rules

    def text(self, text: str) -> str:
        """Return a free text with its allowed words, and pseudonyms for the names that the value's fields contain."""
        if not text or ((text in self.symbols or NUMBER.fullmatch(text)) and not self.names.search(text)):
            return text
        if not text.isprintable():  # otherwise the end of an escape sequence could touch a name and hide it
            text = "\n".join(map(clean, text.split("\n")))
        return self.words.only_allowed(self.names.sub(self._matched_pseudonym, text))

    def word(self, text: str) -> str:
        """Return a text that code has chosen, such as the name of a case; a pseudonym if it is not written as one."""
        case = _CASE_ID.fullmatch(text)
        name, values = (case[1], case[2].split(",")) if case else (text, [])
        if text in self.counters or (
            _is_code_name(name) and all(self._is_allowed(value.partition("=")[2]) for value in values)
        ):
            return text
        return self.whole(text)

    def whole(self, text: str) -> str:
        """Return the text if all of its words are allowed, else a pseudonym, so that texts stay distinct."""
        return text if self.text(text) == text and LEFT_OUT not in text else self.token("name", text)

    def version(self, text: str) -> str:
        """Return a version; any other text as `text` does."""
        return text if _VERSION.fullmatch(text) else self.text(text)

    def suite(self, text: str) -> str:
        """Return the name of a suite, or of its file without the folders."""
        name = text.rpartition("/")[2]
        return name if name.removesuffix(".py") in self.suites else self.whole(name)

    def warning(self, text: str) -> str:
        """Return a warning on a run file without the file's path, with which it begins."""
        return self.text(re.sub(r"^.+?: (?=(after )?line \d)", "", text))

    def difference(self, text: str) -> str:
        """Return a difference between two runs: `cublas 13.1 → 13.2`, or `host a → b` with pseudonyms."""
        hosts = re.fullmatch(r"host (.+) → (.+)", text)
        return f"host {' → '.join(map(self._name('host'), hosts.groups()))}" if hosts else self.text(text)

    def parameters(self, params: tuple[tuple[str, Any], ...]) -> tuple[tuple[str, Any], ...]:
        """Return the parameters of a case; a file of the user and a text with other words become pseudonyms."""
        return tuple(
            (self.word(axis), self._parameter(value) if isinstance(value, str) else value) for axis, value in params
        )

    def file_name(self, path: str) -> str:
        """Return the name of a run file without its folders: allowed words stay, another name becomes a pseudonym."""
        stem, ending = _RUN_FILE.fullmatch(path.rpartition("/")[2].replace("\n", " ")).groups()  # type: ignore[union-attr]
        name = self.text(stem)
        return f"{self.token('file', stem) if LEFT_OUT in name else name}{ending}"

    def facts(self, facts: Facts) -> Facts:
        """Return the facts of a machine with pseudonyms for its host, its devices and other facts that identify it."""
        hostname = dict(facts.host).get("hostname", "")
        changed = replace(
            facts,
            devices=tuple(self._device(device, hostname) for device in facts.devices),
            host=tuple((name, self._host_fact(name, text)) for name, text in facts.host),
            versions=_pairs(self.version)(facts.versions),
            absent=with_texts(facts.absent, self.text),
        )
        return with_texts(changed, lambda text: text, self.word)

    def _host_fact(self, name: str, text: str) -> str:
        """Return a fact about the host: its value if it identifies no machine, else its pseudonym."""
        if name in _KEPT_HOST_FACTS or not text:
            return text if name == "system" and _system_version(text) else self.text(text)
        return self.token("host" if name == "hostname" else "name", text)

    def _device(self, device: Device, hostname: str) -> Device:
        """Return the device with a pseudonym for its UUID, without its PCI id, and with pseudonyms in its details."""
        identity = device.uuid or (f"{hostname} {device.pci or device.id}" if hostname else "")
        details = tuple(
            (name, self.token("name", text) if _IDENTIFYING_DETAIL.search(name) else self.text(text))
            for name, text in device.details
        )
        uuid = self.token("device", identity)
        return replace(device, name=self.text(device.name), uuid=uuid, pci="", details=details)

    def _parameter(self, text: str) -> str:
        """Return a parameter of a case that is a text."""
        if text in self.labels:
            return self.token("file", text)
        return text if self._is_allowed(text) else self.token("path" if "/" in text else "name", text)

    def _is_allowed(self, text: str) -> bool:
        """Return whether a value of an axis may stay: it is written as a name in code, or its words are allowed."""
        is_name = _is_code_name(text) and "/" not in text and not self.names.search(text)
        return is_name or self.text(text) == text

    # --- names and their pseudonyms

    def token(self, kind: str, name: str) -> str:
        """Return the pseudonym of a name: `kind-` and 12 hexadecimal digits; a pseudonym and an empty name stay."""
        if not name or PSEUDONYM.fullmatch(name):
            return name
        digest = hmac.new(self.salt, f"{kind}\0{name}".encode(errors="replace"), hashlib.sha256).hexdigest()
        return f"{kind}-{digest[:_DIGITS]}"

    def _name(self, kind: str) -> Rule:
        """Return the rule of a field that holds a name: the pseudonym of the name wherever it occurs."""
        return lambda name: self.pseudonyms.get(name) or (name if name == "none" else self.token(kind, name))

    def _known_names(self, parts: Iterable[Any], manifests: Iterable[Manifest]) -> Iterator[tuple[str, str]]:
        """Yield the names in the fields of a value and in the manifests of its runs, each with its pseudonym."""
        for manifest in manifests:
            yield from self._names_of_facts(manifest.facts)
        for part in parts:
            place: Any = getattr(part, "place", None)  # of a ComponentHistory
            hosts = [moment.source.host for moment in part.moments] if isinstance(part, Trend) else []
            hosts += [place.node] if place else []
            nodes = _numbered_names(part) if isinstance(part, FleetJudgement) else {}
            yield from _with_labels(nodes | {host: self.token("host", host) for host in hosts})

    def _names_of_facts(self, facts: Facts) -> Iterator[tuple[str, str]]:
        """Yield the names of a host and of its devices, each with its pseudonym."""
        for name, text in facts.host:
            if name not in _KEPT_HOST_FACTS:
                yield from _with_labels({text: self._host_fact(name, text)})
        for device in facts.devices:
            details = ((text, "name") for name, text in device.details if _IDENTIFYING_DETAIL.search(name))
            for text, kind in ((device.uuid, "device"), (device.pci, "pci"), *details):
                yield text, self.token(kind, text)

    def _matched_pseudonym(self, match: re.Match[str]) -> str:
        return self.in_texts[match[0].lower()]


def _each(rule: Callable[[str], str]) -> Rule:
    """Return the rule for a text or for a tuple of texts."""
    return lambda texts: rule(texts) if isinstance(texts, str) else tuple(map(rule, texts))


def _pairs(rule: Callable[[str], str]) -> Rule:
    """Return the rule for pairs of a name and a text; the name is a word that code has chosen."""
    return lambda pairs: tuple((name, rule(text)) for name, text in pairs)


def _system_version(text: str) -> str:
    """Return the version in the name of a system, as in `Linux 6.8.0-45-generic`; empty if there is none."""
    system, _, version = text.partition(" ")
    return version if system.isalpha() and _VERSION.fullmatch(version) else ""


def _is_code_name(text: str) -> bool:
    """Return whether a text is written as code writes names; four parts with digits may be an address or a UUID."""
    numbered = sum(bool(re.search(r"\d", part)) for part in re.split(r"[-/.]", text))
    return numbered < 4 and _CODE_NAME.fullmatch(text) is not None and not _KEY.fullmatch(text)


def _command(argv: Sequence[str]) -> tuple[str, ...]:
    """Return the program and the command of a command line, such as `gpubench run`, without its arguments."""
    return ("gpubench", *(word for word in argv[1:2] if re.fullmatch(r"[a-z]{1,12}", word))) if argv else ()


def _is_searched(name: str, pseudonym: str) -> bool:
    """Return whether a name is searched for in texts: it is no pseudonym, no common name, and no number of a node."""
    is_plain = _SHORTEST <= len(name) <= _LONGEST and not _COMMON_NAME.fullmatch(name)
    is_number = name.isdigit() and not PSEUDONYM.fullmatch(pseudonym)
    return is_plain and not is_number and not PSEUDONYM.fullmatch(name)


def _with_labels(pseudonym_by_name: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the first label of each name and then the names, each with its pseudonym: a whole name counts more."""
    yield from ((name.partition(".")[0], pseudonym) for name, pseudonym in pseudonym_by_name.items())
    yield from pseudonym_by_name.items()


def _numbered_names(judgement: FleetJudgement) -> dict[str, str]:
    """Return `rack-1`, … and `node-1`, … by the names of a fleet's racks and nodes, in the order of the record."""
    places = [*(part.place.node for part in judgement.standings), *(part.place.node for part in judgement.suspects)]
    nodes = (*(node.name for node in judgement.fleet.nodes), *(entry.node for entry in judgement.fleet.again), *places)
    kinds = (("rack", [node.rack for node in judgement.fleet.nodes]), ("node", nodes))
    return {
        name: f"{kind}-{number}"
        for kind, names in kinds
        for number, name in enumerate(filter(None, dict.fromkeys(names)), 1)
    }
