"""The engine of `recall`: fan out, fuse, hydrate, pack. asyncio only; sees channels and a row reader, nothing else."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from recall.altitude import Chosen, Entry, Tree, choose
from recall.asking import Asked, Deadline, ask_channel, both, check_failures, report, warnings
from recall.coverage import TreeReader
from recall.digest.nodes import DIGEST
from recall.errors import DeadlineExceeded, InvalidRequest
from recall.fusion import Fusion, Ranking, contributions, fuse
from recall.hydration import Hydrated, Reading
from recall.keys import compact_json
from recall.options import RecallSettings
from recall.packing import Sizes, fits, load_tokenizer, pack
from recall.ports import Channel, ChannelQuery, RowReader
from recall.registry import Registry
from recall.requests import RecallRequest
from recall.results import (
    Candidate,
    ChannelAnswer,
    ContextItem,
    ContextPack,
    Contribution,
    Degraded,
    DegradedCode,
    Dropped,
    Explain,
    Match,
    Matched,
    PathStep,
)
from recall.rows import Caller, Json, Ref, Row
from recall.texts import embed_text
from recall.where import Where, parse_where

# Rounds of asking deeper, each four times as deep, when stale or filtered candidates left room for live ones.
MAX_ROUNDS = 4
DEEPER = 4


@dataclass(frozen=True, slots=True)
class _Plan:
    """A request, resolved against the registry and the configuration. `reading` and `sizes` grow with the answer."""

    caller: Caller
    request: RecallRequest
    reading: Reading
    sizes: Sizes
    entities: tuple[str, ...]
    where: Where | None
    weights: Mapping[str, float]
    deadline: Deadline
    request_id: str


@dataclass(frozen=True, slots=True)
class _Round:
    """One round of asking: the live candidates of each channel, cut to what was asked for, and their fused order."""

    asked: tuple[Asked[ChannelAnswer], ...]
    candidates: Mapping[str, Sequence[Candidate]]
    ranking: Ranking
    hydrated: Hydrated

    def short(self, keep: int) -> bool:
        """Whether dead candidates hide live ones: some channel has fewer than `keep`, but could go deeper."""
        return any(
            one.answer is not None and not one.answer.exhausted and len(self.candidates[one.name]) < keep
            for one in self.asked
        )


@dataclass(frozen=True, slots=True)
class _Evidence:
    """Why an item is in the pack."""

    shares: tuple[Contribution, ...]
    match: Match | None
    path: tuple[PathStep, ...]


class Engine:
    """Answers `recall`. Holds no store and no state between requests."""

    def __init__(
        self, registry: Registry, channels: Mapping[str, Channel], rows: RowReader, options: RecallSettings
    ) -> None:
        self._registry = registry
        self._channels = channels
        self._rows = rows
        self._options = options
        self._tokenizer = load_tokenizer(options.tokenizer)
        self._trees = TreeReader(registry)

    async def recall(self, caller: Caller, request: RecallRequest, *, request_id: str | None = None) -> ContextPack:
        """The context pack for `request`, within its deadline and its budget.

        Raises UnknownEntity, InvalidFilter, InvalidRequest before any store call; AllChannelsFailed, IndexMissing or
        ModelMismatch when nothing is left to answer with; DeadlineExceeded; in strict mode ChannelError for the first
        channel that failed.
        """
        plan = self._plan(caller, request, request_id or uuid.uuid4().hex)
        keep = request.k * len(plan.entities)
        round_ = await self._gather(plan, keep, depth=keep)
        for deeper in range(1, MAX_ROUNDS):
            if not round_.short(keep) or plan.deadline.left() <= 0:
                break
            round_ = await self._gather(plan, keep, depth=keep * DEEPER**deeper)
        entries = [Entry(ref, score) for ref, score in round_.ranking.scored()]
        tree = await self._tree(plan, round_.ranking.refs)
        chosen = choose(request.altitude, entries, tree, plan.sizes, request.budget)
        return self._pack(plan, round_, chosen)

    def _plan(self, caller: Caller, request: RecallRequest, request_id: str) -> _Plan:
        fields = {name: self._registry.entity(name).filter_fields for name in request.entities}
        where = parse_where(request.filters, fields)
        weights = {**self._options.weights, **(request.channels or {})}
        if request.hops == 0:
            weights["graph"] = 0.0
        weights = {name: weight for name, weight in weights.items() if weight > 0 and name in self._channels}
        if not weights.keys() & {"vector", "search"}:
            raise InvalidRequest("channels: give vector or search a weight above 0; graph starts from what they find")
        timeout_s = (request.timeout_ms or self._options.timeout_ms) / 1000
        reading = Reading(self._rows, caller)
        return _Plan(
            caller,
            request,
            reading,
            Sizes(reading.rows, self._size),
            self._asked_entities(request),
            where,
            weights,
            Deadline(timeout_s),
            request_id,
        )

    def _asked_entities(self, request: RecallRequest) -> tuple[str, ...]:
        # A filter speaks of rows: no digest passes it, so digests are then only read as parents of what passed.
        wants = request.altitude != "entity" and self._registry.has_digests and not request.filters
        return tuple(dict.fromkeys([*request.entities, *([DIGEST] if wants else [])]))

    # ---- asking ----------------------------------------------------------------------------------------------------

    async def _gather(self, plan: _Plan, keep: int, depth: int) -> _Round:
        """Ask every channel for `depth` candidates, read their rows, and fuse the first `keep` live ones of each."""
        request = plan.request
        query = ChannelQuery(plan.caller, request.query, plan.entities, depth, plan.where)
        first = [name for name in ("vector", "search") if name in plan.weights]
        timeout_s = self._channel_timeout(plan)
        asked = list(
            await asyncio.gather(*(ask_channel(name, self._channels[name], query, timeout_s) for name in first))
        )
        check_failures(asked, strict=self._options.strict)
        if "graph" in plan.weights:
            # Rows found so far are read while the graph is walked: the walk needs their refs only.
            graph, _ = await both(self._ask_graph(plan, query, asked), self._read(plan, _refs(asked)))
            asked.append(graph)
            check_failures(asked, strict=self._options.strict)
        hydrated = await self._hydrate(plan, _refs(asked))
        live = {
            name: [one for one in candidates if one.ref in hydrated.rows][:keep]
            for name, candidates in _candidates(asked).items()
        }
        return _Round(tuple(asked), live, self._fuse(plan, live), hydrated)

    async def _ask_graph(
        self, plan: _Plan, query: ChannelQuery, asked: list[Asked[ChannelAnswer]]
    ) -> Asked[ChannelAnswer]:
        limits = self._options.graph
        seeds = self._fuse(plan, _candidates(asked)).refs[: limits.seeds]
        if not seeds:
            return Asked("graph", 0.0, ChannelAnswer())
        graph_query = ChannelQuery(
            query.caller,
            query.text,
            query.entities,
            query.limit,
            query.where,
            seeds=seeds,
            hops=plan.request.hops,
            reverse=limits.reverse,
        )
        return await ask_channel("graph", self._channels["graph"], graph_query, self._channel_timeout(plan))

    def _channel_timeout(self, plan: _Plan) -> float:
        # A fifth of what is left stays for hydration, so that a slow channel costs its own share only.
        return min(self._options.channel_timeout_ms / 1000, plan.deadline.left() * 0.8)

    def _fuse(self, plan: _Plan, answers: Mapping[str, Sequence[Candidate]]) -> Ranking:
        return fuse(self._fusion(plan), answers, plan.weights, self._options.rrf_k)

    def _fusion(self, plan: _Plan) -> Fusion:
        return plan.request.fusion or self._options.fusion

    async def _hydrate(self, plan: _Plan, refs: Sequence[Ref]) -> Hydrated:
        # The digests above the rows come with them, in one call, where what is read already shows that they are needed.
        needed = self._needs_digests(plan, (ref for ref in refs if ref in plan.reading.rows))
        await self._read(plan, [*refs, *self._trees.lower(refs)] if needed else refs)
        hydrated = plan.reading.hydrated(refs, plan.where)
        if hydrated.failures and not hydrated.rows:
            raise next(iter(hydrated.failures.values()))
        return hydrated

    async def _read(self, plan: _Plan, refs: Sequence[Ref]) -> None:
        timeout_s = self._read_timeout(plan)
        try:
            async with asyncio.timeout(timeout_s):
                await plan.reading.fetch(refs, timeout_s)
        except TimeoutError:
            raise DeadlineExceeded(f"reading rows took longer than {timeout_s * 1000:.0f} ms") from None

    def _read_timeout(self, plan: _Plan) -> float:
        return min(self._options.hydrate_timeout_ms / 1000, plan.deadline.left())

    def _needs_digests(self, plan: _Plan, refs: Iterable[Ref]) -> bool:
        """Whether an answer from `refs` looks at the digest tree; where rows alone answer, nothing of it is read."""
        altitude = plan.request.altitude
        if altitude == "entity" or not self._registry.has_digests:
            return False
        sizes = (plan.sizes[ref] for ref in refs if ref.entity != DIGEST)
        return altitude != "auto" or not fits(sizes, plan.request.budget)

    async def _tree(self, plan: _Plan, refs: Sequence[Ref]) -> Tree:
        """The tree above the candidates, as far as the answer needs it."""
        if not self._needs_digests(plan, refs):
            return Tree()
        return await self._trees.read(plan.reading, refs, self._read_timeout(plan))

    # ---- packing ---------------------------------------------------------------------------------------------------

    def _pack(self, plan: _Plan, round_: _Round, chosen: Chosen) -> ContextPack:
        request = plan.request
        packed = pack(request.packer, (plan.sizes[entry.ref] for entry in chosen.entries), request.budget)
        kept = [chosen.entries[position] for position in packed.kept]
        evidence = self._evidence(plan, round_, [entry.ref for entry in kept])
        items = tuple(self._item(plan, entry, evidence[entry.ref]) for entry in kept)
        degraded = _degradations(round_, chosen.degraded)
        return ContextPack(
            items=items,
            omitted=len(chosen.entries) - len(items),
            tokens=packed.tokens,
            warnings=warnings(degraded),
            degraded=degraded,
            channels={one.name: report(one) for one in round_.asked},
            dropped=Dropped(len(round_.hydrated.stale), len(round_.hydrated.filtered), chosen.covered),
            altitude=chosen.altitude,
            request_id=plan.request_id,
        )

    def _item(self, plan: _Plan, entry: Entry, evidence: _Evidence) -> ContextItem:
        row = plan.reading.rows[entry.ref]
        return ContextItem(
            entity=row.ref.entity,
            id=row.ref.id,
            row=self._emitted(row),
            score=entry.score,
            source=tuple(share.channel for share in evidence.shares) or (DIGEST,),
            tokens=plan.sizes[entry.ref],
            matched=self._matched(row, evidence.match),
            explain=Explain(evidence.shares, evidence.path) if plan.request.explain else None,
        )

    def _size(self, row: Row) -> int:
        return self._tokenizer(compact_json(self._emitted(row)))

    def _evidence(self, plan: _Plan, round_: _Round, kept: list[Ref]) -> dict[Ref, _Evidence]:
        candidates = round_.candidates
        shares = contributions(self._fusion(plan), candidates, plan.weights, kept, self._options.rrf_k)
        matches = {one.ref: one.match for one in candidates.get("vector", ())}
        paths = {one.ref: one.path for one in candidates.get("graph", ())}
        return {ref: _Evidence(shares[ref], matches.get(ref), paths.get(ref, ())) for ref in kept}

    def _emitted(self, row: Row) -> Mapping[str, Json]:
        fields = self._registry.entity(row.ref.entity).spec.pack_fields
        return {name: row.values.get(name) for name in fields} if fields else row.values

    def _matched(self, row: Row, match: Match | None) -> Matched | None:
        if match is None:
            return None
        text = embed_text(self._registry.entity(row.ref.entity), row.values)[match.start : match.end]
        return Matched("vector", text, match.chunk) if text else None


def _candidates(asked: Sequence[Asked[ChannelAnswer]]) -> dict[str, tuple[Candidate, ...]]:
    return {one.name: one.answer.candidates for one in asked if one.answer is not None}


def _refs(asked: Sequence[Asked[ChannelAnswer]]) -> list[Ref]:
    return list(dict.fromkeys(one.ref for candidates in _candidates(asked).values() for one in candidates))


def _degradations(round_: _Round, no_digests: Degraded | None) -> tuple[Degraded, ...]:
    found = [one.degraded for one in round_.asked if one.degraded is not None]
    found += [
        Degraded(one.name, DegradedCode.GRAPH_TRUNCATED, "fan-out limit reached")
        for one in round_.asked
        if one.answer is not None and one.answer.truncated
    ]
    return (*found, *round_.hydrated.degraded, *([no_digests] if no_digests else ()))
