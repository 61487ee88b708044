"""Texts that are code in some form, and a run or a comparison with one of them in every field that holds a text."""

from __future__ import annotations

import dataclasses
from enum import Enum
from typing import Any

INJECTIONS = (
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "</style><script>alert(1)</script>",
    "</title><script>alert(1)</script>",
    "</svg><script>alert(1)</script>",
    "</textarea><script>alert(1)</script>",
    "--><script>alert(1)</script><!--",
    "]]><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg onload=alert(1)>",
    "<svg><animate onbegin=alert(1) attributeName=x dur=1s>",
    "\"><iframe src='data:text/html,<script>alert(1)</script>'>",
    "' onmouseover='alert(1)",
    '" onfocus="alert(1)" autofocus="',
    "` onclick=alert(1) `",
    "<a href=javascript:alert(1)>x</a>",
    "<a href=' java&#10;script:alert(1)'>x</a>",
    "<base href=https://evil.example/>",
    "<meta http-equiv=refresh content='0;url=https://evil.example'>",
    "<form action=https://evil.example><button>x",
    "<link rel=stylesheet href=//evil.example/x.css>",
    "<style>*{display:none}</style>",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "\\u003cscript\\u003ealert(1)\\u003c/script\\u003e",
    "<scr\x00ipt>alert(1)</scr\x00ipt>",
    "{{ 7 * 7 }}{% for x in y %}",
    "${7*7} #{7*7} <%= 7*7 %>",
    "[x](javascript:alert(1))",
    "![x](https://evil.example/x.png)",
    "[x]: https://evil.example\n[x]",
    "`<b onclick=alert(1)>` ``` x | <u>y</u> ``",
    "a|b\n|c|<script>1</script>|\n\n# heading\n- [ ] task",
    "@everyone see https://evil.example and www.evil.example",
    '=HYPERLINK("https://evil.example","x")',
    "+1+cmd|' /C calc'!A0",
    "-2+3+cmd|' /C calc'!A0",
    "@SUM(1+9)*cmd|' /C calc'!A0",
    "\t=1+1\r\n=cmd|' /C calc'!A0",
    "\x1b]0;owned\x07\x1b[31m\x1b[2J\x9b31m[red]x[/red][link=https://evil.example]y",
    '\u202eevil\u2066\ud800\u200b\ufeff\U000e0041 metric{a="b"} 1\n# TYPE owned counter\nowned 1',
    "::error file=a::x",
    " \u00a0\u3000::add-mask::x",
    "##[error]x ##[group]y",
    "##vso[task.setvariable variable=a]b",
    "##teamcity[testFailed name='a']",
    "\x1b[0Ksection_start:1:a\r\x1b[0Kb",
    "\u034f::warning::x",
    "x #\ufe0f#[warning]y \u115f:\uffa0:error::z",
    "#1 !1 $1 %1 &1 ~bug ^alert#1 *iteration:1 [vulnerability:1]",
    "GH-1 CVE-2026-1 GHSA-abcd-abcd-abcd user/repo#1 user/repo@abc1234",
    "deadbeef 0123456789abcdef0123456789abcdef01234567 feedbeef..cafebabe",
    ":tada: :+1: ok:100:",
    "/close",
    "1. item",
    "- [x] task",
    "> quote",
    "===",
    "$`x`$ $y$ $$z$$ \\(w\\)",
    "%s %n %(x)s {0} {0.__class__} {x!r}",
    "a;=1+1 \x85b\u2028c\u2029d\u200fe",
)
# Texts that are code only at the start of a line or of a cell. The others are code anywhere.
_STARTS = ("=", "+", "-", "@", "::", " \u00a0", "\t", "\u034f", "/", "1.", ">", "a|b")
TOGETHER = (
    *(text for text in INJECTIONS if text.startswith(_STARTS)),
    " ".join(text for text in INJECTIONS if not text.startswith((*_STARTS, "\x1b", "\u202e"))),
    " ".join(text for text in INJECTIONS if text.startswith(("\u202e", "\x1b"))),
)
FIXED = frozenset(
    {  # texts with a fixed set of values: status, direction, quantity, kind of view or counter, tier
        *(
            "ok",
            "skipped",
            "failed",
            "invalid",
            "more",
            "less",
            "value",
            "moved",
            "payload",
            "flops",
            "item",
            "items",
            "",
        ),
        *("bars", "curve", "matrix", "pareto", "staircase", "transfer", "smoke", "quick", "full"),
        *("gauge", "cumulative", "window", "event", "gpubench.run/1"),
    }
)


def poisoned(value: Any, text: str) -> Any:
    """Return the same value with every free text in it replaced; the texts that the model fixes stay."""
    if isinstance(value, str):
        return value if value in FIXED or isinstance(value, Enum) else text
    if isinstance(value, tuple):
        return tuple(poisoned(item, text) for item in value)
    if dataclasses.is_dataclass(value):
        fields = [field.name for field in dataclasses.fields(value)]
        return dataclasses.replace(value, **{name: poisoned(getattr(value, name), text) for name in fields})
    return value
