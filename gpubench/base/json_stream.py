"""Read the objects of a long list in a JSON document one by one, in memory of a few chunks."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

MOST_OBJECT = 2**22  # characters of one object; the largest known event of a trace has 60 000
_BLANK = " \t\r\n,"


class NotAList(ValueError):  # noqa: N818 - the document has no such list
    """The document has no list of that name, or an object of it is damaged."""


def objects_of(chunks: Iterable[str], key: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of the list `key`, or of a document that is a list; a missing end of the document is ignored.

    Raises NotAList if there is no such list, or if an object is damaged or longer than MOST_OBJECT characters."""
    source = iter(chunks)
    buffer = _begin_of_list(source, key)
    decode, at = json.JSONDecoder().raw_decode, 0
    while True:
        while at < len(buffer) and buffer[at] in _BLANK:
            at += 1
        if at < len(buffer) and buffer[at] == "]":
            return
        try:
            value, at = decode(buffer, at)
        except json.JSONDecodeError as error:
            rest = buffer[at:]
            more = next(source, "")
            if not more:
                if rest.strip(_BLANK) and error.pos < len(buffer) and len(rest) > MOST_OBJECT:
                    raise NotAList(f"damaged after {error.pos} characters: {error.msg}") from error
                return
            if len(rest) > MOST_OBJECT:
                raise NotAList(f"an object is damaged or longer than {MOST_OBJECT >> 20} MiB") from error
            buffer, at = rest + more, 0
            continue
        except RecursionError as error:
            raise NotAList("an object is nested too deeply") from error
        if isinstance(value, dict):
            yield value


def _begin_of_list(source: Iterator[str], key: str) -> str:
    """Return the text after the opening bracket of the list; what stands before it must fit MOST_OBJECT characters."""
    buffer, name = "", f'"{key}"'
    for chunk in source:
        buffer += chunk
        if buffer.lstrip().startswith("["):
            return buffer.lstrip()[1:]
        begin = buffer.find("[", buffer.find(name) + len(name)) if name in buffer else -1
        if begin >= 0:
            return buffer[begin + 1 :]
        if len(buffer) > MOST_OBJECT:
            break
    raise NotAList(f"no list {key!r} in the first {MOST_OBJECT >> 20} MiB")
