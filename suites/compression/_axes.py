"""Define the axes that several topics of this suite share."""

from collections.abc import Mapping
from typing import Any

from gpubench.api import suite as gb

from . import _codecs_device, _corpora
from ._corpora_made import RECIPES

MIB = 2**20
CHUNK_BYTES = 2**16  # the size that nvCOMP's documentation recommends, and the unit of many file formats
FEW = ("ids", "text", "field")  # the corpora of the quick tier: integers, text, floating point
DEPTHS = (1, 2, 4, 8)  # pipeline depths
_SENT = ("ids", "logs", "turbulence", "bf16-weights", "fp8-cache", "random")  # one corpus of every kind
_COMPARED = {True: ("lz4", "zstd-1"), False: ("lz4", "cascaded")}  # True: codecs on the host

Params = Mapping[str, str | int | float]


def corpora(target: gb.Target) -> Any:
    """Return the axis of corpora by tier (a `Points` of names): the user's files (`--data`), else generated corpora.

    The smoke tier has `ids`, quick has three, and full has all."""
    return gb.points(
        smoke=_corpora.names(target, ("ids",)),
        quick=_corpora.names(target, FEW),
        full=_corpora.names(target, tuple(RECIPES)),
    )


def one_corpus(target: gb.Target) -> Any:
    """Return the axis of corpora by tier (a `Points` of names): `text`, and in the full tier three corpora.

    The user's files (`--data`) replace them."""
    return gb.points(quick=_corpora.names(target, ("text",)), full=_corpora.names(target, FEW))


def mebibytes(smoke: int, quick: int, full: int) -> Any:
    """Return the axis with one size in bytes per tier (a `Points`); the arguments are in MiB."""
    return gb.points(smoke=(smoke * MIB,), quick=(quick * MIB,), full=(full * MIB,))


# Axes of messages over links and in files.


def message_corpora(target: gb.Target) -> Any:
    """Return the axis of corpora for messages by tier (a `Points` of names): `ids`, in the full tier one of each kind.

    The user's files (`--data`) replace them."""
    return gb.points(_corpora.names(target, _SENT[:1]), full=_corpora.names(target, _SENT))


def message_codecs(target: gb.Target) -> tuple[str, ...]:
    """Return the names of the codecs with which the full tier sends messages."""
    return ("lz4", "zstd-1", "zstd-3", "zlib-1") if target.is_host else _codecs_device.CODECS


def fills_pipeline(params: Params) -> bool:
    """Return True if the message has a block for each slot: `size_bytes` is at least `block_bytes` times `flight`."""
    return int(params["size_bytes"]) >= int(params["block_bytes"]) * int(params["flight"])


def is_wanted(target: gb.Target, params: Params, is_usual: bool) -> bool:
    """Return True if a point is measured: in the smoke tier every point, in other tiers every usual one.

    `is_usual` says whether the point has the usual block size and depth."""
    if target.tier == "smoke" or is_usual:
        return True
    return target.tier == "full" and params["corpus"] == _SENT[0] and params["codec"] in _COMPARED[target.is_host]
