"""The console page comes whole from this server, and its state says what the fleet does."""

import asyncio
import json
import re
import shutil
from pathlib import Path

import pytest

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


@pytest.mark.skipif(shutil.which("node") is None, reason="node runs the page's script")
async def test_the_script_shows_the_fleet_and_streams_a_chat(api: Api) -> None:
    here = Path(__file__)
    script = here.parents[3] / "services" / "pd_master" / "console" / "console.js"
    base = str(api.http.base_url).rstrip("/")
    page = await asyncio.create_subprocess_exec(
        "node", str(here.with_name("console_page.mjs")), base, str(script), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await asyncio.wait_for(page.communicate(), 30)
    seen = json.loads(out)
    assert seen["status"].startswith("1 pair takes requests")
    assert not seen["bad"]
    assert seen["stages"] == "0queued0prefilling0transferring0decoding0tokens/s"
    assert "p-0" in seen["workers"]
    assert "demand 50%" in seen["workers"]
    assert seen["heldWidth"] == "0.0%"
    question, answer = seen["turns"]
    assert question == "Hello"
    said = api.text.decode(list(api.dispatcher.script.output[0]))
    assert answer.startswith(said)
    assert "prompt tokens, 0 of them cached · first token after" in answer
    assert seen["wasStoppable"]
