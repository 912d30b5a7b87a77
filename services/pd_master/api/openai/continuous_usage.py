"""`stream_options.continuous_usage_stats`: every chunk says what its choice has used so far, as vLLM's and SGLang's do.

For proxies that bill streams which their clients leave. Chunks are encoded as ever, with a null where the figures go.
"""

import re
from collections.abc import Sequence

import msgspec

from services.common.errors import SluiceError
from services.common.request import Delta
from services.pd_master.api.events import EventEncoder
from services.pd_master.api.openai.fields import StreamOptions
from services.pd_master.live_request import LiveRequest

_INDEX = re.compile(rb'"choices":\[\{"index":(\d+)')
_NOT_YET = b'"usage":null}\n\n'
"""The end of each chunk, and of nothing else: JSON writes no line feed within a string."""


def counted(events: EventEncoder, lives: Sequence[LiveRequest], options: StreamOptions | None) -> EventEncoder:
    """The encoder as it is, or with figures in every chunk, as the client asked."""
    return _CountedEvents(events, lives) if options is not None and options.continuous_usage_stats else events


class _CountedEvents:
    """Another encoder's chunks with their figures, for one stream. Its choices count over all prompts."""

    def __init__(self, inner: EventEncoder, lives: Sequence[LiveRequest]) -> None:
        """`inner`: one that includes the usage at its end."""
        self._inner = inner
        self._lives = lives
        self._num_tokens = [0] * sum(live.request.num_choices for live in lives)

    def start(self) -> bytes:
        """See EventEncoder."""
        return self._filled(self._inner.start())

    def delta(self, delta: Delta) -> bytes:
        """See EventEncoder."""
        self._num_tokens[delta.choice] += len(delta.token_ids)
        return self._filled(self._inner.delta(delta))

    def end(self) -> bytes:
        """See EventEncoder."""
        return self._inner.end()

    def error(self, error: SluiceError) -> bytes:
        """See EventEncoder."""
        return self._inner.error(error)

    def _filled(self, events: bytes) -> bytes:
        *chunks, rest = events.split(_NOT_YET)
        return b"".join([part for chunk in chunks for part in (chunk, self._usage(chunk))]) + rest

    def _usage(self, chunk: bytes) -> bytes:
        index = _INDEX.search(chunk)
        assert index is not None, "each chunk is of a choice"
        choice = int(index[1])
        num_output = self._num_tokens[choice]
        num_prompt = self._lives[choice // self._lives[0].request.num_choices].num_prompt_tokens
        usage = {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_output,
            "total_tokens": num_prompt + num_output,
        }
        return b'"usage":' + msgspec.json.encode(usage) + b"}\n\n"
