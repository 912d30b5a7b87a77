"""The console page comes whole from this server, and its state says what the fleet does."""

import asyncio
import re

from tests.fakes.dispatcher import Script
from tests.unit.api.conftest import Api


async def test_the_page_and_all_it_names_come_from_here(api: Api) -> None:
    page = await api.http.get("/")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    named = re.findall(r'(?:href|src)="(?!data:)([^"]+)"', page.text)
    assert named
    for path in named:
        answer = await api.http.get(path)
        assert answer.status_code == 200, path
        assert not re.search(r"https?://", answer.text), f"{path} names another server"
        assert "default-src 'none'" in answer.headers["content-security-policy"]


async def test_posting_to_the_root_still_generates(api: Api) -> None:
    answer = await api.http.post("/", json={"inputs": "x", "parameters": {"max_new_tokens": 2}})
    assert answer.status_code == 200


async def test_state_shows_workers_models_and_stages(api: Api) -> None:
    api.dispatcher.script = Script(output=[[28120, 905, 1, 2]], hang_after=2)
    body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}]}
    task = asyncio.create_task(api.http.post("/v1/chat/completions", json=body))
    generation = await api.dispatcher.submitted.get()
    state = (await api.http.get("/console/state")).json()
    assert state["models"] == ["tiny"]
    assert list(state["stages"]) == ["queued", "prefilling", "transferring", "decoding"]
    assert sum(state["stages"].values()) == 1
    (worker,) = state["workers"]
    assert (worker["worker_id"], worker["role"], worker["demand_ratio"]) == ("p-0", "prefill", 0.5)
    generation.go_on.set()
    assert (await task).status_code == 200
    assert sum((await api.http.get("/console/state")).json()["stages"].values()) == 0
