"""Model a transfer with compression over a link: break-even rates, serial and pipelined rates, and verdicts.

Rates are of *uncompressed* bytes, B/s. C compresses, D decompresses, the ratio r is uncompressed over compressed, and r
· link is the rate at which uncompressed bytes cross a link in compressed form."""

import math
import re
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from gpubench.base.errors import UsageError
from gpubench.model import Case, NamedLink
from gpubench.stats import Interval

# The sides whose cost counts: both on one device, both with one device each, only the writer, only the reader.
ChargedSides = Literal["shared", "apart", "write", "read"]

_LINK = re.compile(r"(\d+(?:\.\d+)?) ?([kMGT])(bE|b/s|bps|bit/s|B/s)")
_PREFIXES = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_EVEN = 0.05  # an interval within this distance of 1 means no difference
_FINE = 0.1  # a factor within a tenth of 1, or below a tenth, has two decimals: 0.97×


@dataclass(frozen=True, slots=True)
class CodecRates:
    """The compression ratio of a codec on some data, and the rates of compression and decompression in B/s.

    A side whose cost is not charged has an infinite rate."""

    ratio: float
    compress: float = math.inf
    decompress: float = math.inf

    @property
    def both_sides(self) -> float:
        """The rate of a link in B/s below which compression pays if both sides are charged: B* = U·(1 − 1/r)/(Tc + Td).

        U are uncompressed bytes, Tc and Td the times of both sides. B* is 0 if compression makes the data larger."""
        return self._break_even(1 / self.compress + 1 / self.decompress)

    @property
    def write_only(self) -> float:
        """The break-even rate in B/s if only compression is charged, as for a checkpoint."""
        return self._break_even(1 / self.compress)

    @property
    def read_only(self) -> float:
        """The break-even rate in B/s if only decompression is charged, as for loading."""
        return self._break_even(1 / self.decompress)

    def _break_even(self, seconds_per_byte: float) -> float:
        """Return the link rate in B/s at which the saved bytes take as long as the codec does."""
        saved = 1 - 1 / self.ratio
        if saved <= 0:
            return 0.0
        return saved / seconds_per_byte if seconds_per_byte else math.inf

    def serial(self, sides: ChargedSides, link: float) -> float:
        """Return the rate in B/s over `link` B/s if compression, transfer and decompression run one after the other."""
        paid = (1 / self.compress) * (sides != "read") + (1 / self.decompress) * (sides != "write")
        return 1 / (paid + 1 / (self.ratio * link))

    def pipelined(self, sides: ChargedSides, link: float) -> float:
        """Return the rate in B/s over `link` B/s if all steps overlap perfectly: the rate of the slowest step.

        With the sides `shared`, one device compresses and decompresses in turn, so both times count as one step."""
        both = 1 / self.compress + 1 / self.decompress
        codec = {
            "shared": 1 / both if both else math.inf,
            "apart": min(self.compress, self.decompress),
            "write": self.compress,
            "read": self.decompress,
        }[sides]
        return min(codec, self.ratio * link)


def quotient(above: Interval, below: Interval) -> Interval:
    """Return the quotient `above` / `below` of two independent positive rates with its 95 % interval.

    On logarithms, the squared half-widths of the two intervals add up."""
    centre = above.centre / below.centre
    down = math.hypot(math.log(above.centre / above.low), math.log(below.high / below.centre))
    up = math.hypot(math.log(above.high / above.centre), math.log(below.centre / below.low))
    return Interval(centre * math.exp(-down), centre, centre * math.exp(up))


def verdict(speedup: Interval) -> str:
    """Return the verdict on a speed-up with its 95 % interval as text: `faster 2.1×` or `slower 0.6×`.

    For an interval that contains 1 it is `no change 1.00×` if it lies within 5 % of 1, and else `unclear 1.3×`."""
    within = speedup.low >= 1 - _EVEN and speedup.high <= 1 + _EVEN
    even = "no change" if within else "unclear"
    word = "faster" if speedup.low > 1 else "slower" if speedup.high < 1 else even
    return f"{word} {times(speedup.centre)}"


def modelled_verdict(speedup: float) -> str:
    """Return the verdict of a modelled speed-up, which has no interval."""
    return verdict(Interval(speedup, speedup, speedup))


def times(factor: float) -> str:
    """Return a factor as text: 2.1×, 0.97×, 0.04×, 140×; `n/a` if it is not finite."""
    if not math.isfinite(factor):
        return "n/a"
    fine = abs(factor - 1) < _FINE or factor < _FINE
    digits = 2 if fine else 1 if factor < 100 else 0
    return f"{factor:.{digits}f}×"


@dataclass(frozen=True, slots=True)
class Payoff:
    """The figures of a codec on some data; `coded` gives the break-even rates, the others the speed-up over a link.

    `raw`, `staged` and `overlapped` are rates of uncompressed bytes in B/s, None for a case without a link. `ends`
    names the charged sides (`ChargedSides`)."""

    RECORD: ClassVar[str] = (
        "case=case.id devices ratio=coded.ratio compress=coded.compress decompress=coded.decompress break_even *on_link"
    )
    case: Case
    devices: tuple[str, ...]
    coded: CodecRates
    ends: str = ""
    raw: Interval | None = None
    staged: Interval | None = None
    overlapped: Interval | None = None

    @property
    def sides(self) -> ChargedSides | None:
        """The charged sides that `ends` names; None if it names none."""
        return next((sides for sides in get_args(ChargedSides) if sides == self.ends), None)

    @property
    def speedup(self) -> Interval | None:
        """The rate of compressed transfer over the rate of raw transfer; None if the case has no link."""
        if self.overlapped is None or self.raw is None or min(self.overlapped.low, self.raw.low) <= 0:
            return None
        return quotient(self.overlapped, self.raw)

    @property
    def bound(self) -> float | None:
        """The rate of perfect overlap in B/s, over a link as fast as it was for raw bytes; None without a link."""
        return self.coded.pipelined(self.sides, self.raw.centre) if self.sides and self.raw else None

    @property
    def share(self) -> float | None:
        """The overlap efficiency: the reached fraction of the bound; None if the case has no link."""
        return self.overlapped.centre / self.bound if self.overlapped and self.bound else None

    @property
    def break_even(self) -> dict[str, float]:
        """The break-even rates in B/s by the sides that are charged; infinite where compression pays on any link."""
        coded = self.coded
        return {"message": coded.both_sides, "write_only": coded.write_only, "read_only": coded.read_only}

    @property
    def on_link(self) -> dict[str, Any]:
        """The record of the transfer over a link; empty for a case without one."""
        if self.speedup is None:
            return {}
        return {"ends": self.ends, "bound": self.bound, "of_bound": self.share, "speedup": self.speedup}


def named_link(text: str) -> NamedLink:
    """Return the link with the rate in B/s that its name states: 25GbE, 400Gb/s (bits) or 12.5GB/s (bytes).

    Raises UsageError if the text is not such a rate, or is 0."""
    match = _LINK.fullmatch(text)
    if not match or not float(match[1]):
        raise UsageError(f"--link {text}: not the rate of a link; write it as 25GbE, 400Gb/s or 12.5GB/s")
    bits = 1 if match[3] == "B/s" else 8
    return NamedLink(text, float(match[1]) * _PREFIXES[match[2]] / bits)
