"""The guard: rules in order, a fault blocks, and what an operator wrote wrong is said at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from recall.digest.guard import GuardSettings, RedactionRule, open_guard
from recall.errors import ConfigError
from recall.model_ports import GuardContext, Guarded
from recall.settings import load_settings

CONTEXT = GuardContext("acme", None, 0, "ingest")
# What the project ships for operators to copy.
EXAMPLES = load_settings(Path(__file__).parents[2] / "configs" / "guard.yaml").distill.guard.rules


class Moody:
    """A guard that says, breaks or notes what the text says."""

    version = "moody/1"

    def check(self, text: str, context: GuardContext) -> Guarded:
        if text == "break":
            raise RuntimeError("out of order")
        return Guarded(f"{context.tenant} {context.scope} {context.level} {context.stage}: {text}")


def checked(text: str, **settings: object) -> Guarded:
    guard = open_guard(GuardSettings(**settings))
    assert guard is not None
    return guard.check(text, CONTEXT)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("write to jo.doe+x@mail.example.org today", "write to [mail] today"),
        ("ask jo@example.org.", "ask [mail]."),
        ("card 4111 1111 1111 1111.", "card [card]."),
        ("card 4111-1111-1111-1111, or 378282246310005", "card [card], or [card]"),
        ("call +49 (30) 1234-567", "call [phone]"),
        ("nothing to hide 12345, P-7, 2026-11-30 10:15", "nothing to hide 12345, P-7, 2026-11-30 10:15"),
        ("", ""),
    ],
)
def test_rules_replace_what_they_match(text: str, left: str) -> None:
    assert checked(text, rules=EXAMPLES) == Guarded(left)


@pytest.mark.parametrize(
    "key",
    ["sk-abcdefghijklmnop1234", "ghp_abcdefghijklmnop1234", "AKIAABCDEFGHIJKLMNOP", "-----BEGIN PRIVATE KEY-----"],
)
def test_a_blocking_rule_keeps_nothing_and_names_itself(key: str) -> None:
    assert checked(f"the key is {key} today", rules=EXAMPLES) == Guarded("", True, "key")


def test_a_text_may_be_redacted_to_nothing() -> None:
    assert checked("a@b.cd", rules=[RedactionRule(name="e", pattern=r"\S+@\S+", replacement="")]) == Guarded("")


def test_a_text_too_long_to_scan_is_blocked() -> None:
    assert checked("x" * 11, rules=EXAMPLES, max_chars=10).blocked
    assert not checked("x" * 10, rules=EXAMPLES, max_chars=10).blocked


def test_a_guard_by_import_path_gets_the_context() -> None:
    assert checked("hi", import_path="test_guard:Moody") == Guarded("acme None 0 ingest: hi")


def test_a_guard_that_fails_blocks_unless_it_may_fail_open() -> None:
    closed = checked("break", import_path="test_guard:Moody")
    assert (closed.text, closed.blocked) == ("", True)
    assert "out of order" in str(closed.reason)
    open_ = checked("break", import_path="test_guard:Moody", fail_open=True)
    assert (open_.text, open_.blocked) == ("break", False)


def test_no_rules_and_no_path_is_no_guard() -> None:
    assert open_guard(GuardSettings()) is None


@pytest.mark.parametrize(
    "path", ["no_such_module:x", "recall.keys:no_such_name", "recall.keys:check_id", "recall.keys"]
)
def test_a_guard_that_cannot_be_made_is_a_config_error(path: str) -> None:
    with pytest.raises(ConfigError, match="module:factory"):
        open_guard(GuardSettings(import_path=path))


def test_a_pattern_that_is_none_is_refused() -> None:
    with pytest.raises(ValidationError, match="not a regular expression"):
        RedactionRule(name="broken", pattern="(")


def test_the_version_changes_with_every_rule() -> None:
    versions = {
        open_guard(settings).version
        for settings in (
            GuardSettings(rules=EXAMPLES),
            GuardSettings(rules=EXAMPLES[:2]),
            GuardSettings(rules=EXAMPLES[::-1]),
            GuardSettings(rules=EXAMPLES, fail_open=True),
            GuardSettings(rules=EXAMPLES, max_chars=5),
        )
    }
    assert len(versions) == 5
