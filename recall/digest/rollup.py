"""The roll-up plan: how the children of a node are split into parts that fit one model call each.

A pure function of the children's keys and token counts, so an incremental run and a rebuild agree node by node.
Children are leaves of a binary trie over their keys. A part is the shallowest prefix whose children fit both limits;
parts are grouped by the same rule until one call is left. Adding a child therefore touches one path of parts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Child:
    """A node to be rolled up. `key` is a text of '0' and '1', unique among siblings: routing path, then `spread`."""

    id: str
    key: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one model call: children, and tokens of their summaries. A part's summary counts as `output_budget` tokens."""

    max_fan_in: int = 32
    input_budget: int = 6000
    output_budget: int = 256


@dataclass(frozen=True, slots=True)
class Call:
    """One model call: node `id` is summarised from `children` (rolled-up nodes or parts). `height` ≥ 1; a call needs
    only calls of lower height."""

    id: str
    children: tuple[str, ...]
    height: int


def spread(text: str) -> str:
    """64 well-mixed bits of a text; tells children of one cluster apart and keeps the trie balanced."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return f"{int.from_bytes(digest, 'big'):064b}"


def plan(parent: str, children: Sequence[Child], limits: Limits) -> list[Call]:
    """Calls that summarise `parent` from `children`, lowest height first; the last one is the parent's own.

    Every call has at most `max_fan_in` children and at most `input_budget` tokens, provided that two children fit:
    `input_budget` must be at least twice the largest summary. No children → no calls. One child → one call.
    """
    if not children:
        return []
    current = sorted(children, key=lambda child: child.key)
    if any(one.key == other.key for one, other in pairwise(current)):
        raise ValueError(f"children of {parent} must have distinct keys")
    heights: dict[str, int] = {}
    calls: list[Call] = []
    level = 0
    while not _fits(current, limits):
        level += 1
        # Two children always fit, and any trie has a pair of siblings: every level is shorter than the one before.
        parts = []
        for prefix, group in _groups(current, limits):
            if len(group) == 1:
                # A part of one would only repeat its child.
                parts.append(group[0])
                continue
            call = _call(f"{parent}#{level}.{prefix}", group, heights)
            calls.append(call)
            heights[call.id] = call.height
            parts.append(Child(call.id, prefix, limits.output_budget))
        current = parts
    calls.append(_call(parent, current, heights))
    return sorted(calls, key=lambda call: (call.height, call.id))


def _fits(children: Sequence[Child], limits: Limits) -> bool:
    if len(children) <= 2:
        return True
    return len(children) <= limits.max_fan_in and sum(child.tokens for child in children) <= limits.input_budget


def _groups(children: Sequence[Child], limits: Limits) -> list[tuple[str, Sequence[Child]]]:
    """Maximal trie prefixes whose children fit, in key order. A prefix stays while its children come and go."""
    done: list[tuple[str, Sequence[Child]]] = []
    pending: list[tuple[str, Sequence[Child]]] = [("", children)]
    while pending:
        prefix, group = pending.pop()
        if prefix and _fits(group, limits):
            done.append((prefix, group))
            continue
        middle = _first_one(group, len(prefix))
        pending += [(prefix + bit, part) for bit, part in (("1", group[middle:]), ("0", group[:middle])) if part]
    return done


def _first_one(group: Sequence[Child], depth: int) -> int:
    """Position of the first child (in key order, sharing `depth` bits) whose next bit is 1."""
    low, high = 0, len(group)
    while low < high:
        middle = (low + high) // 2
        if group[middle].key[depth : depth + 1] == "1":
            high = middle
        else:
            low = middle + 1
    return low


def _call(node: str, children: Sequence[Child], heights: Mapping[str, int]) -> Call:
    height = 1 + max(heights.get(child.id, 0) for child in children)
    return Call(node, tuple(child.id for child in children), height)
