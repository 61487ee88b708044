"""Prepare runs, judgements and other values for sharing: numbers pass, texts pass by an allow-list (docs/sharing.md).

The field of a text decides. `_rules` lists the fields that hold names, paths, commands and ids; a text in any other
field passes word by word, as `allowed_words` defines. `word` is the rule for fields of type `Word`. A name that must
stay distinct becomes a pseudonym, its kind and twelve hexadecimal digits, such as `host-3fa81c09d2e4`. The digits are
a keyed hash: one device has one pseudonym in all files with one key, and nobody can test names without the key. Sharing
again changes nothing.

Run a private control daemon of NVIDIA's Multi-Process Service during one run.

Processes that start meanwhile share their GPUs through it: their kernels run at the same time instead of in turns."""

import builtins
import contextlib
import errno
import functools
import hashlib
import hmac
import importlib.util
import itertools
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, get_args

from gpubench.analysis.trend import Trend
from gpubench.base.clean import clean
from gpubench.base.errors import UsageError
from gpubench.base.walk import Value, with_texts
from gpubench.judging.fleet import FleetJudgement
from gpubench.model import Device, Facts, Manifest, Run
from gpubench.plugins.loading import Room

LEFT_OUT = "(left out)"
_GAP = "\0"  # stands for LEFT_OUT while a text is changed, because it has no blank
KINDS = "host|user|name|device|path|file|pci|url|mail|mac|ip|serial|id|value|secret"  # the last nine: of old files
PSEUDONYM = re.compile(rf"(?:{KINDS})-[0-9a-f]{{12}}")
NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?", re.IGNORECASE)
_LONGEST_WORD = 400  # characters of one word: the case ids of profiled kernels have up to 200
# Words of models of hardware and of messages of drivers and libraries, which gpubench itself does not use. The last
# line names series of earlier versions.
_MORE_WORDS = """
    AMD Altra Ampere Apple ARM Core EPYC GeForce Gold Grace Graphics Graviton Instinct Intel Kunpeng Neoverse NVIDIA
    Platinum PRO Processor Quadro Radeon Ryzen RTX GTX Silver SUPER Tesla Threadripper Ti TITAN Ultra Xeon CPU GHz MHz
    DMA Iris Plus UHD Corporation Ethernet InfiniBand QEMU Virtual Generation Gen Genuine Common KVM TM OAM XT XTX
    Orin Ada Blackwell Server Edition OEM Max
    an illegal memory access was encountered unspecified launch failure misaligned address invalid device function
    symbol image argument value pitch context handle resource ordinal configuration uncorrectable ECC NVLink detected
    device-side assert triggered initialization busy or unavailable driver version is insufficient for CUDA HIP ROCm
    runtime operation not permitted supported ready timed out mapping of buffer object failed unknown error unhandled
    system internal remote process exited network requested functionality hardware stack too many resources peer
    fatal unable capable polling garbage collecting multiprocessors df already enabled disabled capture legacy stream
    event allocation segmentation fault aborted killed terminated bus
    floating point exception core dumped traceback most recent call last module named cannot import name location
    undefined shared library no kernel available execution on the cooperative exceeds maximum insufficient privileges
    mismatch deprecated installed found missing GPU has fallen off lost permission user current please check recoverable
    regrets regret.speed regret.ratio regret.end-to-end choice.speed choice.ratio choice.end-to-end
"""
_UNIT = r"(?:[munµkKMGTPE]?i?(?:B|[Bb]it|bytes|bE?|W|J|Hz|s|m|FLOPS?|OPS?)|%|°?C|[x×²³KMGBTh]|min|th|st|nd|rd)"
_PLAIN = re.compile(
    rf"[~≈±+−-]?(?:\d{{1,9}}|\d{{1,12}}\.\d{{1,12}})(?:e[+-]?\d{{1,3}})?{_UNIT}?"  # 700, 1.5e-3, 16KiB, 50%
    r"|\d{1,7}(?:[x×](?:\d{1,7}|AUTO)){1,3}|\d{1,3}:\d{1,3}|\d{1,9}/\d{1,9}|0x[0-9a-f]{1,3}"  # 128x64, 16:9, 1/3
    r"|v?\d{1,5}(?:\.\d{1,5}){1,2}(?:[.+-]?(?:post|dev|rc|a|b|cuda|cu|rocm)\d{1,4}(?:\.\d{1,4})?){0,2}(?:-\d{1,4}-g[0-9a-f]{7,12})?"
    r"|\d{4}-\d\d-\d\d(?:T\d\d:\d\d:\d\d(?:\.\d{1,6})?(?:Z|[+-]\d\d:\d\d)?)?|[0-2]\d:[0-5]\d:[0-5]\d"  # dates and times
    r"|\d{8}T\d{6}Z(?:-[a-z]{2,8})?|/dev/nvidia\d{1,3}|/(?:dev|etc|opt|proc|sys|tmp|usr)"
    r"|\.(?:jsonl(?:\.gz)?|gz|html|json|md|csv|xml|cu|py|so|toml)|127\.0\.0\.1|0\.0\.0\.0"
    r"|sm_?\d{2,3}[af]?|gfx[0-9a-f]{3,5}|[A-Z]{0,2}\d{1,5}[A-Z]{0,3}\+?|[iv]\d|SXM\d|HBM\d[A-Z]?"  # models
    r"|[CDG](?:PU)?\d{0,3}:(?:\d|\d{3})"  # processors of TransferBench
    r"|(?:cuda|hip)Error[A-Z][A-Za-z]{2,60}|(?:CU[A-Z]{0,6}|NV[A-Z]{2,4}|HIP[A-Z]{0,6}|NCCL)(?:_[A-Z]{2,20}){1,8}"
    r"|lib(?:cuda|cu|nv|hip|roc|rccl|nccl|amd)[\w-]{0,40}\.so(?:\.\d{1,5}){0,3}"  # libraries of the vendors
    rf"|[A-Z][A-Za-z]{{2,40}}(?:Error|Exception|Warning)|{_UNIT}|\W{{1,40}}|[A-Za-zα-ωΑ-Ωµ_]"
)
_STARTS, _ENDS = "\"'`([{<*", "\"'`)]}>,;:.!?*…’"
_CHUNK = re.compile(r"\S+")
_PARTS = re.compile(r"[\"'`’(){}\[\]<>,;|*+×·…→←≤≥^&!?#°$]+")
_GAPS = re.compile(rf"{_GAP}(?:\s+{_GAP})*")
# A path in quotes may contain blanks. Only the part that names a file of gpubench stays.
_QUOTED_PATH = re.compile(r"([\"'`])((?:~|/|\.{1,2}/|[A-Za-z]:\\|\\\\)[^\"'`\n]*)\1")
_BESIDE = r"[\"'\]\\]{0,4}\s{0,3}"
# Values after the name of a secret, a serial number or an owner: such a value could be an allowed word.
_NAMED_VALUES = re.compile(
    rf"((?:authorization|cookie){_BESIDE}[:=])[^\n]+"
    r"|((?:token|passw\w{1,8}|passphrase|pwd|secrets?|credentials?|(?:api|access|private|secret|ssh)[_-]?key|hostname"
    rf"|nodename|nodelist|fqdn|username|logname)(?:{_BESIDE}[:=]\s{{0,3}}))(\"[^\"\n]*|'[^'\n]*|[^\s\"',;]+)"
    r"|((?:user|login|account|owner|host|node|server|proxy)(?:[\"'\]\\]{1,4}\s{0,3}:|\s{0,3}=)\s{0,3})"
    r"(\"[^\"\n]*|'[^'\n]*|[^\s\"',;]+)"
    r"|(--(?:token|password|user|host|\w{1,20}[_-](?:token|key|password))[ =])([^\s,;]+)"
    r"|(\b(?:serial(?:[ _-]?(?:number|num|no\b\.?))?|s/n|asset[ _-]?tag"
    rf"|(?:board|machine|instance|container|unique|hive)[ _-]?(?:id|serial)){_BESIDE}(?:(?:is|was|[:=#])\s{{0,3}})?)"
    r"([^\s,;]{0,64}\d[^\s,;]*)"
    r"|(\b(?:host|login|node|server|user|(?:asset|blade|chassis|employee|instance|job|rack|room|slot|tray|\w?uid)"
    r"(?:[ _-]?id)?)\s{0,3}[\s:=#]\s{0,3})((?-i:[A-Z]{1,3}\d[0-9A-Z]{0,8}|\d{1,3}[A-Z]{1,3})(?![\w.]))"  # R12, 4B
    r"|(\b(?:asset|employee|instance|job|rack|room|\w?uid)(?:[ _-]?id)?\s{0,3}[\s:=#]\s{0,3})(\d{4,}(?![\w.]))",
    re.IGNORECASE,
)
_BEGINNINGS = re.compile(  # of the names in _NAMED_VALUES, found in lower case; only `uid` may follow another letter
    r"-(?=-)|a(?=ccess|ccount|pi|sset|uthorization)|b(?=lade|oard)|c(?=hassis|ontainer|ookie|redential)|e(?=mployee)"
    r"|f(?=qdn)|h(?=ive|ost)|i(?=nstance)|j(?=ob)|l(?=ogin|ogname)|m(?=achine)|n(?=ode)|o(?=wner)"
    r"|p(?=ass|rivate|roxy|wd)|r(?=ack|oom)|s(?=/n|ecret|erial|erver|lot|sh)|t(?=oken|ray)|u(?=id|nique|ser)"
)
_LIKE_ASCII = str.maketrans("ſ\u212aİı", "skii")  # these letters are equal where case is ignored
_COUNTED = re.compile(  # after a number of any length
    r"\s(?:of\s\d+\s)?(?:bytes|elements|operations|samples|calls|cycles|steps|tokens|parameters|items|rows|ns|B)\b"
)
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]{2,63}")  # an environment variable
_PLAIN_VALUE = re.compile(r"-?\d{1,3}|on|off|yes|no|true|false|none", re.IGNORECASE)


class Words:
    """The allowed words of one set of files: gpubench's words, and `more`, such as versions and names of cases."""

    def __init__(self, more: Collection[str] = (), suites: Collection[str] = ()) -> None:
        self._more = frozenset(word.lower() for word in more)
        self._suites = frozenset(suites)
        self._passing = functools.cache(self._passes)

    def only_allowed(self, text: str) -> str:
        """Return the text with LEFT_OUT in place of each group of words that are not allowed."""
        text = text.replace(LEFT_OUT, _GAP)
        text = _QUOTED_PATH.sub(lambda match: f"{match[1]}{_own_file(match[2]) or _GAP}{match[1]}", text)
        text = _CHUNK.sub(self._allowed_chunk, _without_named_values(text))
        return _GAPS.sub(LEFT_OUT, text)

    def _allowed_chunk(self, match: re.Match[str]) -> str:
        chunk = match[0]
        if self._passing(chunk) or (chunk.isdecimal() and _COUNTED.match(match.string, match.end())):
            return chunk
        core = chunk.lstrip(_STARTS).rstrip(_ENDS)
        if not core or self._passing(core):
            return chunk
        start = chunk.index(core)
        return f"{chunk[:start]}{_GAP}{chunk[start + len(core) :]}"

    def _passes(self, word: str) -> bool:
        """Return whether a word without blanks is allowed, as a whole or in all of its parts."""
        word = word.strip("-") or word
        lower = word.lower()
        if lower in vocabulary() or lower in self._more or _PLAIN.fullmatch(word) or PSEUDONYM.fullmatch(word):
            return True
        if len(word) > _LONGEST_WORD or any(sign in word for sign in ("@", "\\", "://", "~")):
            return False
        parts = [part for part in _PARTS.split(word) if part]
        if parts != [word]:
            return all(map(self._passing, parts))
        if "=" in word:
            names = word.split("=")
            assigned = [value for name, value in itertools.pairwise(names) if _VARIABLE.fullmatch(name)]
            return all(map(_PLAIN_VALUE.fullmatch, assigned)) and all(self._passing(part) for part in names if part)
        if "/" in word:
            return self._passes_with_slash(word.split("/"))
        if ":" in word:
            name, _, number = word.partition(":")
            parts = [name] if re.fullmatch(r"\d{1,3}", number) else lower.split("::")
            return parts != [lower] and all(part.lower() in vocabulary() for part in parts if part)
        if "-" in word or "–" in word:
            return self._passes_with_hyphen(re.split("[-–]", word))
        return "." in word and self._passes_with_dot(word.split("."))

    def _passes_with_slash(self, parts: list[str]) -> bool:
        """Return whether words joined by slashes are the id of a case or a unit (`GB/s`); others may be a path."""
        if len(parts) != 2 or not all(parts):
            return False
        if parts[0] in self._suites and parts[1].isidentifier():
            return True
        is_unit = parts[0].isdigit() or all(len(part) <= 4 or _PLAIN.fullmatch(part) for part in parts)
        return is_unit and all(map(self._passing, parts))

    def _passes_with_hyphen(self, parts: list[str]) -> bool:
        """Return whether words joined by hyphens are allowed: `96-Core`, but no number at the end, as hosts have."""
        parts = [part for part in parts if part]
        is_numbered = not parts or (parts[-1][0].isdigit() and parts[0].isalpha())
        numbers = sum(part[0].isdigit() for part in parts)
        return not is_numbered and numbers < 3 and all(map(self._passing, parts))

    def _passes_with_dot(self, labels: list[str]) -> bool:
        is_known = f"{labels[0].lower()}." in vocabulary() or labels[-1].endswith("Error")
        return is_known and all(label[:1].isalpha() and self._passing(label) for label in labels)


def _without_named_values(text: str) -> str:
    """Return the text with a gap in place of each value that _NAMED_VALUES finds, in a tenth of the time of `sub`."""
    lower, parts, end = text.translate(_LIKE_ASCII).lower(), [], 0  # of the same length as the text
    for beginning in _BEGINNINGS.finditer(lower):
        at = beginning.start()
        for start in (at - 1, at) if lower[at] == "u" else (at,):
            if start >= end and (match := _NAMED_VALUES.match(text, start)):
                parts += [text[end:start], _without_value(match)]
                end = match.end()
    return "".join((*parts, text[end:]))


def _without_value(match: re.Match[str]) -> str:
    """Return the name of a secret or an owner with a gap in place of its value, unless that is a plain one."""
    name, *_ = texts = [text for text in match.groups() if text is not None]
    bare = texts[-1].strip("\"'.")
    is_plain = _PLAIN_VALUE.fullmatch(bare) and match[8] is None  # a serial number may be short
    if is_plain or PSEUDONYM.fullmatch(bare):
        return match[0]
    return f"{name} {_GAP}" if name.endswith(":") else f"{name}{_GAP}"


@functools.cache
def vocabulary() -> frozenset[str]:
    """Return the words of gpubench's source, of Python's and the system's errors, and of models, in lower case."""
    files = {path: path.relative_to(folder.parent).as_posix() for folder in _folders() for path in _files(folder)}
    source = "\n".join(path.read_text(encoding="utf-8") for path in files if path.suffix == ".py")
    chunks = " ".join(set(source.split()))
    plain = set(re.findall(r"[A-Za-z_]\w*", chunks))  # bytes
    joined = set(re.findall(r"[\w/][\w./*:-]*\w", chunks)) - plain  # lz4.block, /proc/stat, page-locked
    beginnings = (re.split(r"\W", part[-64:])[-1] + "." for part in chunks.split(".{"))  # `nvml.` of f"nvml.{name}"
    errors = (*map(os.strerror, errno.errorcode), *errno.errorcode.values(), *(name.name for name in signal.Signals))
    others = " ".join((*errors, *dir(builtins), _MORE_WORDS)).split()
    names = (*files.values(), *(path.name for path in files))
    all_words = plain.union(others, names, beginnings, (word for word in joined if re.search("[./-]", word[1:])))
    return frozenset(word.lower() for word in all_words if not PSEUDONYM.fullmatch(word) and not word[0].isdigit())


def _files(folder: Path) -> Iterator[Path]:
    suffixes = (".py", ".cu", ".cuh", ".hip", ".c", ".cpp", ".h")
    return (path for path in folder.rglob("*") if path.suffix in suffixes)


def _folders() -> list[Path]:
    core = __name__.partition(".")[0]
    points = [point.module for room in get_args(Room) for point in entry_points(group=f"{core}.{room}")]
    specs = (importlib.util.find_spec(name) for name in (core, *points) if name.partition(".")[0] == core)
    folders = {Path(folder) for spec in specs if spec for folder in spec.submodule_search_locations or ()}
    return sorted(folders, key=lambda folder: -len(folder.parts))


def _own_file(path: str) -> str:
    """Return the part of a path that names a file of gpubench, such as `suites/soak/_run.py`; else an empty text."""
    parts = path.split("/")
    inner_paths = ("/".join(parts[start:]) for start in range(max(len(parts) - 5, 0), len(parts) - 1))
    return next((inner for inner in inner_paths if inner.lower() in vocabulary()), "")


_DIGITS = 12  # hexadecimal digits of the hash: 48 bits, enough to keep the names of a fleet distinct
_KEPT_HOST_FACTS = frozenset(  # these facts identify no machine
    ("system", "machine", "cpus", "cpu", "memory_bytes", "governor", "numa", "shared memory", "ptrace scope")
)
_KEPT_DETAIL = re.compile(  # settings and sizes of a device; a collector of your own may add serial numbers and places
    r"(?:cache|clock|memory|partition|pcie|power|shared)\.\w{1,32}|ecc|mig|device|compute_mode|performance_level"
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
_NUMBERED = re.compile(r"\d{4,}|[^\W\d_]\d|\d[^\W\d_]")  # R12, 4711
_OWN_NAME = re.compile(  # of a run file, or its moment
    r"\d{8}T\d{6}Z(?:-[a-z]{2,8})?|(?:file|host|name)-[0-9a-f]{12}|\d{4}-\d\d-\d\d \d\d:\d\d UTC"
)
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
        self.axis = functools.cache(self.word)
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
        if not text or ((text in self.symbols or NUMBER.fullmatch(text)) and not self.names.search(text)):
            return text
        if not text.isprintable():  # otherwise the end of an escape sequence could touch a name and hide it
            text = "\n".join(map(clean, text.split("\n")))
        hidden = self.names.sub(lambda match: self.in_texts[match[0].lower()], text)
        return self.words.only_allowed(hidden)

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
        return text if self.text(text) == text and LEFT_OUT not in text else self.token("name", text)

    def version(self, text: str) -> str:
        """Return a version; any other text as `text` does."""
        return text if _VERSION.fullmatch(text) else self.text(text)

    def suite(self, text: str) -> str:
        name = text.rpartition("/")[2]
        return name if name.removesuffix(".py") in self.suites else self.whole(name)

    def warning(self, text: str) -> str:
        return self.text(re.sub(r"^.+?: (?=(after )?line \d)", "", text))

    def difference(self, text: str) -> str:
        """Return a difference between two runs: `cublas 13.1 → 13.2`, or `host a → b` with pseudonyms."""
        hosts = re.fullmatch(r"host (.+) → (.+)", text)
        return f"host {' → '.join(map(self._name('host'), hosts.groups()))}" if hosts else self.text(text)

    def parameters(self, params: tuple[tuple[str, Any], ...]) -> tuple[tuple[str, Any], ...]:
        return tuple(
            (self.axis(axis), self._parameter(value) if isinstance(value, str) else value) for axis, value in params
        )

    def file_name(self, path: str) -> str:
        stem, ending = _RUN_FILE.fullmatch(path.rpartition("/")[2].replace("\n", " ")).groups()  # type: ignore[union-attr]
        name = self.text(stem)
        is_odd = LEFT_OUT in name or (name == stem and _NUMBERED.search(stem) and not _OWN_NAME.fullmatch(stem))
        return f"{self.token('file', stem) if is_odd else name}{ending}"

    def facts(self, facts: Facts) -> Facts:
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
        if name in _KEPT_HOST_FACTS or not text:
            return text if name == "system" and _system_version(text) else self.text(text)
        return self.token("host" if name == "hostname" else "name", text)

    def _device(self, device: Device, hostname: str) -> Device:
        """Return the device with a pseudonym for its UUID, without its PCI id, and with pseudonyms in its details."""
        identity = device.uuid or (f"{hostname} {device.pci or device.id}" if hostname else "")
        details = tuple(
            (name, self.text(text) if _KEPT_DETAIL.fullmatch(name) else self.token("name", text))
            for name, text in device.details
        )
        uuid = self.token("device", identity)
        return replace(device, name=self.text(device.name), uuid=uuid, pci="", details=details)

    def _parameter(self, text: str) -> str:
        if text in self.labels:
            return self.token("file", text)
        return text if self._is_allowed(text) else self.token("path" if "/" in text else "name", text)

    def _is_allowed(self, text: str) -> bool:
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
        return lambda name: self.pseudonyms.get(name) or (name if name == "none" else self.token(kind, name))

    def _known_names(self, parts: Iterable[Any], manifests: Iterable[Manifest]) -> Iterator[tuple[str, str]]:
        for manifest in manifests:
            yield from self._names_of_facts(manifest.facts)
        for part in parts:
            place: Any = getattr(part, "place", None)  # of a ComponentHistory
            hosts = [moment.source.host for moment in part.moments] if isinstance(part, Trend) else []
            hosts += [place.node] if place else []
            nodes = _numbered_names(part) if isinstance(part, FleetJudgement) else {}
            yield from _with_labels(nodes | {host: self.token("host", host) for host in hosts})

    def _names_of_facts(self, facts: Facts) -> Iterator[tuple[str, str]]:
        for name, text in facts.host:
            if name not in _KEPT_HOST_FACTS:
                yield from _with_labels({text: self._host_fact(name, text)})
        for device in facts.devices:
            details = ((text, "name") for name, text in device.details if not _KEPT_DETAIL.fullmatch(name))
            for text, kind in ((device.uuid, "device"), (device.pci, "pci"), *details):
                yield text, self.token(kind, text)


def _each(rule: Callable[[str], str]) -> Rule:
    return lambda texts: rule(texts) if isinstance(texts, str) else tuple(map(rule, texts))


def _pairs(rule: Callable[[str], str]) -> Rule:
    return lambda pairs: tuple((name, rule(text)) for name, text in pairs)


def _system_version(text: str) -> str:
    """Return the version in the name of a system, as in `Linux 6.8.0-45-generic`; empty if there is none."""
    system, _, version = text.partition(" ")
    return version if system.isalpha() and _VERSION.fullmatch(version) else ""


def _is_code_name(text: str) -> bool:
    numbered = sum(bool(re.search(r"\d", part)) for part in re.split(r"[-/.]", text))
    return numbered < 4 and _CODE_NAME.fullmatch(text) is not None and not _KEY.fullmatch(text)


def _command(argv: Sequence[str]) -> tuple[str, ...]:
    """Return the program and the command of a command line, such as `gpubench run`, without its arguments."""
    return ("gpubench", *(word for word in argv[1:2] if re.fullmatch(r"[a-z]{1,12}", word))) if argv else ()


def _is_searched(name: str, pseudonym: str) -> bool:
    is_plain = _SHORTEST <= len(name) <= _LONGEST and not _COMMON_NAME.fullmatch(name)
    is_number = name.isdigit() and not PSEUDONYM.fullmatch(pseudonym)
    return is_plain and not is_number and not PSEUDONYM.fullmatch(name)


def _with_labels(pseudonym_by_name: Mapping[str, str]) -> Iterator[tuple[str, str]]:
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


_PROGRAM = "nvidia-cuda-mps-control"
_PID_FILE = "nvidia-cuda-mps-control.pid"
_PIPES, _LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
_STARTING_S, _STOPPING_S = 10.0, 10.0
_LOOK_S = 0.02


@contextlib.contextmanager
def private_daemon() -> Iterator[None]:
    """Run an MPS control daemon during the context; all child processes of this process that start meanwhile use it."""
    program = shutil.which(_PROGRAM)
    if program is None:
        raise UsageError(f"--mps needs {_PROGRAM}, which comes with NVIDIA's driver")
    if _PIPES in os.environ:
        raise UsageError(f"--mps starts a daemon of its own, but {_PIPES} names another one; unset that variable")
    with tempfile.TemporaryDirectory(prefix="gpubench-mps-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        os.environ |= {_PIPES: name, _LOGS: name}
        log = folder / "output"
        try:
            with log.open("wb") as output:
                daemon = subprocess.Popen([program, "-f"], stdout=output, stderr=output, start_new_session=True)
            try:
                _wait_until_ready(daemon, folder, log)
                yield
            finally:
                _stop(program, daemon)
        finally:
            del os.environ[_PIPES], os.environ[_LOGS]


def _wait_until_ready(daemon: subprocess.Popen[bytes], folder: Path, log: Path) -> None:
    """Wait up to 10 s until the daemon has written its process id into `folder`."""
    deadline = time.monotonic() + _STARTING_S
    while not (folder / _PID_FILE).exists():
        if daemon.poll() is not None or time.monotonic() > deadline:
            lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise UsageError(f"{_PROGRAM} does not start: {lines[-1] if lines else 'it printed nothing'}")
        time.sleep(_LOOK_S)


def _stop(program: str, daemon: subprocess.Popen[bytes]) -> None:
    """Ask the daemon to quit, which ends its servers too, and wait up to 10 s; then kill its process group."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        if daemon.poll() is None:
            subprocess.run([program], input=b"quit\n", capture_output=True, timeout=_STOPPING_S, check=False)
        daemon.wait(_STOPPING_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(daemon.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        daemon.wait(_STOPPING_S)
