"""What goes in: one pydantic model per tool. Unknown fields are errors; a tenant is never among them."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from recall.errors import InvalidRequest
from recall.keys import clean_text
from recall.results import Altitude
from recall.rows import Json

CHANNEL_NAMES = ("vector", "search", "graph")
MAX_QUERY_CHARS = 100_000


def _readable(value: object) -> object:
    """Half an emoji or a NUL in a question is noise, not an error; pydantic would refuse the whole text."""
    return clean_text(value) if isinstance(value, str) else value


def _query(text: str) -> str:
    text = text.strip()
    if not text:
        raise ValueError("must not be empty")
    return text


def _distinct(names: list[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _weights(weights: dict[str, float] | None) -> dict[str, float] | None:
    for name, weight in (weights or {}).items():
        if name not in CHANNEL_NAMES:
            raise ValueError(f"unknown channel {name!r}; known: {', '.join(CHANNEL_NAMES)}")
        if not math.isfinite(weight) or weight < 0:
            raise ValueError(f"weight of {name} must be a finite number ≥ 0, got {weight}")
    return weights


Text = Annotated[str, BeforeValidator(_readable)]
Query = Annotated[Text, Field(max_length=MAX_QUERY_CHARS), AfterValidator(_query)]
Entities = Annotated[list[str], Field(min_length=1, max_length=64), AfterValidator(_distinct)]
Weights = Annotated[dict[str, float] | None, AfterValidator(_weights)]
Filters = dict[str, Any]


class Request(BaseModel):
    """Base of all tool requests."""

    model_config = ConfigDict(extra="forbid", frozen=True)


R = TypeVar("R", bound=Request)


class RecallRequest(Request):
    """A question with a token budget; answered by a ranked, budget-fitted context pack."""

    query: Query = Field(description="Natural-language question; matched by meaning, by words and through links.")
    budget: int = Field(gt=0, strict=True, description="Token budget of the returned pack.")
    entities: Entities = Field(description="Entity types to recall from.")
    k: int = Field(24, ge=1, le=1000, strict=True, description="Candidates per channel and entity.")
    hops: int = Field(
        1, ge=0, le=5, strict=True, description="Graph expansion depth; 0 switches the graph channel off."
    )
    filters: Filters | None = Field(None, description='Constraints, e.g. {"status": "open", "cost": {"gte": 10}}.')
    altitude: Altitude = Field("auto", description="Which layer answers: rows (entity), summaries, or a mixture.")
    channels: Weights = Field(None, description="Channel weights (vector, search, graph); 0 leaves a channel out.")
    fusion: Literal["rrf", "convex"] | None = Field(None, description="How channels are combined; default from config.")
    packer: Literal["prefix", "fill"] = Field(
        "prefix", description="Stop at the first item that does not fit, or skip it."
    )
    timeout_ms: int | None = Field(None, gt=0, le=600_000, strict=True, description="Deadline of the whole request.")
    explain: bool = Field(False, description="Add ranks, scores and paths per item.")


class FusedRequest(Request):
    """Recall memories by meaning and through links, with optional exact filters and a dated timeline."""

    query: Text = Field(max_length=MAX_QUERY_CHARS, description="Natural-language query; blank finds nothing.")
    limit: int = Field(10, ge=1, le=1000, strict=True, description="Maximum number of memories to return.")
    hops: int = Field(2, ge=0, le=10, strict=True, description="Graph hops walked from the top vector hit.")
    graph_boost: float = Field(0.15, allow_inf_nan=False, description="Weight of a graph-reached fact.")
    filter: dict[str, Json] | None = Field(None, description="Exact-match metadata filter.")
    date_field: str | None = Field(None, description="Metadata field holding a YYYYMMDD date; adds a timeline.")
    entity: str = Field("memory", description="Entity whose rows are memories.")
    mode: Literal["compat"] = Field("compat", description="`compat` reproduces the published ranking.")
    where: Filters | None = Field(None, description="Filter with ranges, `in` and `or`, as in recall.")
    filter_scope: Literal["walk", "result"] = Field(
        "walk", description="`result` lets the walk pass through other rows."
    )
    explain: bool = Field(False, description="Add the contributions of each memory.")


class SimilarRequest(Request):
    """Rows of one entity nearest in meaning to a text."""

    entity: str
    query: Query
    k: int = Field(24, ge=1, le=1000, strict=True)
    filters: Filters | None = None


class SearchRequest(Request):
    """Full-text search over one entity, with highlights and stable pages."""

    entity: str
    query: Query
    limit: int = Field(10, ge=1, le=1000, strict=True)
    offset: int = Field(0, ge=0, le=9_000, strict=True)
    filters: Filters | None = None


class TraverseRequest(Request):
    """A read-only openCypher query over the caller's own graph. Values belong into `params`."""

    query: Annotated[str, Field(min_length=1, max_length=20_000)]
    params: dict[str, Json] = Field(default_factory=dict)
    limit: int = Field(100, ge=1, le=1000, strict=True)
    timeout_ms: int | None = Field(None, gt=0, le=60_000, strict=True)


class GetRequest(Request):
    """One row of the source of truth by id."""

    entity: str
    id: Annotated[str, Field(min_length=1, max_length=1024)]


class MapRequest(Request):
    """The digest tree, one line a node. Send back the hashes you hold: what did not change is one line."""

    scope: Text | None = Field(
        None, max_length=2048, description="Only beneath this scope: its value, name:value, or a node id."
    )
    known_hashes: list[Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]] = Field(
        default_factory=list, max_length=100_000, description="content_hash of nodes you hold already."
    )
    limit: int = Field(1000, ge=1, le=100_000, strict=True, description="Most lines.")


class DigestRequest(Request):
    """One digest with its children's summaries and the way up."""

    node_id: Annotated[str, Field(min_length=1, max_length=4096, description="Id of the node, as `map` gives it.")]
    rows: int = Field(0, ge=0, le=1000, strict=True, description="List up to so many of the rows beneath it.")


class ResolveRequest(Request):
    """Nodes by hash: a content_hash exactly, or a sem_hash within 8 bits."""

    hash: Annotated[
        str, Field(pattern=r"^([0-9a-f]{16}|[0-9a-f]{64})$", description="64 hex digits, or 16 of a sem_hash.")
    ]
    limit: int = Field(20, ge=1, le=1000, strict=True, description="Most nodes.")


def parse_request(model: type[R], body: object) -> R:
    """`body` as `model`, or InvalidRequest that names every wrong field in one sentence."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise InvalidRequest(explain_validation(error)) from None


def explain_validation(error: ValidationError) -> str:
    """All problems of a validation error, `field: problem` joined by `; `."""
    problems = []
    for item in error.errors(include_url=False, include_input=False):
        where = ".".join(str(part) for part in item["loc"])
        text = item["msg"].removeprefix("Value error, ")
        problems.append(f"{where}: {text}" if where else text)
    return "; ".join(problems)
