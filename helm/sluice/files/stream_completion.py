"""`helm test`: stream one completion through the Service; exit 0 when it came in several pieces and ended properly."""

import json
import os
import pathlib
import ssl
import sys
import time
import urllib.request

host = os.environ[os.environ["SERVICE"] + "_SERVICE_HOST"]
url = f"{os.environ['SCHEME']}://{host}:{os.environ['PORT']}"
# The Service is called by its address, which a certificate need not name.
context = ssl._create_unverified_context()
headers = {"Content-Type": "application/json"}
keys = pathlib.Path("/etc/sluice/api-keys/keys")
if keys.exists():  # lines of NAME KEY and of comments
    lines = [line.split() for line in keys.read_text().splitlines() if line.strip() and not line.strip().startswith("#")]
    headers["Authorization"] = "Bearer " + lines[0][1]
deadline = time.monotonic() + float(os.environ["TIMEOUT_S"])


def get(path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, headers)
    return urllib.request.urlopen(request, timeout=max(1.0, deadline - time.monotonic()), context=context)


def served_model():
    while time.monotonic() < deadline:
        with get("/v1/models") as answer:
            models = json.load(answer)["data"]
        if models:
            return models[0]["id"]
        time.sleep(0.5)
    sys.exit("no model is served: no prefill and decode worker have been paired yet")


body = {
    "model": served_model(),
    "prompt": os.environ["PROMPT"],
    "max_tokens": int(os.environ["MAX_TOKENS"]),
    "temperature": 0,
    "stream": True,
}
pieces, reason, done = [], None, False
with get("/v1/completions", body) as answer:
    for line in answer:
        text = line.decode().strip()
        if text == "data: [DONE]":
            done = True
        elif text.startswith("data: "):
            event = json.loads(text[len("data: ") :])
            if "error" in event:
                sys.exit(f"the stream ended in an error: {event['error']}")
            for choice in event["choices"]:
                pieces.append(choice["text"])
                reason = choice["finish_reason"] or reason
print(json.dumps({"model": body["model"], "text": "".join(pieces), "pieces": len(pieces), "finish_reason": reason}))
if not done or reason not in ("stop", "length") or not "".join(pieces):
    sys.exit("the stream was cut: no [DONE], no finish_reason or no text")
