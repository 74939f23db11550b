"""LoCoMo: long conversations in dated sessions, and questions whose evidence is turns. One tenant a conversation."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from recall.errors import InvalidRequest
from recall.evaluation.readers.files import Record, expand, read_json_objects, text, texts
from recall.evaluation.readers.queries import Query
from recall.rows import Ref

# The data set's numbers; the names are those of its first release's counts (282 / 321 / 96 / 841 / 446 questions).
LOCOMO_CATEGORIES: Mapping[int, str] = {
    1: "multi-hop",
    2: "temporal",
    3: "open-domain",
    4: "single-hop",
    5: "adversarial",
}
_SESSION = re.compile(r"session_(\d+)")
_EVIDENCE = re.compile(r"D:?(\d+):(\d+)")


def locomo(paths: Sequence[Path]) -> Iterator[Record]:
    """`session` and `turn` rows of every conversation, each in the tenant that its `sample_id` names.

    A turn links to its session and to the next turn of the same session; `date` is the session's day as YYYYMMDD.
    """
    for path in expand(paths, ".json"):
        for sample in read_json_objects(path):
            yield from _conversation(sample, path)


def _conversation(sample: dict[str, object], path: Path) -> Iterator[Record]:
    tenant = text(sample, "sample_id", path)
    talk = _mapping(sample.get("conversation"), path, tenant)
    summaries = sample.get("session_summary")
    summaries = summaries if isinstance(summaries, dict) else {}
    ordinal = 0
    for name, number, turns in _sessions(talk):
        when = str(talk.get(f"{name}_date_time") or "")
        day = locomo_day(when)
        session: dict[str, object] = {
            "id": f"{tenant}:{name}",
            "number": number,
            "date": day,
            "when": when,
            "speakers": list(dict.fromkeys(str(turn.get("speaker")) for turn in turns)),
            "summary": summaries.get(f"{name}_summary"),
        }
        yield tenant, "session", session
        ids = [f"{tenant}:{text(turn, 'dia_id', path)}" for turn in turns]
        for position, turn in enumerate(turns):
            following = ids[position + 1] if position + 1 < len(ids) else None
            yield tenant, "turn", _turn(turn, ids[position], session, ordinal, following)
            ordinal += 1


def _turn(
    turn: Mapping[str, object], turn_id: str, session: Mapping[str, object], ordinal: int, following: str | None
) -> dict[str, object]:
    return {
        "id": turn_id,
        "dia_id": turn["dia_id"],
        "speaker": turn.get("speaker"),
        "text": turn.get("text"),
        "caption": turn.get("blip_caption"),
        "session": session["id"],
        "date": session["date"],
        "when": session["when"],
        "ordinal": ordinal,
        "next": following,
    }


def _sessions(talk: Mapping[str, object]) -> list[tuple[str, int, list[dict[str, object]]]]:
    """Name, number and turns of each session that was held, in order; a date alone is no session."""
    found = []
    for name, turns in talk.items():
        match = _SESSION.fullmatch(name)
        if match and isinstance(turns, list) and turns:
            found.append((name, int(match[1]), turns))
    return sorted(found, key=lambda session: session[1])


def locomo_day(when: str) -> int | None:
    """`1:56 pm on 8 May, 2023` → 20230508; None for anything else."""
    try:
        day = dt.datetime.strptime(when.rpartition(" on ")[2].strip(), "%d %B, %Y").date()  # noqa: DTZ007
    except ValueError:
        return None
    return day.year * 10_000 + day.month * 100 + day.day


def locomo_queries(paths: Sequence[Path]) -> list[Query]:
    """Questions of every conversation, ids `<sample>:q<n>`; `kind` is the category's name.

    Evidence is read leniently, for a few published ids are malformed (`D8:6; D9:17`, `D:11:26`); ids of no turn are
    dropped. An adversarial question has the answer that must not be given in `extra.adversarial_answer`.
    """
    found: list[Query] = []
    for path in expand(paths, ".json"):
        for sample in read_json_objects(path):
            found.extend(_questions(sample, path))
    return found


def _questions(sample: dict[str, object], path: Path) -> Iterator[Query]:
    tenant = text(sample, "sample_id", path)
    talk = _mapping(sample.get("conversation"), path, tenant)
    spoken = {str(turn.get("dia_id")) for _, _, turns in _sessions(talk) for turn in turns}
    asked = sample.get("qa") or []
    if not isinstance(asked, list):
        raise InvalidRequest(f"{path}: `qa` of {tenant} must be a list")
    for number, item in enumerate(asked):
        evidence = [turn for turn in _evidence(item.get("evidence")) if turn in spoken]
        wrong = item.get("adversarial_answer")
        yield Query(
            id=f"{tenant}:q{number}",
            text=text(item, "question", path),
            tenant=tenant,
            relevant=tuple(Ref("turn", f"{tenant}:{turn}") for turn in evidence),
            grades=(1,) * len(evidence),
            answers=texts(item.get("answer")),
            kind=LOCOMO_CATEGORIES.get(item.get("category"), ""),
            extra={} if wrong is None else {"adversarial_answer": str(wrong)},
        )


def _evidence(raw: object) -> list[str]:
    """Turn ids in a list of strings, each of which may hold several; `D30:05` means D30:5."""
    pairs = [pair for item in texts(raw) for pair in _EVIDENCE.findall(item)]
    return list(dict.fromkeys(f"D{int(session)}:{int(turn)}" for session, turn in pairs))


def _mapping(value: object, path: Path, sample: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{path}: `conversation` of {sample} must be an object")
    return value
