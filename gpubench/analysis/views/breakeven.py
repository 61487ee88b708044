"""When compressing pays: break-even links, serial and pipelined models, verdicts in words.

Rates are of *uncompressed* bytes, B/s. C compresses, D decompresses, the ratio r is uncompressed over compressed, and
the wire is r · link: how fast uncompressed bytes cross when they cross compressed.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

from gpubench.base.errors import UsageError
from gpubench.model import NamedLink
from gpubench.stats import Interval

# Who pays: both ends on one device, each end a device of its own, only the writer, only the reader.
Ends = Literal["shared", "apart", "write", "read"]

_LINK = re.compile(r"(\d+(?:\.\d+)?) ?([kMGT])(bE|b/s|bps|bit/s|B/s)")
_PREFIXES = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_EVEN = 0.05  # an interval that is no further from 1 than this says: no difference
_FINE = 0.1  # within a tenth of 1, and below a tenth, a verdict has two decimals: 0.97×


@dataclass(frozen=True, slots=True)
class Coded:
    """What a codec makes of some data: its ratio, and how fast it compresses and decompresses, B/s.

    An end that is not paid is infinitely fast.
    """

    ratio: float
    compress: float = math.inf
    decompress: float = math.inf

    @property
    def message(self) -> float:
        """B* where both ends are paid: U·(1 - 1/r)/(Tc + Td); 0 where the data grow, as compressing then never pays."""
        return self._break_even(1 / self.compress + 1 / self.decompress)

    @property
    def write_only(self) -> float:
        """B* where only compressing is paid: a checkpoint."""
        return self._break_even(1 / self.compress)

    @property
    def read_only(self) -> float:
        """B* where only decompressing is paid: loading."""
        return self._break_even(1 / self.decompress)

    def _break_even(self, seconds_a_byte: float) -> float:
        saved = 1 - 1 / self.ratio
        if saved <= 0:
            return 0.0
        return saved / seconds_a_byte if seconds_a_byte else math.inf

    def serial(self, ends: Ends, link: float) -> float:
        """The rate where compressing, moving and decompressing come one after the other."""
        paid = (1 / self.compress) * (ends != "read") + (1 / self.decompress) * (ends != "write")
        return 1 / (paid + 1 / (self.ratio * link))

    def pipelined(self, ends: Ends, link: float) -> float:
        """The bound where they overlap: the slowest of them, one device that does both being as slow as their sum."""
        both = 1 / self.compress + 1 / self.decompress
        codec = {
            "shared": 1 / both if both else math.inf,
            "apart": min(self.compress, self.decompress),
            "write": self.compress,
            "read": self.decompress,
        }[ends]
        return min(codec, self.ratio * link)


def quotient(above: Interval, below: Interval) -> Interval:
    """One positive rate over another that was measured apart: on logs, the squares of half-widths add up."""
    centre = above.centre / below.centre
    down = math.hypot(math.log(above.centre / above.low), math.log(below.high / below.centre))
    up = math.hypot(math.log(above.high / above.centre), math.log(below.centre / below.low))
    return Interval(centre * math.exp(-down), centre, centre * math.exp(up))


def verdict(speedup: Interval) -> str:
    """Return `faster 2.1×` or `slower 0.6×`.

    For an interval that contains 1 it is `no change 1.00×`, and for a wide one `unclear 1.3×`.
    """
    within = speedup.low >= 1 - _EVEN and speedup.high <= 1 + _EVEN
    even = "no change" if within else "unclear"
    word = "faster" if speedup.low > 1 else "slower" if speedup.high < 1 else even
    return f"{word} {times(speedup.centre)}"


def modelled(speedup: float) -> str:
    """The verdict of a model, which has no interval."""
    return verdict(Interval(speedup, speedup, speedup))


def times(factor: float) -> str:
    """A factor for a person: 2.1×, 0.97×, 0.04×, 140×."""
    if not math.isfinite(factor):
        return "n/a"
    fine = abs(factor - 1) < _FINE or factor < _FINE
    digits = 2 if fine else 1 if factor < 100 else 0
    return f"{factor:.{digits}f}×"


def named_link(text: str) -> NamedLink:
    """The link that a name states the rate of: 25GbE, 400Gb/s, 12.5GB/s; raises UsageError."""
    found = _LINK.fullmatch(text)
    if not found or not float(found[1]):
        raise UsageError(f"--link {text}: not the rate of a link; write it as 25GbE, 400Gb/s or 12.5GB/s")
    bits = 1 if found[3] == "B/s" else 8
    return NamedLink(text, float(found[1]) * _PREFIXES[found[2]] / bits)
