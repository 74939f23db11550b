"""The guard of the digest tree: a regular-expression redactor, and the fail-closed border around any guard."""

from __future__ import annotations

import importlib
import logging
import re
from collections.abc import Sequence
from typing import Self

from pydantic import Field, model_validator

from recall.entities import Strict
from recall.errors import ConfigError
from recall.keys import content_hash
from recall.model_ports import Guard, GuardContext, Guarded

log = logging.getLogger(__name__)


class RedactionRule(Strict):
    """What to look for and what to do: replace each match, or block the whole text."""

    name: str
    pattern: str
    replacement: str = "[redacted]"
    block: bool = False

    @model_validator(mode="after")
    def _compiles(self) -> Self:
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise ValueError(f"rule {self.name!r}: not a regular expression: {error}") from None
        return self


class GuardSettings(Strict):
    """`rules` for the built-in redactor, or `import_path` (`module:factory`, called without arguments) of another."""

    rules: tuple[RedactionRule, ...] = ()
    import_path: str | None = None
    # Let a text pass when the guard itself fails; by default such a text is blocked.
    fail_open: bool = False
    # Longer texts are blocked rather than scanned: a pattern can be quadratic.
    max_chars: int = Field(200_000, ge=1)


class RegexGuard:
    """`Guard` that redacts or blocks by regular expressions, in the order of its rules."""

    def __init__(self, rules: Sequence[RedactionRule], max_chars: int = 200_000) -> None:
        self._rules = [(rule, re.compile(rule.pattern)) for rule in rules]
        self._max_chars = max_chars
        self.version = "regex/" + content_hash([[rule.model_dump() for rule in rules], max_chars])[:12]

    def check(self, text: str, context: GuardContext) -> Guarded:
        if len(text) > self._max_chars:
            return Guarded("", True, f"text of {len(text)} characters is longer than {self._max_chars}")
        for rule, pattern in self._rules:
            if rule.block and pattern.search(text):
                return Guarded("", True, rule.name)
            text = pattern.sub(rule.replacement, text)
        return Guarded(text.strip())


class FailClosed:
    """`Guard` around a guard: an exception of the inner one blocks the text, unless `fail_open`."""

    def __init__(self, inner: Guard, *, fail_open: bool) -> None:
        self._inner = inner
        self._fail_open = fail_open
        self.version = f"{inner.version}{'/open' if fail_open else ''}"

    def check(self, text: str, context: GuardContext) -> Guarded:
        try:
            return self._inner.check(text, context)
        except Exception as error:  # noqa: BLE001 - a guard is foreign code; its fault must decide, not crash the job
            log.warning("guard failed: stage=%s level=%d error=%s", context.stage, context.level, type(error).__name__)
            return Guarded(text if self._fail_open else "", not self._fail_open, f"guard failed: {error}")


def open_guard(settings: GuardSettings) -> Guard | None:
    """The configured guard inside its border; None when nothing is configured. Raises ConfigError."""
    if settings.import_path is None:
        return (
            FailClosed(RegexGuard(settings.rules, settings.max_chars), fail_open=settings.fail_open)
            if settings.rules
            else None
        )
    module, _, name = settings.import_path.partition(":")
    try:
        inner = getattr(importlib.import_module(module), name)()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"guard {settings.import_path!r}: {error}; give module:factory") from None
    return FailClosed(inner, fail_open=settings.fail_open)
