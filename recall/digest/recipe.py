"""The recipe of a digest tree: one hash over everything that changes a summary. A new recipe invalidates the tree."""

from __future__ import annotations

from recall.digest.guard import open_guard
from recall.digest.rollup import Limits
from recall.digest.settings import DistillSettings
from recall.entities import DistillSpec
from recall.errors import ConfigError
from recall.keys import content_hash
from recall.registry import Registry

_DEFAULT_BUDGET = DistillSpec.model_fields["budget"].default


def limits(settings: DistillSettings) -> Limits:
    """The limits of one summary above the rows."""
    return Limits(settings.max_fan_in, settings.input_budget, settings.output_budget)


def recipe(settings: DistillSettings, registry: Registry, embedder: str, tokenizer: str | None) -> str:
    """32 hex digits. Raises ConfigError when two summaries of some entity do not fit one call."""
    budgets = {name: e.spec.distill.budget for name, e in registry.entities.items() if e.spec.distill}
    for name, budget in budgets.items():
        if 2 * budget > settings.input_budget:
            raise ConfigError(f"entity {name!r}: distill.budget {budget} is more than half of distill.input_budget")
    guard = open_guard(settings.guard)
    return content_hash(
        [
            "distill/1",
            settings.summarizer.identity,
            guard.version if guard else None,
            settings.model_dump(include={"max_fan_in", "input_budget", "output_budget", "noise_floor", "sample"}),
            # An entity more or less must not invalidate the summaries of the others.
            {name: budget for name, budget in budgets.items() if budget != _DEFAULT_BUDGET},
            embedder,
            tokenizer,
        ]
    )
