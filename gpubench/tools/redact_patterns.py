r"""Define the patterns of texts that can identify a machine or its owner, and of texts that only look like them.

docs/sharing.md lists them for users. `SPANS` match parts that can contain spaces, the other patterns match whole words.
Every pattern takes time in proportion to the length of the text. Either it begins only where no character of its class
precedes it and never backtracks (`++` is possessive), or the length of its match is limited."""

import re

_HEX = "[0-9a-fA-F]"
KINDS = "host|user|name|device|path|file|pci|url|mail|mac|ip|serial|id|value|secret"
PSEUDONYM = re.compile(rf"(?:{KINDS})-[0-9a-f]{{12}}")
# A word that was redacted before; the pseudonym of a path may be followed by the part inside a package.
KEPT = re.compile(rf"(?:{KINDS})-[0-9a-f]{{12}}|ip-[0-9a-f]{{12}}/\d+|path-[0-9a-f]{{12}}(?:/[\w.+-]++)+")
LONGEST_WORD = 4096  # characters, the limit of a path in Linux (PATH_MAX)

# --- values with their names: `TOKEN=…`, `"user": "…"`, `--password …`

NAME = re.compile(
    r"(?=[\w-])(?<![\w.+-])(?:(-{0,2}[A-Za-z][\w.-]{0,63}+)(\\{0,3}[\"']?\]?\s{0,3}(?::(?!:)|=(?!=)>?)\s{0,3})"
    r"|(--[A-Za-z][\w-]{0,63}+)(\s{1,3})(?!-))"
)
VALUE = re.compile(r"\\{0,3}\"[^\"\n]*+|\\{0,3}'[^'\n]*+|[^\s\"'<>;(){}\[\]]++")
LINE = re.compile(r"[^\n]++")
VARIABLE = re.compile(r"[A-Z][A-Z0-9_]{2,63}")  # an environment variable
# A name matches if one of its parts does, as in HF_TOKEN or --api-key; dots, dashes and underscores separate parts.
HEADERS = frozenset({"authorization", "cookie", "setcookie"})  # HTTP headers, whose value is the rest of the line
CREDENTIALS = frozenset(
    (
        *("token", "password", "passwords", "passwd", "passphrase", "pwd", "secret", "secrets", "credential"),
        *("credentials", "apikey", "accesskey", "privatekey", "secretkey", "sshkey", "signingkey", "clientkey"),
        *("deploykey", "encryptionkey", "accesstoken", "authtoken", "apitoken", "idtoken", "refreshtoken"),
    )
)
OWNERS = frozenset(("hostname", "nodename", "nodelist", "fqdn", "username", "logname"))
ASSIGNED_OWNERS = frozenset(  # only before `=`, or quoted: "the user: …" and "the host: …" may be plain sentences
    (
        *("user", "login", "account", "owner", "host", "node", "server"),
        *("proxy", "httpproxy", "httpsproxy", "ftpproxy", "allproxy", "noproxy"),
    )
)
PLAIN_VALUE = re.compile(r"-?\d{1,3}|on|off|yes|no|true|false|none|null", re.IGNORECASE)

# --- other parts that can contain spaces

_START = r"(?=[A-Za-z0-9])(?<![\w.+-])"
_NUMBERED = (
    r"(?:[A-Za-z0-9]{1,32}+[_.-]){0,3}(?i:serial[ _-]?(?:number|num|no\.?)|s/n|asset[ _-]?tag"
    r"|(?:board|machine|instance|container|unique|hive)[ _-]?(?:id|serial)|serial(?=\s{0,3}[:=#\"']))"
)
_NUMBER = r"[A-Za-z0-9][A-Za-z0-9-]{2,63}+)(?![.\w])"
_QUOTE = r"(?:\\{0,3}[\"'])"
# Words that cannot be part of a path with spaces; options and numbers cannot either.
_STOP = (
    r"(?:[-\d]|(?:a|an|the|and|or|to|from|at|in|on|into|is|was|are|were|be|of|not|no|with|without|for|by|as|than|then"
    r"|it|its|this|that|which|does|did|do|has|have|had|fail\w*|died|cannot|can|could|line|reads?|writes?|written|wrote"
    r"|see|says|said|return\w*|exit\w*|after|before|because|since|while|but|if|when|where|via|open|missing|exists)\b)"
)
_P = r"[^\s\"'`<>|:;,()\[\]{}/\\]"  # one character of a path's part
_NEXT = rf" (?!{_STOP}){_P}{{1,64}}+"
_ENDING = "|".join(rf"(?<=\.[A-Za-z]\w{{{count}}})" for count in range(5))  # `.so`, `.jsonl`
_MORE = rf"(?:{_NEXT}){{0,3}}{_NEXT}(?:(?:/{_P}++)++/?|(?:{_ENDING})(?!\w))"

# kind → the pattern, whose group is hidden, and words of which one occurs in every text that the pattern matches
SPANS: tuple[tuple[str, re.Pattern[str], tuple[str, ...]], ...] = (
    (
        "secret",
        re.compile(r"(-----BEGIN [A-Z0-9 ]{0,40}-----(?:[^-]|-(?!----))*+(?:-----END [A-Z0-9 ]{0,40}-----)?)"),
        ("-----begin",),
    ),
    (
        "path",
        re.compile(rf"(?<=[\"'`])((?:~|/|\.{{1,2}}/|[A-Za-z]:\\|\\\\)[^\"'`\n]{{1,{LONGEST_WORD}}}+)(?=[\"'`])"),
        ('"', "'", "`"),
    ),
    (
        "path",
        re.compile(rf"(?=[~./])(?<![\w/.~*)\]])((?:~[\w.-]{{0,64}}+|\.{{1,2}})?(?:/{_P}++)++/?(?:{_MORE})++)"),
        ("/",),
    ),
    (
        "path",
        re.compile(rf"(?<![\w\\])([A-Za-z]:\\{_P}[^\s\"'<>|:;,]*+(?: (?!{_STOP}){_P}{{1,64}}+\\[^\s\"'<>|:;,]++)*+)"),
        (":\\",),
    ),
    ("value", re.compile(rf"{_START}(?i:bearer|basic)\s{{1,3}}([\w.~+/=-]{{8,}}+)"), ("bearer", "basic")),
    (
        "serial",
        re.compile(
            rf"{_START}{_NUMBERED}{_QUOTE}?\s{{0,3}}(?:(?:is|was|[:=#])\s{{0,3}})?{_QUOTE}?((?=[A-Za-z-]{{0,40}}\d){_NUMBER}"
        ),
        ("serial", "s/n", "asset", "board", "machine", "instance", "container", "unique", "hive"),
    ),
    ("serial", re.compile(rf"{_START}(?i:serial)\s{{1,3}}((?=(?:[A-Za-z-]{{0,9}}\d){{3}}){_NUMBER}"), ("serial",)),
)

# --- words

_W = r"[^\s\"'`<>()\[\]{},;|]"
# An HTML tag, or a word that is neither very short nor made of letters alone, as most words are.
WORD = re.compile(rf"</[\w-]{{1,32}}>|(?<!{_W})(?![A-Za-z]*+(?!{_W})){_W}{{3,}}+")
DEVICE = re.compile(rf"(?:(?:GPU|MIG)-)?{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}")
MAC = re.compile(
    rf"{_HEX}{{2}}(?:[:-]{_HEX}{{2}}){{5,7}}|{_HEX}{{4}}(?::{_HEX}{{4}}){{3}}"
)  # the second form is InfiniBand's
PCI = re.compile(rf"{_HEX}{{4,8}}:{_HEX}{{2}}:{_HEX}{{2}}(?:\.[0-7])?|{_HEX}{{2}}:[01]{_HEX}\.[0-7]")
ON_BUS = re.compile(rf"(?i:pci|bus):{_HEX}{{2}}:{_HEX}{{2}}")
CONTAINER = re.compile(r"(?=\d*[a-f])(?=[a-f]*\d)(?:[0-9a-f]{64}|[0-9a-f]{32}|[0-9a-f]{12})")
KEY = re.compile(
    r"A[A-Z]{2}A[A-Z0-9]{12,}|gh[a-z]_\w{16,}|github_pat_\w{12,}|gl[a-z]{2,6}-[\w-]{16,}|hf_\w{16,}|sk-[\w-]{16,}"
    r"|xox[a-z]-[\w-]{8,}|nvapi-[\w-]{16,}|npm_\w{16,}|pypi-[\w-]{16,}|AIza[\w-]{20,}|eyJ[\w-]{8,}\.[\w.-]{4,}"
    r"|AAAA[A-Za-z0-9+/=]{16,}"
)
MAIL = re.compile(r"[\w.+-]+@[A-Za-z][\w.-]*(?::.*)?")
ENDPOINT = re.compile(r"(?=[A-Za-z]+:\d{4}|[\w.-]*[\d.-][\w.-]*:\d\d)[A-Za-z][\w.-]+(?::\d{2,7}){1,2}")
_LABEL = r"(?:[A-Za-z0-9][\w-]{0,62}\.)"
_DOMAIN = (
    r"com|org|net|edu|gov|mil|biz|ai|cloud|local|localdomain|internal|intranet|intra|lan|corp|arpa|example|invalid"
    r"|de|fr|uk|eu|nl|dk|cz|jp|cn|kr|tw|sg|au|nz|ru|ro"
)
# Names in code have such endings too, as `clocks.gr`: they count only behind two labels.
_CODE_DOMAIN = (
    r"io|test|home|private|cluster|hpc|it|pl|no|at|be|ch|se|fi|ca|us|br|mx|es|pt|gr|ie|il|tr|ua|hu|lt|lv|ee|in|is"
)
HOST = re.compile(rf"{_LABEL}{{1,20}}(?i:{_DOMAIN})|{_LABEL}{{2,20}}(?i:{_CODE_DOMAIN})|ip(?:-\d{{1,3}}){{4}}")
OPAQUE = re.compile(r"[A-Za-z0-9+_-]{20,}")  # perhaps a key, if its letters and digits alternate

# --- words that look like names, but are none

# Paths that identify nobody: those of the kernel, the distribution and the vendors, which all machines have.
_PART = r"(?:/[\w.+*?-]+)"
PUBLIC = re.compile(
    rf"/(?:sys{_PART}*|proc(?:(?!/(?:cwd|root|fd|exe|map_files)/){_PART})*|(?:lib|lib64|bin|sbin|run/nvidia){_PART}*"
    rf"|dev(?:/[\w-]+|/(?:dri|nvidia-caps|infiniband|cpu|pts|net|vfio){_PART}+)?"
    rf"|usr(?!/(?:home|local)(?:/|$)){_PART}*|usr/local(?:/(?:cuda[\w.-]*|bin|lib|lib64|include|share){_PART}*)?"
    rf"|opt/(?:rocm[\w.*-]*|nvidia|amdgpu){_PART}*|etc/os-release|metrics"
    r"|(?:home|root|etc|var|opt|mnt|media|srv|run|tmp|var/tmp|data|scratch))?/?|/[^\W\d_]{1,2}"
)
# gpubench's own folders, one by one: another project's folder below one called gpubench must stay hidden.
_FOLDERS = (
    "gpubench|collectors|reports|suites|ci(?:/_publications)?|"
    "suites/(?:_matrix|bandwidth|collectives|compilers|compression|gemm|inference|ipc|latency|p2p|patterns|soak|startup|"
    "storage|tensor|virtual)|"
    "gpubench/(?:analysis(?:/views)?|api|authoring|base|cli|devices(?:/backends|/native)?|importers|judging|knowledge|"
    "measuring|model|plugins|stats|testing|tools(?:/fleet|/gating|/history|/monitor|/profile)?)"
)
CODE = re.compile(rf".*/(?:site|dist)-packages/(.+)|.*/lib/python[\d.]+/(.+)|.*?/((?:{_FOLDERS})/\w+\.py)$")
_UNIT = (
    r"(?:[munµkKMGTPE]?i?(?:B|bit|b|bytes?|FLOPS?|OPS?|W|J|Hz|s|sec|m|T)|[\d.,]+|clock|cycle|call|SM|CU|core|element"
    r"|item|token|lane|N|A|n)"
)
# Relative paths that are the same for everybody: units of figures, gpubench's files, usual names of run files.
OURS = re.compile(
    rf"{_UNIT}(?:/{_UNIT})*|(?:{_FOLDERS})/\w+\.py|docs/[\w/-]+\.md|tests/recordings/[\w/.-]+"
    r"|ci/[\w-]+\.sh|gpubench-(?:runs|baselines)/(?:(?:TIME|[\dTZ]{16})[a-z0-9-]*(?:\.jsonl(?:\.gz)?)?|history\.sqlite)"
)
FILE = re.compile(r"\.[A-Za-z]\w{0,7}$")  # the suffix of a file name
SOURCE = re.compile(r"\.(?:py|cu|cuh|cpp|cc|c|h|hpp|hip|so|js|rs|toml|md|json|jsonl|txt|yml)$", re.IGNORECASE)
NO_HOSTS = frozenset(  # words before a colon and a number that are no host names
    (
        *("cuda", "rocm", "hip", "gpu", "cpu", "core", "device", "rank", "numa", "localhost", "intel-rapl"),
        *("line", "xid", "step", "phase", "pid", "port", "code", "error", "status", "exit", "stage", "tile", "cluster"),
        *("size", "count", "time", "level", "tier", "version", "driver"),
        *("block", "blocks", "grid", "batch", "threads", "warps", "bytes", "rows", "length", "samples", "calls"),
    )
)
TRANSFER = re.compile(r"[CG]PU\d\d:\d{3}")  # a processor and its blocks, as TransferBench writes them
NO_LABELS = (
    "self.",
    "threading.",
    "this.",
    "model.",
    "clocks.",
    "pcie.",
    "power.",
    "temperature.",
)  # code that ends like a domain name
