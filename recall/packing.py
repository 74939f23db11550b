"""Packing: which of the ranked items a token budget holds. Pure; never exceeds the budget."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from recall.errors import ConfigError
from recall.model_ports import Tokenizer
from recall.rows import Ref, Row

Packer = Literal["prefix", "fill"]


@dataclass(frozen=True, slots=True)
class Packed:
    """Positions of the kept items in ranked order, and what they cost together."""

    kept: tuple[int, ...]
    tokens: int


def pack(packer: Packer, sizes: Iterable[int], budget: int) -> Packed:
    """Keep items of these token sizes within `budget`; a total equal to the budget fits.

    `prefix` stops at the first item that does not fit, `fill` skips it and goes on. `sizes` may be lazy: `prefix` reads
    no further than the first item that does not fit.
    """
    kept: list[int] = []
    used = 0
    for position, size in enumerate(sizes):
        if used + size <= budget:
            kept.append(position)
            used += size
        elif packer == "prefix":
            break
    return Packed(tuple(kept), used)


def fits(sizes: Iterable[int], budget: int) -> bool:
    """Whether items of these sizes fit `budget` together; reads no further than the first that does not."""
    return all(used <= budget for used in accumulate(sizes))


class Sizes:
    """Token sizes of rows, each measured when it is first asked for."""

    def __init__(self, rows: Mapping[Ref, Row], measure: Callable[[Row], int]) -> None:
        self._rows = rows
        self._measure = measure
        self._known: dict[Ref, int] = {}

    def __getitem__(self, ref: Ref) -> int:
        size = self._known.get(ref)
        if size is None:
            size = self._known[ref] = self._measure(self._rows[ref])
        return size


def quarter_bytes(payload: bytes) -> int:
    """The default tokenizer: ceil(bytes / 4)."""
    return -(-len(payload) // 4)


def load_tokenizer(path: str | None) -> Tokenizer:
    """The tokenizer at import path `module:callable`; `quarter_bytes` for None. Raises ConfigError."""
    if path is None:
        return quarter_bytes
    return load_object(path, "tokenizer")


def load_object(path: str, what: str) -> Callable[..., int]:
    """The callable at `module:name`; ConfigError naming `what` when it cannot be imported."""
    module, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{what} {path!r}: {error}; give an import path of the form module:callable") from None
    if not callable(found):
        raise ConfigError(f"{what} {path!r} is not callable")
    return found  # type: ignore[no-any-return]
