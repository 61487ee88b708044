"""Decide which words of a text may leave the machine; everything else is left out (docs/sharing.md).

A word passes if gpubench's public source contains it, so that all sentences of gpubench pass, or if it is a number, a
version, a name of hardware, an error code or a pseudonym. Words of users and libraries pass only by coincidence."""

import builtins
import errno
import functools
import importlib.util
import itertools
import os
import re
import signal
from collections.abc import Collection, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import get_args

from gpubench.plugins.loading import Room

LEFT_OUT = "(left out)"
_GAP = "\0"  # stands for LEFT_OUT while a text is changed, because it has no blank
KINDS = "host|user|name|device|path|file|pci|url|mail|mac|ip|serial|id|value|secret"  # the last nine: of old files
PSEUDONYM = re.compile(rf"(?:{KINDS})-[0-9a-f]{{12}}")
NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?", re.IGNORECASE)
_LONGEST = 400  # characters of one word: the case ids of profiled kernels have up to 200
# Words of models of hardware and of messages of drivers and libraries, which gpubench itself does not use.
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
    r"([^\s,;]{0,64}\d[^\s,;]*)",
    re.IGNORECASE,
)
_COUNTED = re.compile(  # after a number of any length
    r"\s(?:of\s\d+\s)?(?:bytes|elements|operations|samples|calls|cycles|steps|tokens|parameters|items|rows|ns|B)\b"
)
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]{2,63}")  # an environment variable
_PLAIN_VALUE = re.compile(r"-?\d{1,3}|on|off|yes|no|true|false|none", re.IGNORECASE)


class Words:
    """The allowed words of one set of files: gpubench's words, and `more`, such as versions and names of cases.

    `suites` are names of suites, with which the ids of cases begin."""

    def __init__(self, more: Collection[str] = (), suites: Collection[str] = ()) -> None:
        self._more = frozenset(word.lower() for word in more)
        self._suites = frozenset(suites)
        self._passing = functools.cache(self._passes)

    def only_allowed(self, text: str) -> str:
        """Return the text with LEFT_OUT in place of each group of words that are not allowed."""
        text = text.replace(LEFT_OUT, _GAP)
        text = _QUOTED_PATH.sub(lambda match: f"{match[1]}{_own_file(match[2]) or _GAP}{match[1]}", text)
        text = _CHUNK.sub(self._allowed_chunk, _NAMED_VALUES.sub(_without_value, text))
        return _GAPS.sub(LEFT_OUT, text)

    def _allowed_chunk(self, match: re.Match[str]) -> str:
        """Return the text between two blanks, or its marks at both ends around a gap."""
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
        if len(word) > _LONGEST or any(sign in word for sign in ("@", "\\", "://", "~")):
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
        """Return whether words joined by dots are the name of a counter or an error; anything else may be a host."""
        is_known = f"{labels[0].lower()}." in vocabulary() or labels[-1].endswith("Error")
        return is_known and all(label[:1].isalpha() and self._passing(label) for label in labels)


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
    forms = (r"[A-Za-z_]\w*", r"[\w/][\w./*:-]*[./-][\w./*:-]*\w")  # bytes; lz4.block, /proc/stat, page-locked
    beginnings = (re.split(r"\W", part[-64:])[-1] + "." for part in chunks.split(".{"))  # `nvml.` of f"nvml.{name}"
    errors = (*map(os.strerror, errno.errorcode), *errno.errorcode.values(), *(name.name for name in signal.Signals))
    others = " ".join((*errors, *dir(builtins), _MORE_WORDS)).split()
    names = (*files.values(), *(path.name for path in files))
    all_words = {*others, *names, *beginnings, *(word for form in forms for word in re.findall(form, chunks))}
    return frozenset(word.lower() for word in all_words if not PSEUDONYM.fullmatch(word) and not word[0].isdigit())


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder that Python or a compiler of kernels reads."""
    suffixes = (".py", ".cu", ".cuh", ".hip", ".c", ".cpp", ".h")
    return (path for path in folder.rglob("*") if path.suffix in suffixes)


def _folders() -> list[Path]:
    """Return the folders of gpubench and of its own plugins, inner ones first."""
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
