"""Questions to the demo tenant and the rows that answer them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from recall.rows import Ref


@dataclass(frozen=True, slots=True)
class Question:
    """A question whose answer is known.

    `needs`: a word that only one row holds, a meaning put in other words, or a link. `path` leads over foreign keys
    from the row that the question describes to the one that answers; the last of it is `gold`.
    """

    text: str
    needs: Literal["words", "meaning", "links"]
    entities: tuple[str, ...]
    path: tuple[Ref, ...]
    hops: int = 1

    @property
    def gold(self) -> Ref:
        return self.path[-1]

    @property
    def budget(self) -> int:
        """Tokens of a pack that holds the answer; what lies two links away ranks behind what lies nearer."""
        return 2000 * (1 + self.hops)


def _ask(text: str, needs: Literal["words", "meaning", "links"], *path: str, among: str = "") -> Question:
    refs = tuple(Ref(_ENTITY_OF[name.split("-")[0]], name) for name in path)
    asked = (among,) if among else ("asset", "work_order", "note")
    return Question(text, needs, asked, refs, max(1, len(refs) - 1))


_ENTITY_OF = {"site": "site", "asset": "asset", "wo": "work_order", "note": "note", "person": "person"}

QUESTIONS: tuple[Question, ...] = (
    _ask("What was done about error code E-7731?", "words", "wo-story-1"),
    _ask("On which job did we use part KX-44871-B?", "words", "wo-story-2"),
    _ask("Which machine has the serial number TQ9-0042-118?", "words", "asset-story-1"),
    _ask("What is special about drawing DW-2291-07?", "words", "note-story-1"),
    _ask("Is vermin damaging our wiring?", "meaning", "note-story-2"),
    _ask("Which place is cut off when it snows heavily?", "meaning", "site-story-3", among="site"),
    _ask("Has an employee been injured in a fall?", "meaning", "wo-story-3"),
    _ask("Are residents complaining about a bad smell?", "meaning", "note-story-3", among="note"),
    _ask("Whom do I call about the pump that howls like a wolf?", "links", "asset-story-1", "person-story-1"),
    _ask(
        "How do I get in to the generator with the dented blue fuel tank?",
        "links",
        "asset-story-2",
        "site-story-2",
        among="asset",
    ),
    _ask(
        "Mussel shells keep clogging a screen: what must a visitor arrange first?",
        "links",
        "wo-story-4",
        "asset-story-3",
        "site-story-2",
        among="work_order",
    ),
    _ask(
        "Who is in charge of the valve that had a fisherman's net wound round it?",
        "links",
        "note-story-4",
        "asset-story-4",
        "person-story-2",
        among="note",
    ),
)
