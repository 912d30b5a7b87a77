"""Log-probabilities in OpenAI's two forms: chat's list of objects and completions' parallel lists.

A token is shown by itself: its text with U+FFFD for bytes that are no whole characters, and in chat its bytes as well.
"""

import codecs

from services.common.prompt_logprobs import PromptLogprobs, ScoredToken
from services.common.request import TokenLogprob
from services.common.text import Vocabulary
from services.pd_master.api.openai.answers import ChatLogprobs, CompletionLogprobLists, ShownToken
from services.pd_master.api.prompt_logprobs import LOWEST


def chat_logprobs(logprobs: list[TokenLogprob], vocabulary: Vocabulary, num_top: int) -> ChatLogprobs:
    """`choices[].logprobs` of chat answers and chunks."""
    return {"content": [_entry(logprob, vocabulary, num_top) for logprob in logprobs], "refusal": None}


class CompletionLogprobs:
    """`choices[].logprobs` of completions; keeps the text offset over a stream's chunks."""

    def __init__(self, vocabulary: Vocabulary, num_top: int, offset: int = 0) -> None:
        self._vocabulary = vocabulary
        self._num_top = num_top
        self._offset = offset

    def take(self, logprobs: list[TokenLogprob]) -> CompletionLogprobLists:
        """The lists for the next tokens."""
        texts = [_text(self._vocabulary.piece(logprob.token_id)) for logprob in logprobs]
        offsets = []
        for text in texts:
            offsets.append(self._offset)
            self._offset += len(text)
        return {
            "tokens": texts,
            "token_logprobs": [max(logprob.logprob, LOWEST) for logprob in logprobs],
            "top_logprobs": [self._top(one.token_id, one) for one in logprobs] if self._num_top else None,
            "text_offset": offsets,
        }

    def take_prompt(self, prompt_ids: list[int], scores: PromptLogprobs, text: str) -> CompletionLogprobLists:
        """The lists for an echoed prompt, whose first token has no log-probability. `text`: how it is shown."""
        scored = list(scores)
        top = [None, *map(self._top, prompt_ids[1:], scored)]
        return {
            "tokens": [_text(self._vocabulary.piece(token)) for token in prompt_ids],
            "token_logprobs": [None, *(max(one.logprob, LOWEST) for one in scored)],
            "top_logprobs": top if self._num_top else None,
            "text_offset": self._offsets(prompt_ids, text),
        }

    def _offsets(self, prompt_ids: list[int], text: str) -> list[int]:
        """Where in its text each token begins; one that it does not show, such as a special token, has no width."""
        utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        offsets, offset = [], 0
        for token in prompt_ids:
            offsets.append(offset)
            piece = utf8.decode(self._vocabulary.piece(token))
            shown = next((one for one in (piece, piece.lstrip()) if text.startswith(one, offset)), "")
            offset += len(shown)
        return offsets

    def _top(self, token_id: int, scored: TokenLogprob | ScoredToken) -> dict[str, float]:
        """The most likely tokens, and the token itself where it is not one of them, as OpenAI has it."""
        ranked = scored.top[: self._num_top]
        shown = {_text(self._vocabulary.piece(token)): max(value, LOWEST) for token, value in ranked}
        shown.setdefault(_text(self._vocabulary.piece(token_id)), max(scored.logprob, LOWEST))
        return shown


def _entry(logprob: TokenLogprob, vocabulary: Vocabulary, num_top: int) -> ShownToken:
    entry = _shown(logprob.token_id, logprob.logprob, vocabulary)
    entry["top_logprobs"] = [_shown(token, value, vocabulary) for token, value in logprob.top[:num_top]]
    return entry


def _shown(token_id: int, value: float, vocabulary: Vocabulary) -> ShownToken:
    piece = vocabulary.piece(token_id)
    return {"token": _text(piece), "logprob": max(value, LOWEST), "bytes": list(piece)}


def _text(piece: bytes) -> str:
    return piece.decode("utf-8", errors="replace")
