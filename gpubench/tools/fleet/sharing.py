"""Anonymise a fleet's judgement for sharing: number nodes and racks, and redact every text."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from gpubench.base.walk import with_texts
from gpubench.judging.fleet import FleetJudgement
from gpubench.tools.redact import is_searchable_name, pseudonyms, without_names


def anonymised(judgement: FleetJudgement, salt: bytes, names: Sequence[str] = ()) -> FleetJudgement:
    """Return the judgement without anything that identifies the machines or their owner, as docs/sharing.md defines.

    Nodes become `node-1`, `node-2`, … and racks `rack-1`, … in the order of the record, also within texts."""
    names_to_pseudonyms = _pseudonyms(judgement, salt)
    fleet = judgement.fleet
    bare = replace(
        fleet,
        argv=(),
        nodes=tuple(replace(node, file="") for node in fleet.nodes),
        again=tuple(replace(entry, file="") for entry in fleet.again),
    )
    numbered = with_texts(replace(judgement, fleet=bare), _NameReplacer(names_to_pseudonyms), lambda text: text)
    suites = {case.case.partition("/")[0] for group in judgement.groups for case in group.cases}
    return without_names(numbered, (), salt, names, suites)


class _NameReplacer:
    """Replaces names by pseudonyms in a text, in upper or lower case; call it with the text to get the new text."""

    def __init__(self, pseudonyms_by_name: Mapping[str, str]) -> None:
        self._pseudonyms = pseudonyms_by_name
        self._in_texts = {
            name.lower(): alternatives
            for name, alternatives in pseudonyms_by_name.items()
            if is_searchable_name(name) and not name.isdigit()
        }
        alternatives = "|".join(map(re.escape, sorted(self._in_texts, key=len, reverse=True)))
        pattern = rf"(?<![A-Za-z0-9])(?:{alternatives})(?![A-Za-z0-9])" if alternatives else r"(?!)"
        self._pattern = re.compile(pattern, re.IGNORECASE | re.ASCII)  # other letters fold to several texts

    def __call__(self, text: str) -> str:
        if text in self._pseudonyms:
            return self._pseudonyms[text]
        return self._pattern.sub(lambda match: self._in_texts[match[0].lower()], text)


def _pseudonyms(judgement: FleetJudgement, salt: bytes) -> dict[str, str]:
    """Return the pseudonym of each node, rack and UUID, and of the first label of each node's host name, by name."""
    pseudonym_of = pseudonyms(salt)
    racks = _numbered_pseudonyms("rack", (node.rack for node in judgement.fleet.nodes))
    names = [node.name for node in judgement.fleet.nodes] + [entry.node for entry in judgement.fleet.again]
    names += [standing.place.node for standing in judgement.standings]
    names += [suspect.place.node for suspect in judgement.suspects]
    nodes = _numbered_pseudonyms("node", names)
    labels = {name.partition(".")[0]: pseudonym for name, pseudonym in nodes.items()}
    uuids = {uuid: pseudonym_of("device", uuid) for suspect in judgement.suspects for uuid in suspect.uuids if uuid}
    return {**uuids, **racks, **labels, **nodes}


def _numbered_pseudonyms(kind: str, names: Iterable[str]) -> dict[str, str]:
    """Return `kind-1`, `kind-2`, … by name for the distinct names in their order; an empty name has no number."""
    distinct = (name for name in dict.fromkeys(names) if name)
    return {name: f"{kind}-{number}" for number, name in enumerate(distinct, 1)}
