"""Answers as terminal tables. Takes the JSON-ready form that HTTP sends too, so local and remote look the same."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

SHORT = 180
Answer = Mapping[str, Any]


def shorten(text: str, limit: int = SHORT) -> str:
    """One line of at most `limit` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def row_text(row: Answer, key: str = "id") -> str:
    """The words of a row, in column order, without its id."""
    words = [_words(value) for name, value in row.items() if name != key]
    return " · ".join(word for word in words if word)


def _words(value: object) -> str:
    if value is None or value == "":
        return ""
    if isinstance(value, (list, tuple)):
        return ", ".join(filter(None, map(_words, value)))
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {_words(item)}" for name, item in value.items())
    return str(value)


def table(*columns: str, title: str | None = None, right: Sequence[str] = ()) -> Table:
    """An empty table in the one style that all commands share."""
    made = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return made


def pack_pictures(
    pack: Answer, budget: int | None = None, ranks: Container[int] | None = None
) -> Iterable[RenderableType]:
    """A context pack: its items (those of `ranks` when given), then the budget, what was left out, every warning."""
    made = table("#", "item", "score", "found by", "tokens", right=("#", "score", "tokens"))
    hidden = 0
    for rank, item in enumerate(pack["items"], start=1):
        if ranks is not None and rank not in ranks:
            hidden += 1
            continue
        made.add_row(str(rank), _item(item), f"{item['score']:.4f}", "\n".join(item["source"]), str(item["tokens"]))
    if pack["items"]:
        yield made
    else:
        yield Text("nothing fits" if pack["omitted"] else "nothing found", style="bold")
    if hidden:
        yield Text(f"({hidden} more items are in the pack)", style="dim")
    yield _budget(pack, budget)
    yield _channels(pack.get("channels", {}))
    yield from (Text(f"! {warning}", style="yellow") for warning in pack.get("warnings", ()))


def _item(item: Answer) -> Text:
    matched = item.get("matched") or {}
    text = Text(f"{item['entity']}:{item['id']}", style="bold")
    text.append("\n" + shorten(row_text(item["row"])), style="not bold")
    if matched.get("chunk"):
        text.append(f"\nmatched: {shorten(matched['text'], 120)}", style="not bold dim")
    explain = item.get("explain")
    if explain:
        text.append("\n" + contributions(explain["contributions"]), style="not bold cyan")
        if explain.get("path"):
            text.append("\n" + path_text(explain["path"]), style="not bold magenta")
    return text


def contributions(parts: Sequence[Answer]) -> str:
    """Rank and own score per channel, and what each added: `vector #1 (0.63) +0.0164`."""
    return "  ".join(
        f"{part['channel']} #{part['rank']} ({part['score']:.3g}) +{part['contribution']:.4f}" for part in parts
    )


def path_text(path: Sequence[Answer]) -> str:
    """A walk as drawn: `passage:m26 -MENTIONS-> phrase:tennessee <-MENTIONS- passage:m34`."""
    drawn = ""
    for step in path:
        ref = f"{step['ref']['entity']}:{step['ref']['id']}"
        if not step["rel"]:
            drawn += ref
        elif step["reverse"]:
            drawn += f" <-{step['rel']}- {ref}"
        else:
            drawn += f" -{step['rel']}-> {ref}"
    return drawn


def _budget(pack: Answer, budget: int | None) -> Text:
    used = f"{pack['tokens']} tokens" if budget is None else f"{pack['tokens']} of {budget} tokens"
    parts = [used, f"{len(pack['items'])} items", f"{pack['omitted']} omitted"]
    parts += [f"{count} {why}" for why, count in pack.get("dropped", {}).items() if count]
    return Text(", ".join(parts), style="bold")


def _channels(channels: Answer) -> Text:
    shown = []
    for name, report in channels.items():
        note = f" ({report['error']})" if report.get("error") else " (truncated)" if report.get("truncated") else ""
        shown.append(f"{name} {report['candidates']} in {report['ms']:.0f} ms{note}")
    return Text(" · ".join(shown), style="dim")


def fused_pictures(answer: Answer) -> Iterable[RenderableType]:
    """Memories, then the timeline and the warnings."""
    made = table("#", "memory", "fused", "cosine", "found by", right=("#", "fused", "cosine"))
    for rank, memory in enumerate(answer["memories"], start=1):
        text = Text(memory["id"], style="bold").append("\n" + shorten(memory["content"]), style="not bold")
        if memory.get("path"):
            text.append("\n" + path_text(memory["path"]), style="not bold magenta")
        fused, cosine = f"{memory['fused_score']:.4f}", f"{memory['score']:.4f}"
        made.add_row(str(rank), text, fused, cosine, "\n".join(memory["channels"]))
    yield made if answer["memories"] else Text("nothing found", style="bold")
    if answer.get("dated_context"):
        yield Text(answer["dated_context"])
    if answer.get("now"):
        yield Text(f"now: {answer['now']}", style="bold")
    yield from (Text(f"! {warning}", style="yellow") for warning in answer.get("warnings", ()))


def hits_pictures(answer: Answer) -> Iterable[RenderableType]:
    """Hits of one channel with what matched."""
    made = table("#", "item", "score", "matched", right=("#", "score"))
    for rank, hit in enumerate(answer["hits"], start=1):
        matched = (hit.get("matched") or {}).get("text") or " … ".join(hit.get("highlights", ()))
        shown = shorten(matched.replace("<em>", "").replace("</em>", ""))
        made.add_row(
            str(hit.get("rank", rank)), Text(f"{hit['entity']}:{hit['id']}"), f"{hit['score']:.4f}", Text(shown)
        )
    yield made if answer["hits"] else Text("nothing found", style="bold")


def rows_pictures(answer: Answer) -> Iterable[RenderableType]:
    """Rows of a graph query, one column per returned name."""
    rows = answer["rows"]
    if not rows:
        yield Text("no rows", style="bold")
        return
    made = table(*rows[0])
    for row in rows:
        made.add_row(*(Text(shorten(_words(value))) for value in row.values()))
    yield made


def row_pictures(answer: Answer) -> Iterable[RenderableType]:
    """One row, a line per column."""
    made = table("column", "value", title=f"{answer['entity']}:{answer['id']} (version {answer['version']})")
    for name, value in answer["row"].items():
        made.add_row(name, Text(_words(value)))
    yield made


def map_pictures(answer: Answer) -> Iterable[RenderableType]:
    """The digest tree, indented by level from the top."""
    made = table("digest", "tokens", "content", "sem hash", right=("tokens",))
    for node in answer["nodes"]:
        text = Text("  " * (2 - node["level"]) + node["id"])
        text.append("  unchanged", style="dim") if node["unchanged"] else None
        # Cut, and seen to be cut: sixteen digits would read like a sem_hash. `--json` has them all.
        made.add_row(text, str(node["tokens"]), node["content_hash"][:8] + "…", node["sem_hash"])
    yield made if answer["nodes"] else Text("no digests: `recall distill` makes them", style="bold")
    if answer["truncated"]:
        yield Text("… and more", style="dim")


def digest_pictures(answer: Answer) -> Iterable[RenderableType]:
    """A summary, the way up, its children (those that it draws on marked), and rows beneath."""
    yield Text(answer["node"]["id"], style="bold")
    yield Text(answer["summary"])
    made = table("", "digest", "summary")
    for mark, relatives in (("↑", answer["parents"]), ("↓", answer["children"])):
        for one in relatives:
            made.add_row(mark + ("*" if one["cited"] else ""), Text(one["id"]), Text(shorten(one["summary"])))
    yield made
    if answer["rows"]:
        yield Text("rows: " + ", ".join(f"{row['entity']}:{row['id']}" for row in answer["rows"]))


def matches_pictures(answer: Answer) -> Iterable[RenderableType]:
    """Nodes of a hash, nearest first."""
    made = table("bits", "digest", "summary", right=("bits",))
    for one in answer["matches"]:
        made.add_row(str(one["distance"]), Text(one["node"]["id"]), Text(shorten(one["summary"])))
    yield made if answer["matches"] else Text("nothing near", style="bold")


def pictures(answer: Answer) -> Iterable[RenderableType]:
    """Any tool's answer, told apart by its shape."""
    drawers: Mapping[str, Callable[[Answer], Iterable[RenderableType]]] = {
        "items": pack_pictures,
        "memories": fused_pictures,
        "hits": hits_pictures,
        "children": digest_pictures,
        "rows": rows_pictures,
        "row": row_pictures,
        "nodes": map_pictures,
        "matches": matches_pictures,
    }
    for field, draw in drawers.items():
        if field in answer:
            return draw(answer)
    return [Text(str(dict(answer)))]
