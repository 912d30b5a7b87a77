"""The console in a real browser against a real fleet: it loads at once, shows the workers and streams a chat."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.browser import CHROMIUM, Browser
from tests.integration.cluster import Cluster

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
SCREENSHOTS = os.environ.get("CONSOLE_SCREENSHOTS")
"""Folder for pictures of the page; none makes none."""
LOAD = """const model = document.getElementById("model").value;
const body = JSON.stringify({ model, prompt: "Once upon a time", max_tokens: 150, ignore_eos: true });
const whole = () => fetch("/v1/completions", { method: "POST", body }).then((answer) => answer.text());
const ask = () => whole().then(() => window.enough || ask());
for (let i = 0; i < 4; i += 1) ask(); 0"""
"""Others' requests, one after the other until there are enough: whenever the page looks, there is something to see."""
LOADED_BYTES = """[...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]
.reduce((sum, one) => sum + one.encodedBodySize, 0)"""
FOREIGN = """performance.getEntriesByType("resource").map((one) => one.name)
.filter((name) => !name.startsWith(location.origin))"""
"""What the page takes from elsewhere: it loads at once where there is nothing but the gateway."""
WATCH = """window.seen = new Set(); const log = document.getElementById("log");
new MutationObserver(() => seen.add(log.lastChild.textContent)).observe(log, { childList: true, subtree: true }); 0"""
"""Every text that the answer has had: a stream has many."""

SHORT = """
const send = window.fetch;
window.fetch = (url, init) =>
  send(url, init?.body ? { ...init, body: JSON.stringify({ ...JSON.parse(init.body), max_tokens: 60 }) } : init);
"""
"""The page asks for no length, and a sampled story may fill the model's context."""


@pytest.fixture(scope="module")
def cluster(model_dir: Path, log_dir: Path) -> Iterator[Cluster]:
    logs = log_dir / "console"
    logs.mkdir()
    with Cluster(model_dir, logs, prefill=1, decode=2, worker_options=["--kv-pool-tokens", "16384"]) as running:
        yield running


def test_a_message_is_answered_in_pieces_beside_live_workers(cluster: Cluster, tmp_path: Path) -> None:
    with Browser(tmp_path) as browser:
        browser.open(cluster.url + "/")
        browser.wait("document.querySelectorAll('.worker').length === 3")
        browser.wait("performance.getEntriesByType('navigation')[0].loadEventEnd > 0")
        assert browser.evaluate(LOADED_BYTES) < 50_000
        assert browser.evaluate(FOREIGN) == []
        browser.wait("document.getElementById('model').value")
        browser.evaluate(LOAD)
        browser.evaluate(WATCH)
        browser.evaluate(SHORT)
        browser.evaluate("document.getElementById('message').focus()")
        browser.type("Tell me a long story about a lighthouse.")
        browser.wait("seen.size > 3 || document.querySelector('.turn .error')")
        assert browser.evaluate("seen.size") > 3, browser.evaluate("document.getElementById('log').textContent")
        browser.wait("[...document.querySelectorAll('#stages strong')].some((one) => Number(one.textContent) > 0)")
        browser.wait("[...document.querySelectorAll('.bar .held')].some((bar) => parseFloat(bar.style.width) > 0)")
        browser.wait("[...document.querySelectorAll('#stages strong')].at(-1).textContent !== '0'")  # tokens a second
        browser.evaluate("window.enough = true")
        for scheme in ("light", "dark") if SCREENSHOTS else ():
            browser.screenshot(Path(SCREENSHOTS or "") / f"console-{scheme}.png", scheme)
        browser.resize(390, 844)
        assert browser.evaluate("document.documentElement.scrollWidth") <= 390, "a phone has to scroll sideways"
        if SCREENSHOTS:
            browser.screenshot(Path(SCREENSHOTS) / "console-narrow.png", "light")
        browser.wait("document.getElementById('stop').hidden")
        assert "first token after" in browser.evaluate("document.querySelector('.turn .facts').textContent")
        assert not browser.evaluate("!!document.querySelector('.turn .error')")
        browser.evaluate("document.getElementById('clear').click()")
        assert browser.evaluate("document.getElementById('log').textContent") == ""
