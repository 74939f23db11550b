"""Which index a tenant is written to and read from: creation, quiet while loading, the swap of aliases, clean-up.

Synchronous and idempotent; a load that was killed is taken up or tidied away by the next one.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import partial
from typing import Any

from opensearchpy import OpenSearch

from recall.errors import IndexMissing, TerminalStoreError, TransientStoreError
from recall.planes.opensearch_schema import OpenSearchLayout
from recall.planes.opensearch_session import STORE, OpenSearchSession

_QUIET = "-1"


class OpenSearchVersions:
    def __init__(self, layout: OpenSearchLayout, session: OpenSearchSession, refresh_interval: str) -> None:
        self._layout = layout
        self._session = session
        self._refresh_interval = refresh_interval
        self._ready: set[str] = set()
        self._creating = threading.Lock()

    def prepare(self, tenant: str) -> None:
        """Create the tenant's index of this version and let it rest from refreshing until `finish`."""
        index = self.ensure(tenant)
        self._set_refresh(index, _QUIET)

    def ensure(self, tenant: str) -> str:
        """Create the tenant's index unless it is known to exist; its name."""
        index = self._layout.index(tenant)
        if index not in self._ready:
            with self._creating:
                self._create(index, dedicated=self._layout.dedicated(tenant))
                self._ready.add(index)
        return index

    def forget(self, tenant: str) -> None:
        """The tenant's index turned out to be missing: look again next time."""
        self._ready.discard(self._layout.index(tenant))

    def finish(self, tenant: str) -> None:
        """Show what was written, lead the tenant's readers to it, drop all versions but this and the one before it."""
        index = self.ensure(tenant)
        try:
            self._set_refresh(index, self._refresh_interval)
        except IndexMissing:
            self.forget(tenant)
            raise
        self._refresh(index)
        if self._swing(tenant, index):
            self._drop_outdated(tenant, index)

    def _create(self, index: str, *, dedicated: bool) -> None:
        if self._session.call(lambda client: client.indices.exists(index=index)):
            return
        name = f"{self._layout.prefix}-{self._layout.version}{'-dedicated' if dedicated else ''}"
        template = self._layout.template(dedicated=dedicated)
        self._session.call(lambda client: client.indices.put_index_template(name=name, body=template))
        # Through the alias nobody can create an index by writing to one that is gone.
        body = {"aliases": {self._layout.write_alias(index): {"is_write_index": True}}}
        try:
            self._session.call(lambda client: client.indices.create(index=index, body=body))
        except TerminalStoreError as error:
            # Another writer was faster.
            if "resource_already_exists" not in error.detail:
                raise

    def _set_refresh(self, index: str, interval: str) -> None:
        def change(client: OpenSearch) -> None:
            stored = client.indices.get_settings(index=index, name="index.refresh_interval")
            settings = stored.get(index, {}).get("settings", {}).get("index", {})
            if settings.get("refresh_interval") != interval:
                client.indices.put_settings(index=index, body={"index": {"refresh_interval": interval}})

        self._session.call(change)

    def _refresh(self, index: str) -> None:
        shards = self._session.call(lambda client: client.indices.refresh(index=index))["_shards"]
        if shards["failed"]:
            detail = f"{shards['failed']} shards of {index} could not be refreshed; try again"
            raise TransientStoreError(STORE, self._session.address, detail)

    def _swing(self, tenant: str, index: str) -> bool:
        """Point the tenant's aliases at `index`, all at once; False when they did so before."""
        layout = self._layout
        wanted = {layout.stable_alias(tenant), layout.version_alias(tenant)}
        pointing = self._aliases(tenant)
        actions: list[dict[str, Any]] = [
            {"remove": {"index": other, "alias": alias}}
            for other, aliases in pointing.items()
            for alias in sorted(aliases & wanted)
            if other != index
        ]
        options = layout.alias_options(tenant)
        missing = sorted(wanted - pointing.get(index, set()))
        actions += [{"add": {"index": index, "alias": alias, **options}} for alias in missing]
        if actions:
            self._session.call(lambda client: client.indices.update_aliases(body={"actions": actions}))
        return bool(actions)

    def _aliases(self, tenant: str) -> dict[str, set[str]]:
        """The aliases that lead the tenant's readers, by index."""
        pattern = f"{self._layout.prefix}*@{tenant}"
        found = self._session.call(lambda client: client.indices.get_alias(name=pattern))
        return {
            index: {alias for alias in entry["aliases"] if self._layout.is_alias_of(alias, tenant)}
            for index, entry in found.items()
        }

    def _drop_outdated(self, tenant: str, index: str) -> None:
        created = self._created()
        others = {other for other, aliases in self._aliases(tenant).items() if aliases and other != index}
        others &= set(created)
        if not others:
            return
        previous = max(others, key=lambda other: created[other])
        for other in others - {previous}:
            self._session.call(partial(_drop_aliases, index=other, pattern=f"{self._layout.prefix}*@{tenant}"))
        for other, since in created.items():
            if since < created[previous] and self._layout.may_drop(other, tenant):
                self._session.call(partial(_drop_unread, index=other))

    def _created(self) -> Mapping[str, int]:
        """Time of creation of every index of every version, in milliseconds."""
        pattern = f"{self._layout.prefix}-*"
        found = self._session.call(
            lambda client: client.indices.get_settings(index=pattern, name="index.creation_date")
        )
        return {index: int(entry["settings"]["index"]["creation_date"]) for index, entry in found.items()}


def _drop_aliases(client: OpenSearch, index: str, pattern: str) -> None:
    client.indices.delete_alias(index=index, name=pattern)


def _drop_unread(client: OpenSearch, index: str) -> None:
    """Delete `index` unless some tenant's readers are led to it."""
    aliases = client.indices.get_alias(index=index)[index]["aliases"]
    if not any("@" in alias for alias in aliases):
        client.indices.delete(index=index)
