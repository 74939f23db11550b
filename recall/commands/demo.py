"""`recall demo`: a made-up company loaded, served and asked over HTTP, with its evidence known beforehand."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from recall.commands.answers import ANSWER_TIMEOUT_S
from recall.commands.invocation import PARTIAL_FAILURE, Invocation, command
from recall.commands.loading import fill_planes, load_rows
from recall.commands.remote import call_server
from recall.commands.rendering import pack_pictures
from recall.commands.serving import started

TENANT = "demo"
SHOWN_ITEMS = 3
TIGHT_BUDGET = 250
_SETTINGS = """# Written by `recall demo`. Go on asking: recall query "…" --config {path} --tenant demo
data_dir: data
entities: {entities}
auth: {{ loopback_tenant: demo }}
"""


@dataclass(frozen=True, slots=True)
class Asked:
    """A question to the demo: the request, and the row that must come back, or a value that all must have."""

    title: str
    body: Mapping[str, Any]
    gold: tuple[str, str] | None = None
    holds: tuple[str, object] | None = None

    def rank(self, pack: Mapping[str, Any]) -> int | None:
        """1-based rank of the expected row; None when it is not in the pack."""
        found = [(item["entity"], item["id"]) for item in pack["items"]]
        return found.index(self.gold) + 1 if self.gold in found else None

    def satisfied(self, pack: Mapping[str, Any]) -> bool:
        if self.holds:
            field, value = self.holds
            return bool(pack["items"]) and all(item["row"].get(field) == value for item in pack["items"])
        return self.rank(pack) is not None and pack["tokens"] <= self.body["budget"]


def register(app: typer.Typer) -> None:
    command(app, "demo")(demo)


def demo(
    invocation: Invocation,
    folder: Annotated[
        Path | None, typer.Argument(help="Keep everything here. Default: a temporary folder, deleted at the end.")
    ] = None,
    scale: Annotated[float, typer.Option("--scale", min=0.2, max=20, help="Size of the company.")] = 1.0,
) -> None:
    """Load a made-up company, serve it, ask it over HTTP, and check that the evidence comes back."""
    began = time.perf_counter()
    with _place(folder) as place:
        here = _prepared(invocation, place, scale)
        imported = load_rows(here, [str(place / "rows")], TENANT)
        here.note(f"import: {imported.line()}")
        for summary in fill_planes(here, [TENANT]):
            here.note(summary.line())
        answers = list(_ask_all(here))
    missed = [answer["question"] for answer in answers if not answer["as_expected"]]
    seconds = time.perf_counter() - began
    said = f"{len(answers) - len(missed)} of {len(answers)} answers as expected, {seconds:.0f} s"
    kept = [Text(f"kept in {folder}; go on with: recall query … --config {folder}/recall.yaml --tenant demo")]
    report = {"answers": answers, "missed": missed, "seconds": round(seconds, 1)}
    invocation.show(report, Text(said, style="bold"), *(kept if folder else []))
    if missed:
        raise typer.Exit(PARTIAL_FAILURE)


@contextmanager
def _place(folder: Path | None) -> Iterator[Path]:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="recall-demo-") as made:
        yield Path(made).resolve()


def _prepared(invocation: Invocation, place: Path, scale: float) -> Invocation:
    """The demo's files written into `place`, and an invocation that works on them and nothing else."""
    from recall.demo import ENTITIES, write_jsonl

    written = write_jsonl(place / "rows", scale=scale)
    (place / "entities.yaml").write_text(ENTITIES.read_text(encoding="utf-8"), encoding="utf-8")
    settings = place / "recall.yaml"
    settings.write_text(_SETTINGS.format(path=settings, entities="entities.yaml"), encoding="utf-8")
    invocation.note(f"{len(written)} tables in {place / 'rows'}")
    config = invocation.config or str(settings)
    return Invocation(
        config,
        str(place / "data"),
        str(place / "entities.yaml"),
        invocation.as_json,
        invocation.debug,
        invocation.out,
        invocation.err,
    )


def _ask_all(here: Invocation) -> Iterator[dict[str, Any]]:
    with started(here.settings, port=0) as url:
        here.note(f"serving {url}")
        for asked in questions():
            pack = call_server(url, "recall", asked.body, token=None, timeout_s=ANSWER_TIMEOUT_S)
            if not here.as_json:
                for picture in _pictures(asked, pack):
                    here.out.print(picture, soft_wrap=isinstance(picture, Text))
            yield {
                "question": asked.body["query"],
                "title": asked.title,
                "expected": list(asked.gold) if asked.gold else None,
                "rank": asked.rank(pack) if asked.gold else None,
                "as_expected": asked.satisfied(pack),
                "pack": pack,
            }


def questions() -> Sequence[Asked]:
    """Two questions for each way of finding, one on a tight budget, one with a filter."""
    from recall.demo import QUESTIONS

    chosen: list[Asked] = []
    titles = {"words": "a word that one row holds", "meaning": "other words for it", "links": "a link away"}
    for needs, title in titles.items():
        for question in [question for question in QUESTIONS if question.needs == needs][:2]:
            body = {
                "query": question.text,
                "budget": question.budget,
                "entities": list(question.entities),
                "hops": question.hops,
                "explain": needs == "links",
            }
            chosen.append(Asked(title, body, (question.gold.entity, question.gold.id)))
    first = chosen[0]
    chosen.append(Asked("on a tight budget", {**first.body, "budget": TIGHT_BUDGET}, first.gold))
    body = {"query": "pump is too loud", "budget": 2000, "entities": ["work_order"], "hops": 0}
    chosen.append(Asked("with a filter", {**body, "filters": {"status": "open"}}, holds=("status", "open")))
    return chosen


def _pictures(asked: Asked, pack: Mapping[str, Any]) -> Iterator[RenderableType]:
    yield Text(f"\n{asked.body['query']}", style="bold").append(f"  ({asked.title})", style="not bold dim")
    rank = asked.rank(pack) if asked.gold else None
    shown = {*range(1, SHOWN_ITEMS + 1), rank or 1}
    yield from pack_pictures(pack, asked.body["budget"], shown)
    expected = ":".join(asked.gold) if asked.gold else " = ".join(map(str, asked.holds or ()))
    if asked.satisfied(pack):
        where = f" at rank {rank}" if rank else " in every row"
        yield Text(f"✓ expected {expected}: found{where}", style="green")
    else:
        yield Text(f"✗ expected {expected}: not found", style="red")
