"""Everything that can go wrong, in one tree.

RecallError
├── InvalidRequest               the caller's request is wrong: fix it, do not retry
│   ├── InvalidFilter            a `filters` clause is wrong; names the field
│   └── UnknownEntity            an entity that the registry does not declare
├── Unauthorized, Forbidden, NotFound
├── ConfigError                  a file an operator wrote is wrong
│   └── ModelMismatch            the query model is not the index's model
├── Busy                         another job holds the tenant
├── DeadlineExceeded             the request's own deadline passed
├── ChannelError                 one channel failed; carries the `degraded` code
├── AllChannelsFailed            nothing was left to answer with
└── StoreError                   a store failed; names the store and its address
    ├── TransientStoreError      may succeed when repeated
    └── TerminalStoreError       will fail again until somebody acts
        └── IndexMissing         the tenant was never backfilled in that plane

All arguments are positional and reach `Exception.args`, so that every error survives pickling between Ray processes.
"""

from __future__ import annotations

from typing import ClassVar


class RecallError(Exception):
    """Base of all errors. `code` is stable and machine-readable; the message says what to do."""

    code: ClassVar[str] = "recall_error"
    http_status: ClassVar[int] = 500

    @property
    def message(self) -> str:
        return str(self)


class InvalidRequest(RecallError):
    code = "invalid_request"
    http_status = 422


class InvalidFilter(InvalidRequest):
    """A `filters` clause that cannot be applied. `field` is the offending field name."""

    code = "invalid_filter"

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(field, reason)
        self.field = field
        self.reason = reason

    def __str__(self) -> str:
        return f"filter on {self.field!r}: {self.reason}"


class UnknownEntity(InvalidRequest):
    code = "unknown_entity"

    def __init__(self, entity: str, known: tuple[str, ...]) -> None:
        super().__init__(entity, known)
        self.entity = entity
        self.known = known

    def __str__(self) -> str:
        return f"unknown entity {self.entity!r}; the registry declares: {', '.join(self.known) or '(none)'}"


class Unauthorized(RecallError):
    code = "unauthorized"
    http_status = 401


class Forbidden(RecallError):
    code = "forbidden"
    http_status = 403


class NotFound(RecallError):
    code = "not_found"
    http_status = 404


class ConfigError(RecallError):
    code = "config_error"


class ModelMismatch(ConfigError):
    """The model that embeds queries is not the one that embedded the index."""

    code = "model_mismatch"

    def __init__(self, query_model: str, index_model: str, where: str) -> None:
        super().__init__(query_model, index_model, where)
        self.query_model = query_model
        self.index_model = index_model
        self.where = where

    def __str__(self) -> str:
        return (
            f"query model {self.query_model} does not match index model {self.index_model} in {self.where}: "
            "configure the model of the index, or run `recall backfill` to build an index for the new model"
        )


class Busy(RecallError):
    code = "busy"
    http_status = 409


class DeadlineExceeded(RecallError):
    code = "deadline_exceeded"
    http_status = 504


class ChannelError(RecallError):
    """One channel could not answer. `reason` is a `DegradedCode` value."""

    code = "channel_error"
    http_status = 503

    def __init__(self, channel: str, reason: str, detail: str) -> None:
        super().__init__(channel, reason, detail)
        self.channel = channel
        self.reason = reason
        self.detail = detail

    def __str__(self) -> str:
        return f"channel {self.channel}: {self.reason}: {self.detail}"


class AllChannelsFailed(RecallError):
    code = "all_channels_failed"
    http_status = 503


class StoreError(RecallError):
    """A store call failed. `store` is `plane (product)`, `address` a path or URL without credentials."""

    code = "store_error"
    http_status = 503

    def __init__(self, store: str, address: str, detail: str) -> None:
        super().__init__(store, address, detail)
        self.store = store
        self.address = address
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.store} at {self.address}: {self.detail}"


class TransientStoreError(StoreError):
    code = "store_unavailable"


class TerminalStoreError(StoreError):
    code = "store_failed"


class IndexMissing(TerminalStoreError):
    code = "index_missing"
    http_status = 404
