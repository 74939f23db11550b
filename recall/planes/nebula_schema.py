"""The graph schema of a registry in a NebulaGraph space, and the wait until every host knows it.

A tag an entity (the vertex exists while the row is live), an edge type a relation, and two tags of our own. The space
carries the graph version in its name, so a changed registry gets a new space and no ALTER is ever sent.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from recall.errors import ConfigError, TerminalStoreError
from recall.fields import FieldType
from recall.planes.nebula_pool import Sessions, Work, until_spread
from recall.planes.nebula_session import STORE, Deadline, Refused
from recall.planes.nebula_text import GONE, TENANT, inserts, quoted, space_name, tenant_vid, text
from recall.registry import Entity, Registry
from recall.settings import NebulaSettings

_TYPES: dict[FieldType, str] = {
    "string": "string",
    "date": "string",
    "datetime": "string",
    "int": "int64",
    "float": "double",
    "bool": "bool",
}
# Asked about while waiting: several, so that every partition, and with it every storage host, answers at least once.
_PROBES = ",".join(f'"{number:032x}"' for number in range(64))


@dataclass(frozen=True, slots=True)
class Property:
    name: str
    kind: str
    nullable: bool

    @property
    def definition(self) -> str:
        return f"{quoted(self.name)} {self.kind} {'NULL' if self.nullable else 'NOT NULL'}"


def tag_properties(entity: Entity) -> tuple[Property, ...]:
    """Columns of an entity's tag. Rows of an edge table also remember the edges that they own."""
    identity = (
        Property("tenant", "string", False),
        Property("scope", "string", True),
        Property("rid", "string", False),
        Property("version", "int64", False),
        Property("hash", "string", False),
    )
    owned = (Property("owned", "string", True),) if entity.spec.edge else ()
    filters = tuple(Property(column.column, _TYPES[column.kind], True) for column in entity.filter_columns)
    return identity + owned + filters


EDGE_PROPERTIES = (Property("version", "int64", False),)
GONE_PROPERTIES = (Property("version", "int64", False), Property("hash", "string", False))
TENANT_PROPERTIES = (Property("tenant", "string", False),)


def relation_names(registry: Registry) -> tuple[str, ...]:
    return tuple(sorted({step.rel for step in registry.relations}))


def check_names(registry: Registry) -> None:
    """Raise ConfigError when an entity and a relation share a name: tags and edge types live in one namespace."""
    shared = sorted(set(relation_names(registry)) & {*registry.entities, GONE, TENANT})
    if shared:
        raise ConfigError(f"NebulaGraph cannot hold a relation and an entity of one name: rename {', '.join(shared)}")


class Schemas:
    """Which spaces exist and are ready, remembered per process."""

    def __init__(self, settings: NebulaSettings, registry: Registry, sessions: Sessions) -> None:
        check_names(registry)
        self._settings = settings
        self._registry = registry
        self._sessions = sessions
        self._names: dict[str, str] = {}
        self._ready: set[str] = set()
        self._tenants: set[str] = set()
        self._lock = threading.Lock()

    @property
    def dedicated(self) -> bool:
        return self._settings.isolation == "dedicated"

    def space(self, tenant: str) -> str:
        if tenant not in self._names:
            own = tenant if self.dedicated else None
            self._names[tenant] = space_name(self._settings.space, self._registry, own)
        return self._names[tenant]

    def known(self, work: Work, tenant: str) -> bool:
        """Whether the tenant was ever prepared. A yes is remembered."""
        if tenant in self._tenants:
            return True
        try:
            rows = work.execute(
                f"FETCH PROP ON {quoted(TENANT)} {text(tenant_vid(tenant))} "
                f"YIELD properties(vertex).{quoted('tenant')} AS tenant"
            )
        except Refused as refused:
            if refused.space_missing:
                return False
            raise
        if rows:
            self._tenants.add(tenant)
        return bool(rows)

    def prepare(self, tenant: str) -> None:
        """Create what is missing, wait until it can be used, and note the tenant. Idempotent."""
        space = self.space(tenant)
        with self._lock:
            if space not in self._ready:
                self._create(space)
                self._ready.add(space)
        if tenant not in self._tenants:
            head = f"INSERT VERTEX {quoted(TENANT)}({quoted('tenant')})"
            for statement in inserts(head, [(text(tenant_vid(tenant)), (tenant,))], 1, 1):
                self._run(space, statement.text)
            self._tenants.add(tenant)

    def _create(self, space: str) -> None:
        settings = self._settings
        self._run(
            None,
            f"CREATE SPACE IF NOT EXISTS {quoted(space)}(partition_num={settings.partition_num}, "
            f"replica_factor={settings.replica_factor}, vid_type=FIXED_STRING({settings.vid_bytes}))",
        )
        self._wait(space, "SHOW TAGS")
        tags = {entity.name: tag_properties(entity) for entity in self._registry.entities.values()}
        tags |= {GONE: GONE_PROPERTIES, TENANT: TENANT_PROPERTIES}
        edges = dict.fromkeys(relation_names(self._registry), EDGE_PROPERTIES)
        self._define(space, "TAG", tags)
        self._define(space, "EDGE", edges)
        for tag, properties in tags.items():
            self._wait(
                space,
                f"FETCH PROP ON {quoted(tag)} {_PROBES} YIELD properties(vertex).{quoted(properties[0].name)} AS p",
            )
        for rel in edges:
            self._wait(space, f"GO FROM {_PROBES} OVER {quoted(rel)} YIELD dst(edge) AS d")
        if not self.dedicated:
            self._index(space, list(self._registry.entities))

    def _define(self, space: str, what: str, wanted: Mapping[str, tuple[Property, ...]]) -> None:
        for name, properties in wanted.items():
            columns = ", ".join(prop.definition for prop in properties)
            self._wait(space, f"CREATE {what} IF NOT EXISTS {quoted(name)}({columns})")
        # IF NOT EXISTS says nothing about a definition with other columns: compare.
        for name, properties in wanted.items():
            rows = self._wait(space, f"DESCRIBE {what} {quoted(name)}")
            self._compare(
                space, f"{what} {name}", properties, [(str(row[0]), str(row[1]), row[2] == "YES") for row in rows]
            )

    def _compare(
        self, space: str, what: str, wanted: Iterable[Property], found: Iterable[tuple[str, str, bool]]
    ) -> None:
        expected = {(prop.name, prop.kind, prop.nullable) for prop in wanted}
        different = sorted(expected ^ set(found))
        if different:
            shown = ", ".join(f"{name} {kind}" for name, kind, _ in different)
            raise TerminalStoreError(
                STORE,
                self._sessions.address,
                f"{what} of space {space} has other columns than the registry gives it ({shown}): drop the space, or "
                "set another `space` prefix, and run `recall backfill`",
            )

    def _index(self, space: str, tags: list[str]) -> None:
        """Tag indexes by tenant, from which rows of one tenant in a shared space are counted."""
        there = {row[0] for row in self._run(space, "SHOW TAG INDEXES")}
        missing = [tag for tag in tags if f"{tag}_tenant" not in there]
        for tag in missing:
            index = f"CREATE TAG INDEX IF NOT EXISTS {quoted(f'{tag}_tenant')} ON {quoted(tag)}({quoted('tenant')}(64))"
            self._wait(space, index)
        for tag in missing:
            self._wait(
                space,
                f'LOOKUP ON {quoted(tag)} WHERE {quoted(tag)}.{quoted("tenant")} == "" YIELD id(vertex) AS k',
            )
        if missing and self._settings.heartbeat_s:
            # A storage host that has not heard of the index would store rows without indexing them, silently.
            threading.Event().wait(self._settings.heartbeat_s)

    def _wait(self, space: str, statement: str) -> list[tuple[object, ...]]:
        pause = max(0.02, min(1.0, self._settings.heartbeat_s / 10))
        return until_spread(
            lambda: self._execute(space, statement), self._settings.schema_wait_s, pause, self._sessions.address
        )

    def _run(self, space: str | None, statement: str) -> list[tuple[object, ...]]:
        return self._execute(space, statement)

    def _execute(self, space: str | None, statement: str) -> list[tuple[object, ...]]:
        deadline = Deadline(self._settings.timeout_ms / 1000)
        return Work(self._sessions, space, deadline).execute(statement)
