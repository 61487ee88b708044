r"""How the parts of a text are written that can tell whose a machine is or where it stands, and what only looks so.

docs/sharing.md lists them for users. Every pattern takes time in proportion to the length of the text: it either begins
where no character of its class stands before it and never gives a character back (`++` is possessive), or its length
has a limit. Patterns that can begin at the same places stand behind one guard, so that few of them are tried at once.
"""

from __future__ import annotations

import re

KINDS = "host|user|name|device|path|file|pci|url|mail|mac|ip|serial|id|value|secret"
PSEUDONYM = re.compile(rf"(?:{KINDS})-[0-9a-f]{{12}}")
LONGEST_PATH = 4096  # bytes, of Linux (PATH_MAX): a longer text is no path that leads through a package

_HEX = "[0-9a-fA-F]"
# A character of a path's part; of a relative path none is an equals sign, which stands before a path.
_P = r"[^\s\"'`<>|:;,()\[\]{}/\\]"
_R = r"[^\s\"'`<>|:;,()\[\]{}/\\=]"
_W = r"[^\s\"'<>|:;,\\]"  # of Windows
# Words that do not continue a path that has spaces in it; nor do options and numbers.
_STOP = (
    r"(?:[-\d]|(?:a|an|the|and|or|to|from|at|in|on|into|is|was|are|were|be|of|not|no|with|without|for|by|as|than|then"
    r"|it|its|this|that|which|does|did|do|has|have|had|fail\w*|died|cannot|can|could|line|reads?|writes?|written|wrote"
    r"|see|says|said|return\w*|exit\w*|after|before|because|since|while|but|if|when|where|via|open|missing|exists)\b)"
)
_ENDING = "|".join(rf"(?<=\.[A-Za-z]\w{{{count}}})" for count in range(5))  # `.so`, `.jsonl`
_WORD = rf" (?!{_STOP}){_P}{{1,64}}+"
_MORE = rf"(?:(?:{_WORD}){{0,3}}{_WORD}(?:(?:/{_P}++)++/?|(?:{_ENDING})(?!\w)))*+"

_WINDOWS = (
    rf"(?:[A-Za-z]:\\{{1,4}}+|\\{{2,4}}+(?={_W}++\\)){_W}[^\s\"'<>|:;,]*+"
    rf"(?:(?: (?!{_STOP}){_W}{{1,64}}+){{1,4}}\\[^\s\"'<>|:;,]++)*+"
)

_QUOTE = r"(?:\\{0,3}[\"'])"
_VALUE = r"(\\{0,3}\"[^\"\n]*+|\\{0,3}'[^'\n]*+|[^\s\"'<>;(){}\[\]]++)"
_HEAD = r"-{0,2}(?:[A-Za-z0-9]{1,32}+[_.-]){0,6}"  # of a name such as HF_TOKEN, --api-key
_TAIL = r"(?:[_.-][A-Za-z0-9]{1,32}+){0,2}"
_HEADER = r"(?i:(?:proxy-)?authorization|(?:set-)?cookie|x(?:-[a-z]{1,16}){0,3}-(?:token|key))"  # of HTTP
_CREDENTIAL = (
    r"(?i:(?:access|auth|api|id|refresh|client)?(?:token|password|passwd|passphrase|secret|credential|apikey|cookie)s?"
    r"|pwd|(?:access|api|private|secret|ssh|encryption|signing|client|deploy)[_-]?key)"
)
_OWNER = (
    r"(?i:(?:(?:https?|ftp|all|no|socks\d?|rsync)[_-]?)?proxy|user(?:[_-]?name)?|login|logname|account|owner"
    r"|host(?:[_-]?name)?|node[_-]?name|fqdn|server)"
)
_OPTION = rf"--(?:(?:[a-z0-9]{{1,32}}+-){{0,4}}(?:{_CREDENTIAL}|proxy|user(?:name)?|login)|host(?:name)?)"
_NUMBERED = (
    r"(?:[A-Za-z0-9]{1,32}+[_.-]){0,3}"
    r"(?i:serial(?:[ _-]?(?:number|num|no\.?))|s/n|(?:board|machine|instance|container|unique|hive)[ _-]?(?:id|serial)"
    r"|asset[ _-]?tag)"
)
_NUMBER = r"((?=[A-Za-z-]{0,40}\d)[A-Za-z0-9][A-Za-z0-9-]{2,63}+)"
_LABEL = r"(?:[A-Za-z0-9][\w-]{0,62}+\.)"  # of a domain name
_DOMAIN = (
    r"com|org|net|edu|gov|mil|biz|ai|cloud|local|localdomain|internal|intranet|intra|lan|corp|arpa|example|invalid"
    r"|de|fr|uk|eu|nl|dk|cz|jp|cn|kr|tw|sg|au|nz|ru|ro"
)
# Names in code end so too, as `clocks.gr`: only behind two labels.
_CODE_DOMAIN = (
    r"io|test|home|private|cluster|hpc|it|pl|no|at|be|ch|se|fi|ca|us|br|mx|es|pt|gr|ie|il|tr|ua|hu|lt|lv|ee|in|is"
)
_DOMAIN_NAME = rf"(?:{_LABEL}{{1,20}}(?i:{_DOMAIN})|{_LABEL}{{2,20}}(?i:{_CODE_DOMAIN}))"
_KEYS = (
    r"A[A-Z]{2}A[A-Z0-9]{12,}+|gh[a-z]_[A-Za-z0-9]{16,}+|github_pat_\w{16,}+|gl[a-z]{2,6}-[\w-]{16,}+"
    r"|hf_[A-Za-z0-9]{16,}+|sk-[\w-]{16,}+|xox[a-z]-[\w-]{8,}+|nvapi-[\w-]{16,}+|npm_\w{16,}+|pypi-[\w-]{16,}+"
    r"|AIza[\w-]{20,}+|eyJ[\w-]{8,}+\.[\w-]{4,}+(?:\.[\w-]*+)?|SHA256:[A-Za-z0-9+/]{43}=?"
    r"|(?:ssh-[a-z0-9]{2,10}|ecdsa-sha2-\w{1,20}+)\s{1,3}AAAA[A-Za-z0-9+/=]++"
)
_CONTAINER = r"(?=[0-9a-f]{0,63}[a-f])(?=[0-9a-f]{0,63}\d)"  # digits and letters, both

_START = r"(?<![\w.+-])"  # of a word, which may hold dots and dashes
# Guard → the patterns behind it, each with its kind; of the patterns that match at one place the first is taken. Where
# a pattern has a group, that is what is hidden. A guard holds wherever one of its patterns can match.
_GUARDED: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    (
        rf"(?<![A-Za-z0-9])(?=[a-z]{{2,6}}-{_HEX})",
        (("kept", rf"(?:path-[0-9a-f]{{12}}(?:/[\w.+-]++)++|(?:{KINDS})-[0-9a-f]{{12}}(?![A-Za-z0-9@]|\.\w))"),),
    ),
    (
        "(?=-----BEGIN )",
        (("secret", r"-----BEGIN [A-Z0-9 ]{0,40}-----(?:[^-]|-(?!----))*+(?:-----END [A-Z0-9 ]{0,40}-----)?"),),
    ),
    (
        r"(?<=[\"'`])(?=[~/.\\]|[A-Za-z]:\\)",
        (("path", rf"(?:~|/|\.{{1,2}}/|[A-Za-z]:\\|\\\\)[^\"'`\n]{{1,{LONGEST_PATH}}}+(?=[\"'`])"),),
    ),
    (
        rf"{_START}(?=[\w.+-]++{_QUOTE}?\s{{0,3}}[:=@])",
        (
            ("value", rf"{_HEADER}{_QUOTE}?\s{{0,3}}[:=]\s{{0,3}}{_QUOTE}?([^\n\"']++)"),
            ("value", rf"{_HEAD}{_CREDENTIAL}{_TAIL}{_QUOTE}?\s{{0,3}}(?::|=(?!=)>?)\s{{0,3}}{_VALUE}"),
            ("value", rf"{_HEAD}{_OWNER}{_TAIL}(?:\s{{0,3}}=(?!=)\s{{0,3}}|{_QUOTE}\s{{0,3}}:\s{{0,3}}){_VALUE}"),
            ("value", rf"[A-Z][A-Z0-9_]{{2,63}}+(?:\s?=(?!=)|{_QUOTE}\s{{0,3}}:\s{{0,3}}){_VALUE}"),
            ("mail", r"[\w.+-]++@[\w-]{1,63}+(?:\.[\w-]{1,63}+){0,8}(?::[^\s\"'<>;,]++)?"),
            ("url", r"[A-Za-z][A-Za-z0-9+.-]{1,20}+://[^\s\"'<>`]*[^\s\"'<>`.,;:)\]]"),
        ),
    ),
    (
        rf"{_START}(?=--[a-z]|[Bb]earer|BEARER)",
        (("value", rf"{_OPTION}\s{{1,3}}(?!-){_VALUE}"), ("value", r"(?i:bearer)\s{1,3}([\w.~+/=-]{8,}+)")),
    ),
    (
        rf"{_START}(?=(?:[A-Za-z0-9]{{1,32}}+[_.-]){{0,3}}[a-zA-Z/]{{3,9}}+[\s_\"':=#-])",
        (
            ("serial", rf"{_NUMBERED}{_QUOTE}?\s{{0,3}}(?:(?:is|was|[:=#])\s{{0,3}})?{_QUOTE}?{_NUMBER}"),
            ("serial", r"(?i:serial)\s{0,3}[:=#]?\s{0,3}((?=[A-Za-z-]{0,40}\d)[A-Za-z0-9-]{5,64}+)(?![.\w])"),
        ),
    ),
    (
        rf"{_START}(?=[A-Za-z0-9][\w-]*+[.:]\w|ip-\d|[0-9a-f]{{12}})",
        (
            ("host", rf"{_DOMAIN_NAME}(?::\d{{1,5}})?(?![\w-]|\.\w)(?:/[^\s\"'<>]*+)?"),
            ("host", r"ip-\d{1,3}(?:-\d{1,3}){3}(?!\w)"),
            ("ip", r"\d{1,3}(?:\.\d{1,3}){3}(?!\w|\.\d)"),
            ("endpoint", r"(?<![:/@])[A-Za-z][\w-]{0,62}+(?:\.[A-Za-z0-9][\w-]{0,62}+){0,8}:\d{2,5}(?!\w|[.:]\d)"),
            ("id", r"(?=[0-9a-f]{0,11}[a-f])(?=[0-9a-f]{0,11}\d)[0-9a-f]{12}(?![\w-])"),
        ),
    ),
    (
        rf"(?<![A-Za-z0-9])(?=(?:GPU-|MIG-)?(?:{_HEX}{{2}}|{_HEX}{{4,8}})[:-]{_HEX})",
        (
            ("device", rf"(?:(?:GPU|MIG)-)?{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}(?![A-Za-z0-9])"),
            ("mac", rf"{_HEX}{{2}}(?:[:-]{_HEX}{{2}}){{5,7}}(?![A-Za-z0-9:])"),
            ("mac", rf"{_HEX}{{4}}(?::{_HEX}{{4}}){{3}}(?![A-Za-z0-9:])"),  # a GUID of InfiniBand
            ("pci", rf"{_HEX}{{4,8}}:{_HEX}{{2}}:{_HEX}{{2}}(?:\.[0-7])?(?![A-Za-z0-9:])"),
            ("pci", rf"{_HEX}{{2}}:{_HEX}{{2}}\.[0-7](?![A-Za-z0-9:])"),
        ),
    ),
    (
        r"(?<![A-Za-z0-9])(?=[A-Za-z][\w-]{7}|[Pp][Cc][Ii][ :]|bus |[0-9a-f]{32}|ssh-)",
        (
            ("secret", f"(?:{_KEYS})"),
            ("id", rf"{_CONTAINER}(?:[0-9a-f]{{64}}|[0-9a-f]{{32}})(?!\w)"),
            ("pci", rf"(?i:pci|bus)[ :]{_HEX}{{2}}:{_HEX}{{2}}(?![A-Za-z0-9:])"),
        ),
    ),
    (
        rf"(?<![\w:.])(?={_HEX}{{0,4}}:{_HEX}{{0,4}}:)",
        (("ip", rf"{_HEX}{{0,4}}(?::{_HEX}{{0,4}}){{2,7}}(?![\w:])"),),
    ),
    (
        r"(?:(?<![\w/.)\]*~])|(?<=\s-[A-Z]))(?=[~./])(?!(?<=<)/[\w-]{1,32}>)",  # `-I/usr/include` too; no tag
        (("folder", rf"(?:~[\w.-]{{0,64}}+|\.{{1,2}})?(?:/{{1,3}}{_P}++)++/?{_MORE}"),),
    ),
    (
        r"(?<![\w\\])(?=[A-Za-z]:\\|\\\\)",
        (("path", _WINDOWS),),
    ),
    (
        rf"(?<!{_R})(?<![/\\])(?={_R}++/{_R})",
        (("relative", rf"{_R}++(?:/{_R}++)++/?"),),
    ),
)
KIND_OF: dict[str, str] = {}  # the name of a pattern's group → its kind
_groups = []
for _guard, _patterns in _GUARDED:
    _names = [f"p{len(KIND_OF) + place}" for place in range(len(_patterns))]
    KIND_OF.update((name, kind) for name, (kind, _) in zip(_names, _patterns, strict=True))
    _inner = "|".join(f"(?P<{name}>{pattern})" for name, (_, pattern) in zip(_names, _patterns, strict=True))
    _groups.append(f"{_guard}(?:{_inner})")
PATTERN = re.compile(rf"(?=[^\s\"'`()\[\]{{}},;|<>=])(?:{'|'.join(_groups)})")
# Perhaps a key: its letters and digits may change by chance.
OPAQUE = re.compile(r"(?<![\w/.+-])[A-Za-z0-9+_-]{20,}+(?![./])")

# Where a path names no person: what the kernel, the distribution and the vendors put there, and what all machines have.
_PART = r"(?:/[\w.+*?-]+)"
PUBLIC = re.compile(
    rf"/(?:sys{_PART}*|proc(?:(?!/(?:cwd|root|fd|exe|map_files)/){_PART})*|(?:lib|lib64|bin|sbin|run/nvidia){_PART}*"
    rf"|dev(?:/[\w-]+|/(?:dri|nvidia-caps|infiniband|cpu|pts|net|vfio){_PART}+)?"
    rf"|usr(?!/(?:home|local)(?:/|$)){_PART}*|usr/local(?:/(?:cuda[\w.-]*|bin|lib|lib64|include|share){_PART}*)?"
    rf"|opt/(?:rocm[\w.*-]*|nvidia|amdgpu){_PART}*|etc/os-release|metrics"
    r"|(?:home|root|etc|var|opt|mnt|media|srv|run|tmp|var/tmp|data|scratch))/?|/[A-Za-z]{1,2}"
)
# Our own folders that a case leads through, one by one: of another's below one called gpubench nothing is to be read.
_FOLDERS = (
    "gpubench|collectors|reports|suites|ci(?:/_publications)?|"
    "suites/(?:bandwidth|collectives|compression|gemm|ipc|latency|p2p)|"
    "gpubench/(?:analysis(?:/views)?|api|authoring|base|cli|devices(?:/backends|/native)?|importers|judging|knowledge|"
    "measuring|model|plugins|stats|testing|tools(?:/gating|/history|/monitor|/profile)?)"
)
CODE = re.compile(rf".*/(?:site|dist)-packages/(.+)|.*/lib/python[\d.]+/(.+)|.*?/((?:{_FOLDERS})/\w+\.py)$")
_UNIT = (
    r"(?:[munµkKMGTPE]?i?(?:B|bit|b|bytes?|FLOPS?|OPS?|W|J|Hz|s|sec|m|T)|[\d.,]+|clock|cycle|call|SM|CU|core|element"
    r"|item|token|lane|N|A|n)"
)
# Relative paths that are those of everybody: figures' units, our own files, the run files' usual names.
OURS = re.compile(
    rf"{_UNIT}(?:/{_UNIT})*\.?|(?:{_FOLDERS})/\w+\.py|docs/[\w/-]+\.md|tests/recordings/[\w/.-]+"
    r"|ci/[\w-]+\.sh|gpubench-(?:runs|baselines)/(?:(?:TIME|[\dTZ]{16})[a-z0-9-]*(?:\.jsonl(?:\.gz)?)?|history\.sqlite)"
)
FILE = re.compile(r"\.[A-Za-z]\w{0,7}$")  # how the name of a file ends
SOURCE = re.compile(r"\.(?:py|cu|cuh|cpp|cc|c|h|hpp|hip|so|js|rs|toml|md|json|jsonl|txt|yml)$", re.IGNORECASE)
NO_HOSTS = frozenset(  # words in front of a colon and a number that are no machine
    (
        *("cuda", "rocm", "hip", "gpu", "cpu", "core", "device", "rank", "numa", "localhost", "intel-rapl"),
        *("line", "xid", "step", "phase", "pid", "port", "code", "error", "status", "exit", "stage", "tile", "cluster"),
        *("size", "count", "time", "level", "tier", "version", "driver"),
    )
)
TRANSFER = re.compile(r"[CG]PU\d\d:\d{3}")  # how TransferBench writes a processor and its blocks
NO_LABELS = ("self.", "threading.", "this.", "model.")  # code, though it ends as a domain does
PLAIN_VALUE = re.compile(r"-?\d{1,3}|on|off|yes|no|true|false|none|null", re.IGNORECASE)
