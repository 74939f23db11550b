"""What an operator may turn about distillation. Every value that changes a summary is part of the tree's recipe."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from recall.digest.guard import GuardSettings
from recall.entities import Strict
from recall.settings_models import ExtractiveSettings, SummarizerSettings


class DistillSettings(Strict):
    """The digest tree. Tokens are counted by `recall.tokenizer`, like those of a pack."""

    summarizer: SummarizerSettings = ExtractiveSettings()
    guard: GuardSettings = GuardSettings()
    # Limits of one summary: children, and tokens of their summaries.
    max_fan_in: int = Field(32, ge=2)
    input_budget: int = Field(6000, ge=64)
    # Tokens of a summary above the rows; an entity's own `distill.budget` holds for its rows.
    output_budget: int = Field(256, ge=16)
    # Clusters with fewer rows join a neighbour.
    noise_floor: int = Field(2, ge=1)
    # Rows that the routing tree is fitted on.
    sample: int = Field(8192, ge=2)
    # Summaries made and stored at once: what a crash can cost per worker.
    batch: int = Field(64, ge=1)
    # How often a failed summary is tried again, within one run.
    retries: int = Field(2, ge=0)

    @model_validator(mode="after")
    def _two_summaries_fit(self) -> Self:
        if self.input_budget < 2 * self.output_budget:
            raise ValueError("input_budget must hold two summaries: at least twice output_budget")
        return self
