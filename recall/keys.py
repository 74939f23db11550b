"""Store keys and text hygiene: the only place where a row's identity becomes a store's key.

Never reads a store; everything here is a pure function of its arguments.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Mapping

from recall.errors import InvalidRequest

MAX_ID_BYTES = 1024
_TENANT = re.compile(r"[A-Za-z0-9_-]{1,64}")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def check_tenant(tenant: str) -> str:
    """Return `tenant` if it is a legal tenant id (`[A-Za-z0-9_-]{1,64}`), else raise InvalidRequest."""
    if not _TENANT.fullmatch(tenant):
        raise InvalidRequest(f"tenant id {tenant!r} must match ^[A-Za-z0-9_-]{{1,64}}$")
    return tenant


def check_id(row_id: str) -> str:
    """Return `row_id` if it is a legal row id: non-empty, clean UTF-8, at most 1,024 bytes."""
    if not row_id:
        raise InvalidRequest("a row id must not be empty")
    if row_id != clean_text(row_id):
        raise InvalidRequest(f"row id {row_id!r} holds NUL, a lone surrogate or text that is not NFC")
    size = len(row_id.encode())
    if size > MAX_ID_BYTES:
        raise InvalidRequest(f"a row id may have {MAX_ID_BYTES} bytes, this one has {size}: {row_id[:40]!r}…")
    return row_id


def store_key(tenant: str, entity: str, row_id: str) -> str:
    """Key of a row in every store: 32 lower-case hex digits of a 128-bit BLAKE2b of (tenant, entity, id).

    Each part is length-prefixed, so no two triples share an encoding.
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in (tenant, entity, row_id):
        raw = part.encode()
        digest.update(len(raw).to_bytes(4, "big"))
        digest.update(raw)
    return digest.hexdigest()


def chunk_key(row_key: str, ordinal: int) -> str:
    """Key of one chunk of a row: the row's key plus its 0-based ordinal."""
    return f"{row_key}-{ordinal}"


def content_hash(value: object) -> str:
    """32 hex digits of a 128-bit BLAKE2b over the canonical (key-sorted, compact) JSON of `value`."""
    raw = json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True, allow_nan=False)
    return hashlib.blake2b(raw.encode(), digest_size=16).hexdigest()


def compact_json(value: object) -> bytes:
    """UTF-8 JSON without insignificant space, keys in the order given."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def clean_text(text: str) -> str:
    """Text that every store accepts: no NUL, lone surrogates as U+FFFD, Unicode NFC."""
    if text.isascii():
        return text.replace("\0", "") if "\0" in text else text
    text = _LONE_SURROGATE.sub("\ufffd", text.replace("\0", ""))
    return unicodedata.normalize("NFC", text)


def clean_row(values: Mapping[str, object]) -> dict[str, object]:
    """`values` with `clean_text` applied to every string, in lists and nested objects too."""
    return {clean_text(name): _clean(value) for name, value in values.items()}


def _clean(value: object) -> object:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, Mapping):
        return clean_row(value)
    if isinstance(value, (list, tuple)):
        return [_clean(item) for item in value]
    return value


def cut_bytes(text: str, limit: int) -> str:
    """The longest prefix of `text` of at most `limit` UTF-8 bytes, cut on a code-point border."""
    raw = text.encode()
    if len(raw) <= limit:
        return text
    return raw[:limit].decode(errors="ignore")
