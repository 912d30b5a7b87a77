"""What each request must produce: a pure function of the request, known before it runs."""

import functools
from array import array

from tokenizers import Tokenizer, decoders, models

from services.common import ipc
from services.common.prompt_logprobs import PromptLogprobs
from services.common.request import Finish, FinishReason, Request
from services.common.text import Vocabulary
from services.worker.outputs import ChoiceOutput
from services.worker.protocol.effects import OutputLog

EOS = 0
_TEXT = "né 🚰 wässer stop läuft … ".encode()
"""Characters of one to four bytes, so that tokens split them, and a stop string."""


def _byte_names() -> list[str]:
    """GPT-2's printable name of each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


@functools.cache
def vocabulary() -> Vocabulary:
    """Byte b is token b + 1; token 0 is the end."""
    names = _byte_names()
    table = {"<eos>": EOS, **{name: byte + 1 for byte, name in enumerate(names)}}
    tokenizer = Tokenizer(models.BPE(vocab=table, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    return Vocabulary(tokenizer)


def next_token(prompt_ids: list[int], choice: int, position: int) -> int:
    """What the model samples. The prompt's first id says after how many tokens it ends by itself."""
    if position >= prompt_ids[0] + choice:
        return EOS
    return _TEXT[(prompt_ids[-1] + position + choice) % len(_TEXT)] + 1


def open_log(request: Request, choice: int, output_ids: list[int]) -> OutputLog:
    """As a worker opens it."""
    return ChoiceOutput(vocabulary(), request, choice, output_ids, (EOS,))


def sample(request: Request, choice: int, position: int) -> tuple[int, FinishReason | None]:
    """One step of the model: the token, and whether the engine ends there."""
    token = next_token(request.prompt_ids, choice, position)
    if token == EOS and not request.stop.ignore_eos:
        return token, FinishReason.STOP
    return token, FinishReason.LENGTH if position + 1 >= request.stop.max_new_tokens else None


def scores(first: int, end: int) -> PromptLogprobs:
    """Of the prompt tokens at these positions, each with values of its own."""
    positions = range(first, end)
    logprobs, ranks = array("f", [-float(position) for position in positions]), array("i", positions)
    return PromptLogprobs(first, 0, logprobs.tobytes(), ranks.tobytes(), b"", b"")


class Expected:
    """The whole output of one choice, made in one go."""

    def __init__(self, request: Request, choice: int) -> None:
        log = open_log(request, choice, [])
        position = 0
        while log.finish is None:
            token, finish = sample(request, choice, position)
            stop_id = token if finish is FinishReason.STOP else None
            log.take(ipc.SequenceOutput(0, choice, position, [token], None, finish, stop_id))
            position += 1
        whole = log.since(0)
        assert whole is not None
        assert whole.finish is not None
        self.ids: list[int] = whole.token_ids
        self.text: str = whole.text
        self.finish: Finish = whole.finish
