"""KV transfer between engines over UCX (R1 to R3, R13, R16).

`KvSender` lives in a prefill engine, `KvReceiver` in a decode engine, one per rank. Each owns one thread that owns all
of UCX; the engine's loop thread owns all KV compute and meets the transfer only through `PagePool`, a few non-blocking
calls and `poll()`.

The life of a payload:

    prefill loop    page = pool.acquire(); gather(kv, slots, page); sender.push(...)
    prefill thread  page filled and credit there: ANNOUNCE; in its turn the payload; UCX done: SENT, page -> pool
    decode thread   a receive into a free page (the scratch page if the attempt is gone); UCX done and SENT seen: event
    decode loop     Received: scatter(page, kv, slots); page.release()
    decode thread   ANSWER, which returns the credit; Pushed(outcome) reaches the prefill loop

Where the receiver has mapped the sender's pages (`shared_pages`), it reads the payload itself, and what it says, TAKEN,
stands for UCX's report to the sender.

SENT is what makes a late reader harmless: a sender past its deadline closes its endpoint and never says SENT, so bytes
that a slow receiver pulled out of a page already reused are thrown away, whatever UCX says of its receive.
"""

import os

# UCXX sets a variable that UCX itself does not know on machines without CUDA, and UCX warns of it at every start.
os.environ.setdefault("UCX_WARN_UNUSED_ENV_VARS", "n")
