"""A fleet's judgement made fit to be shared: nodes and racks are numbered, and every text is redacted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from gpubench.base.walk import with_texts
from gpubench.judging.fleet import FleetJudgement
from gpubench.tools.redact import is_a_name, pseudonyms, without_names


def anonymised(judgement: FleetJudgement, salt: bytes, names: Sequence[str] = ()) -> FleetJudgement:
    """Return the judgement without what says whose the machines are: docs/sharing.md is the rule.

    Nodes become `node-1`, `node-2`, … and racks `rack-1`, … in the order of the record, and have the same number
    wherever they are named. UUIDs get the pseudonyms that they have in other shared documents. The names of the nodes'
    files and the arguments of the command are left out. `names` are words that say who somebody is, such as a user's.
    """
    known = _pseudonyms(judgement, salt)
    fleet = judgement.fleet
    bare = replace(
        fleet,
        argv=(),
        nodes=tuple(replace(node, file="") for node in fleet.nodes),
        again=tuple(replace(each, file="") for each in fleet.again),
    )
    numbered = with_texts(replace(judgement, fleet=bare), _Renaming(known), lambda text: text)
    suites = {case.case.partition("/")[0] for group in judgement.groups for case in group.cases}
    return without_names(numbered, (), salt, names, suites)


class _Renaming:
    """Puts pseudonyms in the place of names: of a text that is a name, and of the names within a text, in any case."""

    def __init__(self, known: Mapping[str, str]) -> None:
        self._known = known
        self._in_texts = {
            name.lower(): words for name, words in known.items() if is_a_name(name) and not name.isdigit()
        }
        words = "|".join(map(re.escape, sorted(self._in_texts, key=len, reverse=True)))
        pattern = rf"(?<![A-Za-z0-9])(?:{words})(?![A-Za-z0-9])" if words else r"(?!)"
        self._pattern = re.compile(pattern, re.IGNORECASE | re.ASCII)  # other letters fold to several texts

    def __call__(self, text: str) -> str:
        if text in self._known:
            return self._known[text]
        return self._pattern.sub(lambda found: self._in_texts[found[0].lower()], text)


def _pseudonyms(judgement: FleetJudgement, salt: bytes) -> dict[str, str]:
    """Return the pseudonym of each node, rack and UUID, and of the first label of a node's name."""
    token = pseudonyms(salt)
    racks = _numbered("rack", (node.rack for node in judgement.fleet.nodes))
    nodes = _numbered("node", _nodes(judgement))
    labels = {name.partition(".")[0]: words for name, words in nodes.items()}
    uuids = {uuid: token("device", uuid) for suspect in judgement.suspects for uuid in suspect.uuids if uuid}
    return {**uuids, **racks, **labels, **nodes}


def _nodes(judgement: FleetJudgement) -> Iterator[str]:
    yield from (node.name for node in judgement.fleet.nodes)
    yield from (each.node for each in judgement.fleet.again)
    yield from (standing.place.node for standing in judgement.standings)
    yield from (suspect.place.node for suspect in judgement.suspects)


def _numbered(kind: str, names: Iterable[str]) -> dict[str, str]:
    found = (name for name in dict.fromkeys(names) if name)
    return {name: f"{kind}-{number}" for number, name in enumerate(found, 1)}
