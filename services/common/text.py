"""Output ids become text: a detokenizer with stop strings above it, as pure functions of the ids (R9).

Byte-level and SentencePiece-like tokenizers, which is every model family served here, give each token fixed bytes. One
table of them and a UTF-8 decoder that waits for whole characters cost under a microsecond a token and need no window of
earlier tokens. Other tokenizers (WordPiece and its like, where a token's text depends on its neighbours) go through
`WindowDecoder`.

The output continues the prompt's text, so a SentencePiece token keeps its leading space even as the first one.
"""

import codecs
import json
import re
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tokenizers import Tokenizer

from services.common.request import StopParams, TextParams
from services.common.stop_strings import StopStrings

REPLACEMENT = "\ufffd"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TextDecoder(Protocol):
    """Turns the ids of one sequence into whole characters."""

    def push(self, token_ids: list[int]) -> str:
        """Text that became certain with these ids; never a part of a character."""
        ...

    def push_one(self, token_id: int) -> str:
        """The same for one id."""
        ...

    def close(self) -> str:
        """The end: U+FFFD once if a character is still incomplete, else nothing."""
        ...


class ByteDecoder:
    """Each token is fixed bytes; characters come out when their last byte is here."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._decode = self._utf8.decode

    def push(self, token_ids: list[int]) -> str:
        """As `TextDecoder.push`; ids beyond the tokenizer's vocabulary (padding rows of the model) have no text."""
        pieces = self._pieces
        size = len(pieces)
        return self._utf8.decode(b"".join([pieces[token] for token in token_ids if token < size]))

    def push_one(self, token_id: int) -> str:
        """As `TextDecoder.push_one`."""
        pieces = self._pieces
        return self._decode(pieces[token_id]) if token_id < len(pieces) else ""

    def close(self) -> str:
        """As `TextDecoder.close`."""
        return self._utf8.decode(b"", final=True)


class WindowDecoder:
    """For decoders that look at neighbours: decodes from the last certain token on and cuts off that prefix."""

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._window: list[int] = []
        self._num_read = 0

    def push(self, token_ids: list[int]) -> str:
        """As `TextDecoder.push`."""
        return "".join([self.push_one(token) for token in token_ids])

    def close(self) -> str:
        """As `TextDecoder.close`."""
        new = self._new_text().rstrip(REPLACEMENT)
        return new + REPLACEMENT if self._num_read < len(self._window) else new

    def push_one(self, token_id: int) -> str:
        """As `TextDecoder.push_one`."""
        self._window.append(token_id)
        new = self._new_text()
        if not new or new.endswith(REPLACEMENT):
            return ""
        self._window = self._window[self._num_read :]
        self._num_read = len(self._window)
        return new

    def _new_text(self) -> str:
        return self._decode(self._window)[len(self._decode(self._window[: self._num_read])) :]


class Vocabulary:
    """The token texts of one model, shared by all its sequences. Raises ValueError on a file that is no tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._special = {token for token, added in tokenizer.get_added_tokens_decoder().items() if added.special}
        to_bytes = _piece_bytes(tokenizer)
        self._pieces = None if to_bytes is None else _table(tokenizer, to_bytes)
        self._visible = None if self._pieces is None else self._without_special(self._pieces)

    @classmethod
    def load(cls, folder: Path) -> "Vocabulary":
        """Read `tokenizer.json` of a model folder."""
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ValueError(f"{path} does not exist; transformers' AutoTokenizer saves one (save_pretrained)")
        return cls(Tokenizer.from_file(str(path)))

    def piece(self, token_id: int) -> bytes:
        """The bytes one token stands for, special ones too; for log-probabilities, which show tokens by themselves."""
        if self._pieces is not None:
            return self._pieces[token_id] if token_id < len(self._pieces) else b""
        text: str = self._tokenizer.decode([token_id], skip_special_tokens=False)
        return text.encode()

    @property
    def visible_pieces(self) -> list[bytes] | None:
        """The bytes of each token by its id, none for special ones; None where they depend on the tokens around."""
        return self._visible

    def decoder(self, params: TextParams) -> TextDecoder:
        """A decoder at the start of one sequence's output."""
        pieces = self._visible if params.skip_special_tokens else self._pieces
        if pieces is not None:
            return ByteDecoder(pieces)
        return WindowDecoder(lambda ids: self._decode_window(ids, params))

    def _without_special(self, pieces: list[bytes]) -> list[bytes]:
        return [b"" if token in self._special else piece for token, piece in enumerate(pieces)]

    def _decode_window(self, token_ids: list[int], params: TextParams) -> str:
        skip = params.skip_special_tokens
        apart = not skip and not params.spaces_between_special_tokens
        runs = self._runs(token_ids) if apart else [token_ids]
        return "".join([self._tokenizer.decode(run, skip_special_tokens=skip) for run in runs])

    def _runs(self, token_ids: list[int]) -> list[list[int]]:
        """Each special token alone, so that the tokenizer's decoder puts no space beside it."""
        ranked = enumerate(token_ids)
        runs = groupby(ranked, key=lambda item: item[0] if item[1] in self._special else None)
        return [[token for _, token in run] for _, run in runs]


class StopMatch(NamedTuple):
    """A stop string ended the sequence within its first `num_output_tokens` tokens (R10)."""

    stop_string: str
    num_output_tokens: int


class TextStream:
    """The visible text of one sequence. After `match` is set nothing more comes out."""

    def __init__(self, vocabulary: Vocabulary, stop: StopParams, text: TextParams) -> None:
        self._decoder = vocabulary.decoder(text)
        self._stop = StopStrings(stop.stop_strings, include=stop.include_stop_string)
        self._min_tokens = stop.min_new_tokens
        self.num_tokens = 0
        """Output tokens taken so far; they end with the match."""
        self.match: StopMatch | None = None

    def push(self, token_ids: list[int]) -> str:
        """The text that these tokens make visible."""
        if not self._stop:
            self.num_tokens += len(token_ids)
            return self._decoder.push(token_ids)
        return "".join([self.push_one(token) for token in token_ids if self.match is None])

    def close(self) -> str:
        """The end without a match: what was held back."""
        return "" if self.match else self._stop.close() + self._decoder.close()

    def push_one(self, token_id: int) -> str:
        """The same for one token; not after a match."""
        self.num_tokens += 1
        piece = self._decoder.push_one(token_id)
        if not self._stop:
            return piece
        found = self._stop.push(piece, armed=self.num_tokens >= self._min_tokens)
        if found.stop is not None:
            self.match = StopMatch(found.stop, self.num_tokens)
        return found.visible


def _table(tokenizer: Tokenizer, to_bytes: Callable[[str], bytes]) -> list[bytes]:
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    pieces = [b""] * (max(vocabulary.values(), default=-1) + 1)
    for name, token in vocabulary.items():
        pieces[token] = to_bytes(name)
    return pieces


def _piece_bytes(tokenizer: Tokenizer) -> Callable[[str], bytes] | None:
    """How a token's name becomes its bytes; None where that depends on the tokens around it."""
    steps = _decoder_steps(tokenizer)
    kinds = {step["type"] for step in steps}
    if kinds == {"ByteLevel"}:
        return _byte_level
    if kinds and kinds <= {"Replace", "ByteFallback", "Fuse", "Strip"}:
        replaces = [(step["pattern"]["String"], step["content"]) for step in steps if step["type"] == "Replace"]
        return lambda name: _sentence_piece(name, replaces)
    if kinds == {"Metaspace"}:
        return lambda name: _sentence_piece(name, [(steps[0]["replacement"], " ")])
    return None


def _decoder_steps(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    if tokenizer.decoder is None:
        return []
    state: dict[str, Any] = json.loads(tokenizer.decoder.__getstate__())
    steps: list[dict[str, Any]] = state["decoders"] if state["type"] == "Sequence" else [state]
    return steps


def _sentence_piece(name: str, replaces: list[tuple[str, str]]) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(name)
    if byte:
        return bytes([int(byte[1], 16)])
    for old, new in replaces:
        name = name.replace(old, new)
    return name.encode()


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte: printable Latin-1 for itself, the rest from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    alphabet = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in printable]
    alphabet.update({chr(256 + rank): byte for rank, byte in enumerate(others)})
    return alphabet


_ALPHABET = _byte_alphabet()


def _byte_level(name: str) -> bytes:
    try:
        return bytes([_ALPHABET[char] for char in name])
    except KeyError:  # an added token with characters outside the alphabet stands for itself
        return name.encode()
