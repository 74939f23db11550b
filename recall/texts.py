"""Which text of a row each plane sees, and how long texts are cut into overlapping chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from recall.entities import EmbedSpec, template_fields
from recall.model_ports import TextSpan
from recall.registry import Entity
from recall.rows import Json


def embed_text(entity: Entity, values: Mapping[str, Json]) -> str:
    """The text that is embedded; "" when the entity is not embedded or its fields are empty."""
    spec = entity.spec.embed
    if spec is None:
        return ""
    return _render(spec.fields, spec.template, values)


def search_text(entity: Entity, values: Mapping[str, Json]) -> str:
    """The text that full-text search sees; "" when the entity is not searchable or its fields are empty."""
    spec = entity.spec.search
    return "" if spec is None else _render(spec.fields, None, values)


def distill_text(entity: Entity, values: Mapping[str, Json]) -> str:
    """The text that a row's digest is made of; "" when the entity is not distilled or its fields are empty."""
    spec = entity.spec.distill
    return "" if spec is None else _render(spec.fields, spec.template, values)


def _render(fields: Sequence[str], template: str | None, values: Mapping[str, Json]) -> str:
    if template is None:
        return "\n".join(text for text in (_shown(values.get(name)) for name in fields) if text)
    parts = {name: _shown(values.get(name)) for name in template_fields(template)}
    return template.format(**parts).strip() if any(parts.values()) else ""


def _shown(value: Json) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ", ".join(filter(None, (_shown(item) for item in value)))
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_shown(item)}" for name, item in value.items())
    return str(value).strip()


def chunk_spans(tokens: Sequence[TextSpan], spec: EmbedSpec, max_tokens: int) -> list[TextSpan]:
    """Character spans of the chunks of a text with these token spans.

    A chunk has at most min(chunk_tokens, max_tokens) tokens and shares `overlap` tokens with the one before it. A text
    that fits is one chunk; a text without tokens has none.
    """
    size = min(spec.chunk_tokens, max_tokens)
    if not tokens:
        return []
    stride = max(1, size - min(spec.overlap, size // 2))
    spans: list[TextSpan] = []
    for first in range(0, len(tokens), stride):
        last = min(first + size, len(tokens))
        spans.append(TextSpan(tokens[first].start, tokens[last - 1].end))
        if last == len(tokens):
            break
    return spans
