"""Define the limits of a run file, each with its reason: the ranges of numbers, the lengths of texts, and counts.

The ranges are wider than anything that a machine can measure, and narrow enough that quotients, squares and sums of
such numbers are finite, so that code which reads a run needs no guards against impossible numbers. The counts keep the
time and the memory for reading a file in proportion to its size. A real run has less than a tenth of each."""

from collections.abc import Sequence
from typing import Annotated, TypeVar

from annotated_types import Interval, MaxLen
from pydantic import FailFast, GetPydanticSchema

from gpubench.base.walk import WORD

# The squares of these bounds, and the quotient of the two, are finite float64 numbers.
MOST = 1e100
LEAST = 1e-100  # the smallest absolute value of a number other than 0
MOST_SECONDS = 1e9  # 31 years
LEAST_SECONDS = 1e-12  # the shortest timed call; no clock has finer ticks
LEAST_WORK = 1e-12  # the least work of a call that is judged by its work
MOST_WORK = 1e30  # the most work of one call: a year of the world's fastest machine
MOST_BITS = 2**63  # event counters are 64 bits wide, and SQLite's and NumPy's integers have a sign
_MOST_COUNT = 2**63 - 1
MOST_WHOLE = 2**127

Item = TypeVar("Item")
Number = Annotated[float, Interval(ge=-MOST, le=MOST)]  # in any unit
Seconds = Annotated[float, Interval(ge=0, le=MOST_SECONDS)]  # a duration
Moment = Annotated[float, Interval(ge=-MOST_SECONDS, le=MOST_SECONDS)]  # seconds since a run started
Amount = Annotated[float, Interval(ge=0, le=MOST_WORK)]  # an amount of work
Count = Annotated[int, Interval(ge=0, le=_MOST_COUNT)]
Whole = Annotated[int, Interval(ge=-MOST_WHOLE, le=MOST_WHOLE)]  # a parameter or a seed
Rate = Annotated[float, Interval(ge=0, le=MOST)]
Name = Annotated[str, MaxLen(4096)]  # a path has at most 4096 bytes (PATH_MAX)
Word = Annotated[Name, WORD]  # chosen by code: the name of a case or a unit, and never of a person or a machine
Text = Annotated[str, MaxLen(2**17)]  # an argument of a command has at most 128 KiB (MAX_ARG_STRLEN)
Many = Annotated[tuple[Item, ...], FailFast()]  # without FailFast, every faulty item would make an error of 1.6 KB
# Each view of a suite may draw all of its cases. The built-in suites have up to 16 views and 3 key figures.
Few = Annotated[tuple[Item, ...], FailFast(), MaxLen(200)]
# Columns of samples are read as tuples and held packed.
Moments = Annotated[Sequence[float], GetPydanticSchema(lambda _, handler: handler.generate_schema(Many[Moment]))]
Readings = Annotated[
    Sequence[float | None], GetPydanticSchema(lambda _, handler: handler.generate_schema(Many[Number | None]))
]


def is_number(value: float) -> bool:
    """Return whether a series in a run file can hold this value: 0, or an absolute value from LEAST to MOST."""
    return value == 0 or LEAST <= abs(value) <= MOST


RECORD_BYTES = 16 * 2**20  # the longest of the recorded runs has 0.2 MiB
RECORD_TEXTS = 2**18  # the recorded run with the most has 4000
RECORD_VALUES = 2**20  # the recorded run with the most has 26 000
RECORD_NESTED = 2**18  # objects and lists: the recorded run with the most has 600; a text may consist of brackets
FIELDS = 100  # fields of one object: no record has more than 20
FILE_BYTES = 4 * 2**30  # after unpacking: a day of eight devices takes 1 GB
FILE_RESULTS = 10**6  # tests/studies/large_runs.py reports 100 000
FILE_REMARKS = 10**5  # the recorded runs have up to ten
FILE_TRACKS = 10**4  # sets of counters by collector and device: a run on eight devices has 20
PACKED_RATIO = 200  # the ratio of gzip: recorded runs have 3 to 8, idle counters 30
PACKED_BYTES = RECORD_BYTES + 2**20  # up to this unpacked size, a file may be packed tighter
