"""XGrammar for one model's tokens: sources become compiled grammars, and these become matchers of sequences."""

import json
from pathlib import Path
from typing import Any

import xgrammar

from services.common.request import GrammarKind, GrammarSpec
from services.common.text import Vocabulary
from services.engine.ticket import GrammarError

_MAX_WHITESPACE = 32
"""In a row, between the parts of JSON: more than any indentation needs, and an end for models that would never stop."""

_UNTYPABLE = b"\xff\xfe%d"
"""Stands for the text of a special token: no text of any grammar holds such bytes, and unlike a token without text it
can be named by its id."""


class CompiledGrammar:
    """One grammar for one model; makes matchers. Shared by sequences."""

    def __init__(self, grammar: xgrammar.CompiledGrammar) -> None:
        self._grammar = grammar
        self.num_bytes: int = grammar.memory_size_bytes

    def matcher(self) -> xgrammar.GrammarMatcher:
        """At the start of an output."""
        return xgrammar.GrammarMatcher(self._grammar)


class GrammarCompiler:
    """Used by the grammar threads. Special tokens are allowed only where a structural tag names them by id; the model's
    end only where the grammar may end."""

    def __init__(self, folder: Path, vocab_size: int, eos_token_ids: tuple[int, ...]) -> None:
        """Raise GrammarError for a model without a tokenizer that gives each token fixed bytes."""
        try:
            pieces = Vocabulary.load(folder).visible_pieces
        except ValueError as error:
            raise GrammarError(f"this model has no grammars: {error}") from error
        if pieces is None:
            raise GrammarError("this model has no grammars: its tokenizer does not give each token fixed bytes")
        tokens = xgrammar.TokenizerInfo(
            [piece or _UNTYPABLE % token for token, piece in enumerate(pieces[:vocab_size])],
            xgrammar.VocabType.RAW,
            vocab_size=vocab_size,
            stop_token_ids=list(eos_token_ids),
            add_prefix_space=False,
        )
        self._compiler = xgrammar.GrammarCompiler(tokens, max_threads=1, cache_enabled=False)

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        """Raise GrammarError saying what is wrong with the source."""
        compiler = self._compiler
        try:
            match spec.kind:
                case GrammarKind.JSON_SCHEMA:
                    return CompiledGrammar(
                        compiler.compile_json_schema(spec.source, max_whitespace_cnt=_MAX_WHITESPACE)
                    )
                case GrammarKind.REGEX:
                    return CompiledGrammar(compiler.compile_regex(spec.source))
                case GrammarKind.EBNF:
                    return CompiledGrammar(compiler.compile_grammar(spec.source))
                case GrammarKind.STRUCTURAL_TAG:
                    return CompiledGrammar(compiler.compile_structural_tag(_with_bounds(spec.source)))
        except (RuntimeError, ValueError) as error:  # what the library raises for each of its own errors
            raise GrammarError(_reason(str(error))) from error


def _with_bounds(tag: str) -> str:
    """The structural tag with whitespace bounded in all its JSON that does not say itself how much there may be."""

    def bound(form: Any) -> None:  # noqa: ANN401  JSON has no type
        parts = form.items() if isinstance(form, dict) else enumerate(form) if isinstance(form, list) else ()
        for name, part in parts:
            if name != "json_schema":  # no format, and may hold anything
                bound(part)
        if isinstance(form, dict) and form.get("type") == "json_schema":
            form.setdefault("max_whitespace_cnt", _MAX_WHITESPACE)

    form = json.loads(tag)
    bound(form)
    return json.dumps(form)


def _reason(message: str) -> str:
    """The library's word without the place in its own source that stands before it."""
    return message.partition(".cc:")[2].partition(": ")[2].strip() or message.strip()
