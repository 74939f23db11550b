"""Prompts of summarizers that are language models: one per level of the digest tree. Checked, immutable, no file."""

from __future__ import annotations

import string
from typing import Self

from pydantic import Field, model_validator

from recall.entities import Strict
from recall.keys import content_hash
from recall.model_ports import SummaryTask

_FIELDS = {"texts", "words"}
# English prose has about four words to three tokens; asking for fewer keeps answers whole.
_WORDS_PER_TOKEN = 0.6


class Prompt(Strict):
    """What a model is told and asked. `user` names `{texts}` and may name `{words}`, the length wanted."""

    system: str = Field(min_length=1)
    user: str = Field(min_length=1)

    @model_validator(mode="after")
    def _placeholders(self) -> Self:
        for text in (self.system, self.user):
            try:
                names = {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}
            except ValueError as error:
                raise ValueError(f"not a template: {error}; write {{{{ and }}}} for braces") from None
            if names - _FIELDS:
                raise ValueError(f"unknown placeholder {sorted(names - _FIELDS)}; known: {sorted(_FIELDS)}")
        if "{texts}" not in self.user:
            raise ValueError("`user` must name {texts}")
        return self

    def messages(self, task: SummaryTask, texts: str) -> list[dict[str, str]]:
        """The chat that asks for the summary of `task`, whose texts are given as one."""
        filled = {"texts": texts, "words": str(max(8, int(task.budget * _WORDS_PER_TOKEN)))}
        return [
            {"role": "system", "content": self.system.format(**filled)},
            {"role": "user", "content": self.user.format(**filled)},
        ]


class Prompts(Strict):
    """`entity` for the text of one row (level 0), `scope` for a scope, a cluster or a part of one (level 1), `tenant`
    for the root (level 2)."""

    entity: Prompt = Prompt(
        system="You write short, factual summaries. Use only what the text says. Keep names, numbers and dates.",
        user="Summarise the following text in at most {words} words. Answer with the summary only.\n\n{texts}",
    )
    scope: Prompt = Prompt(
        system="You merge notes into one short, factual summary. Use only what the notes say. Keep names, numbers and "
        "dates. Say nothing twice.",
        user="Summarise the following notes, which belong together, in at most {words} words. Answer with the summary "
        "only.\n\n{texts}",
    )
    tenant: Prompt = Prompt(
        system="You write an overview of everything that is known, from summaries of its parts. Use only what they "
        "say. Keep names, numbers and dates.",
        user="Write one overview of the following summaries in at most {words} words. Answer with the overview only."
        "\n\n{texts}",
    )

    def of_level(self, level: int) -> Prompt:
        return (self.entity, self.scope, self.tenant)[min(level, 2)]

    @property
    def version(self) -> str:
        """12 hex digits that change with any word; part of the recipe."""
        return content_hash(self.model_dump())[:12]


def joined(texts: tuple[str, ...]) -> str:
    """The texts of a task as a model reads them: one as it is, several as a list."""
    return texts[0] if len(texts) == 1 else "\n".join(f"- {' '.join(text.split())}" for text in texts)
