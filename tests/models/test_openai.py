"""Summaries and query vectors over HTTP, against a server that answers, refuses, breaks off and stalls."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import numpy as np
import pytest
from completions import chat, serving

from recall.errors import ConfigError
from recall.model_ports import SummaryTask
from recall.models import open_embedder, open_summarizer
from recall.models.endpoint import Endpoint, RequestFailed
from recall.models.openai import OpenAiEmbedder, OpenAiSummarizer
from recall.packing import quarter_bytes
from recall.prompts import Prompt, Prompts
from recall.settings import EndpointSettings, OpenAiSummarizerSettings, VllmEmbedderSettings, VllmEngineSettings

TASK = SummaryTask(1, ("The pump stopped.", "The seal was torn."), 64)


def settings(url: str, **values: Any) -> OpenAiSummarizerSettings:
    return OpenAiSummarizerSettings.model_validate({"kind": "openai", "url": url, "model": "small", **values})


def summarizer(url: str, pauses: list[float] | None = None, **values: Any) -> OpenAiSummarizer:
    return OpenAiSummarizer(settings(url, **values), pause=(pauses if pauses is not None else []).append)


def test_asks_with_the_prompt_of_the_level_and_answers_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "s3cret")
    prompts = Prompts(tenant=Prompt(system="Overview.", user="In {words} words: {texts}"))
    tasks = [SummaryTask(2, (f"text {n}",), 100) for n in range(20)]
    with serving(lambda body, _: (200, chat("About " + body["messages"][1]["content"] + "."))) as server:
        found = summarizer(server.url, key_env="SOME_KEY", seed=7, prompts=prompts).summarize(tasks)
    assert [one.text for one in found] == [f"About In 60 words: text {n}." for n in range(20)]
    assert {one.error for one in found} == {None}
    assert set(server.keys) == {"Bearer s3cret"}
    asked = server.bodies[0]
    assert (asked["path"], asked["model"]) == ("/v1/chat/completions", "small")
    assert (asked["temperature"], asked["seed"], asked["max_tokens"]) == (0, 7, 100)
    assert asked["messages"][0] == {"role": "system", "content": "Overview."}


def test_no_more_requests_at_a_time_than_allowed() -> None:
    meeting = threading.Barrier(3, timeout=10)

    def answer(body: dict[str, Any], number: int) -> tuple[int, Any]:
        # Only three requests that are there together get on.
        meeting.wait()
        return 200, chat("Good.")

    with serving(answer) as server:
        found = summarizer(server.url, concurrency=3).summarize([TASK] * 12)
    assert [one.text for one in found] == ["Good."] * 12
    assert server.busiest == 3


@pytest.mark.parametrize("seconds", [7, 0])
def test_a_rate_limit_is_waited_out_as_the_server_says(seconds: int) -> None:
    pauses: list[float] = []
    refused = (429, {"error": "slow down"}, {"retry-after": str(seconds)})
    with serving(lambda _, number: refused if number < 3 else (200, chat("Done."))) as server:
        (found,) = summarizer(server.url, pauses).summarize([TASK])
    assert found.text == "Done."
    assert len(pauses) == 2
    assert all(pause >= seconds for pause in pauses)
    assert all(pause > 0 for pause in pauses)


def test_a_retry_date_and_a_pause_beyond_all_patience_are_understood() -> None:
    pauses: list[float] = []
    dates = [format_datetime(datetime.now(UTC) + timedelta(seconds=20), usegmt=True), "86400", "soon"]
    with serving(
        lambda _, number: (503, {}, {"retry-after": dates[number - 1]}) if number < 4 else (200, chat("Done."))
    ) as server:
        (found,) = summarizer(server.url, pauses, longest_pause_s=30).summarize([TASK])
    assert found.text == "Done."
    assert 15 < pauses[0] <= 20
    assert pauses[1] == 30
    assert pauses[2] < 5


def test_a_row_that_keeps_failing_is_an_error_beside_good_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "s3cret")

    def answer(body: dict[str, Any], _: int) -> Any:
        asked = body["messages"][1]["content"]
        for word, found in (
            ("overloaded", (500, {})),
            ("broken", None),
            ("rejected", (400, {"error": "too long"})),
            ("no json", (200, b"<html>")),
            ("no choice", (200, {"choices": []})),
            ("empty", (200, chat("  "))),
            ("silent", (200, chat(None))),
            ("filtered", (200, chat("Hm.", "content_filter"))),
        ):
            if word in asked:
                return found
        return 200, chat("Good.")

    words = ["overloaded", "fine", "broken", "rejected", "no json", "no choice", "empty", "silent", "filtered", "well"]
    with serving(answer) as server:
        model = summarizer(server.url, retries=2, key_env="SOME_KEY")
        found = dict(zip(words, model.summarize([SummaryTask(0, (word,), 32) for word in words]), strict=True))
    assert {word for word, one in found.items() if one.error is None} == {"fine", "well"}
    assert all(not one.text for one in found.values() if one.error)
    assert "500" in found["overloaded"].error
    assert "3 attempts" in found["overloaded"].error
    assert "400" in found["rejected"].error
    asked = [body["messages"][1]["content"] for body in server.bodies]
    assert sum("overloaded" in text for text in asked) == sum("broken" in text for text in asked) == 3
    # What is wrong with the request itself is not asked again.
    assert sum("rejected" in text for text in asked) == 1
    assert "s3cret" not in " ".join(one.error or "" for one in found.values())


def test_a_server_that_stalls_is_left_and_asked_again() -> None:
    release = threading.Event()

    def answer(_: dict[str, Any], number: int) -> Any:
        if number == 1:
            release.wait(10)
            return None
        release.set()
        return 200, chat("Late but good.")

    with serving(answer) as server:
        (found,) = summarizer(server.url, timeout_s=0.3).summarize([TASK])
    assert found.text == "Late but good."


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_wrong_key_or_model_stops_the_job_naming_what_to_correct(status: int) -> None:
    with (
        serving(lambda *_: (status, {})) as server,
        pytest.raises(ConfigError, match=rf"{status}.*'small'"),
    ):
        summarizer(server.url).summarize([TASK])


def test_a_key_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOME_KEY", raising=False)
    with pytest.raises(ConfigError, match="SOME_KEY is not set"):
        summarizer("http://127.0.0.1:1/v1", key_env="SOME_KEY")


def test_nobody_listening_is_an_error_of_the_row() -> None:
    (found,) = summarizer("http://127.0.0.1:1/v1", retries=1).summarize([TASK])
    assert "127.0.0.1:1" in (found.error or "")


def test_a_summary_over_budget_ends_with_a_sentence() -> None:
    text = "First things first. " * 30
    with serving(lambda *_: (200, chat(text))) as server:
        (found,) = summarizer(server.url).summarize([SummaryTask(1, ("a", "b"), 24)])
    assert quarter_bytes(found.text.encode()) <= 24
    assert found.text.endswith("first.")
    assert found.cited == (0, 1)


def test_a_sentence_that_the_model_was_stopped_in_is_left_out() -> None:
    with serving(lambda *_: (200, chat("The pump stopped. The seal was", "length"))) as server:
        (found,) = summarizer(server.url).summarize([TASK])
    assert found.text == "The pump stopped."


def test_requests_are_spread_over_the_minute() -> None:
    moments = [0.0]
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        moments[0] += seconds

    with serving(lambda *_: (200, {})) as server:
        limited = EndpointSettings(url=server.url, model="small", requests_per_minute=120)
        endpoint = Endpoint(limited, pause=pause, clock=lambda: moments[0])
        for _ in range(4):
            endpoint.post("chat/completions", {})
        endpoint.close()
    assert pauses == pytest.approx([0.5, 0.5, 0.5])


def embedding(url: str | None, dim: int = 2) -> VllmEmbedderSettings:
    queries = EndpointSettings(url=url, model="served", retries=0) if url else None
    engine = VllmEngineSettings(model="some/model")
    return VllmEmbedderSettings(kind="vllm", name="m", dim=dim, max_tokens=64, vllm=engine, queries=queries)


def test_queries_are_embedded_by_the_endpoint_that_serves_the_model() -> None:
    data = [{"index": 1, "embedding": [0, 2]}, {"index": 0, "embedding": [3, 4]}]
    with serving(lambda *_: (200, {"data": data})) as server:
        embedder = open_embedder(embedding(server.url))
        assert isinstance(embedder, OpenAiEmbedder)
        vectors = embedder.embed(["a", "b"])
        assert embedder.embed([]).shape == (0, 2)
    assert embedder.name == embedding(None).model_name == "m/64"
    assert np.allclose(vectors, [[0.6, 0.8], [0, 1]])
    assert server.bodies == [
        {"model": "served", "input": ["a", "b"], "encoding_format": "float", "path": "/v1/embeddings"}
    ]


def test_query_vectors_of_another_model_are_refused() -> None:
    with serving(lambda *_: (200, {"data": [{"index": 0, "embedding": [1, 0, 0]}]})) as server:
        embedder = OpenAiEmbedder(embedding(server.url))
        with pytest.raises(ConfigError, match=r"embedder\.dim is 2"):
            embedder.embed(["a"])
        with pytest.raises(ConfigError, match="recall backfill"):
            embedder.token_spans(["a"])
    with serving(lambda *_: (200, {"data": "none"})) as server, pytest.raises(RequestFailed):
        OpenAiEmbedder(embedding(server.url)).embed(["a"])


def test_without_an_endpoint_for_queries_the_settings_are_wrong() -> None:
    with pytest.raises(ConfigError, match=r"embedder\.queries"):
        open_embedder(embedding(None))


def test_the_configured_summarizer_is_opened() -> None:
    assert isinstance(open_summarizer(settings("http://127.0.0.1:1/v1"), None), OpenAiSummarizer)


@pytest.mark.parametrize("values", [{"user": "no placeholder"}, {"user": "{texts} {more}"}, {"user": "{texts} {"}])
def test_a_prompt_that_cannot_be_filled_is_refused(values: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"user|placeholder|template"):
        Prompt.model_validate({"system": "s", **values})
