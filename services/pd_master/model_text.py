"""One model's text side as the gateway needs it: prompt text to ids, conversations to prompt text, ids to text."""

import json
import os
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from services.common.errors import InvalidRequestError
from services.common.text import Vocabulary
from services.pd_master.chat_template import ChatTemplate
from services.pd_master.sampling_defaults import read_defaults

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
"""The library's own threads are for many texts at once; one text would only be handed to one of them and back."""

_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class ModelText:
    """Tokenizer and chat templates of one model folder. Built once per model; its methods run in any thread."""

    def __init__(self, folder: Path) -> None:
        """Reads tokenizer, its config, templates, generation config. Raises ValueError when one is unusable."""
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ValueError(f"{path} does not exist; transformers' AutoTokenizer saves one (save_pretrained)")
        self._tokenizer = Tokenizer.from_file(str(path))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.vocabulary = Vocabulary(self._tokenizer)
        config = _read_json(folder / "tokenizer_config.json")
        special = _special_tokens(config)
        self._templates = {
            name: ChatTemplate(source, special) for name, source in _template_sources(folder, config).items()
        }
        self._special_ids = {
            token for token, added in self._tokenizer.get_added_tokens_decoder().items() if added.special
        }
        self.sampling = read_defaults(folder)
        self.vocab_size: int = self._tokenizer.get_vocab_size()
        """Tokens that have a name; the model's own table may be padded beyond it."""
        self.max_token_bytes = max((len(name.encode()) for name in self._tokenizer.get_vocab()), default=1)
        """No token stands for more bytes of text than this."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text. Lets other threads run: only the batch call gives up the interpreter lock."""
        encoded = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encoded[0].ids
        return ids

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        """The text of whole sequences, such as an echoed prompt."""
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)
        return text

    def token_name(self, token_id: int) -> str:
        """How the vocabulary writes a token; empty for an id without one."""
        return self._tokenizer.id_to_token(token_id) or ""

    def sequences_of(self, word: str) -> set[tuple[int, ...]]:
        """The token ids that a word is written as inside a text: by itself, and behind a space where that is part of
        its first token."""
        bare, spaced = (tuple(self.encode(lead + word.lstrip(), add_special_tokens=False)) for lead in ("", " "))
        as_first = len(spaced) == len(bare) and spaced[:1] != bare[:1]
        return {ids for ids in (bare, spaced if as_first else bare) if ids}

    def is_special(self, token_id: int) -> bool:
        """Whether a token is a mark of the model's and no text."""
        return token_id in self._special_ids

    def special_id(self, mark: str) -> int | None:
        """The id of a special token; None for a mark that is written as text, or not known."""
        token: int | None = self._tokenizer.token_to_id(mark)
        return token if token in self._special_ids else None

    def template(self, *, with_tools: bool = False) -> ChatTemplate:
        """The template for a conversation. Raises InvalidRequestError when the model has none."""
        name = "tool_use" if with_tools and "tool_use" in self._templates else "default"
        template = self._templates.get(name)
        if template is None:
            raise InvalidRequestError(
                "this model has no chat template; use /v1/completions with a prompt", param="messages"
            )
        return template


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object")
    return content


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    """`bos_token` and the like; a config writes each as a string or as a serialized added token."""
    tokens = {}
    for name in _SPECIAL_TOKENS:
        value = config.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            tokens[name] = text
    return tokens


def _template_sources(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """Template text by name. A `chat_template.jinja` file wins over the tokenizer config, as in `transformers`."""
    in_config = config.get("chat_template")
    sources: dict[str, str] = {}
    if isinstance(in_config, str):
        sources["default"] = in_config
    elif isinstance(in_config, list):
        sources.update({entry["name"]: entry["template"] for entry in in_config})
    file = folder / "chat_template.jinja"
    if file.is_file():
        sources = {"default": file.read_text(encoding="utf-8")}
    for named in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        sources[named.stem] = named.read_text(encoding="utf-8")
    return sources
