"""The domain types of a generation request: what clients ask for and what workers answer.

They are plain values without behaviour that needs a clock, a socket or a tensor. `services.common.wire` turns them into
protobuf between pods and `services.common.ipc` carries the parts an engine needs between the processes of one pod.
"""

import enum

import msgspec


class FinishReason(enum.Enum):
    """Why a sequence ended, in the words every API of the field uses."""

    STOP = "stop"
    """An end-of-sequence token, a stop token id, or a stop string."""
    LENGTH = "length"
    """`max_new_tokens` or the model's context length was reached."""
    ABORT = "abort"
    """The client went away, a deadline passed, or an operator aborted it."""
    ERROR = "error"
    """The serving system failed; nothing the client sent was wrong."""


class GrammarKind(enum.Enum):
    """How a grammar's source is written."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    EBNF = "ebnf"
    """GBNF-like, with a rule `root`."""
    STRUCTURAL_TAG = "structural_tag"
    """XGrammar's JSON description of tagged text: tool calls, thoughts before an answer."""


class GrammarSpec(msgspec.Struct, frozen=True):
    """What the whole output of each choice must match. Engines compile the source (R9: rebuilt by replay)."""

    kind: GrammarKind
    source: str
    field: str = ""
    """The request field that it came from, for error messages."""


class PromptPenalty(enum.Enum):
    """Which penalties count the prompt's tokens as well as the output's."""

    NONE = "none"
    REPETITION = "repetition"
    """The repetition penalty alone, as in transformers and vLLM."""
    ALL = "all"
    """Each penalty: the prompt is counted as if it were output."""


class LengthPenalty(msgspec.Struct, frozen=True):
    """The end becomes likelier from output position `start` on: the logit x of each token that ends the sequence gains
    `|x| * (factor ** (position - start) - 1)`, as in transformers and LightLLM."""

    start: int
    """At least 0."""
    factor: float
    """At least 1."""


class SamplingParams(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the next token is chosen. A pure function of these, the output ids and the logits (R9)."""

    temperature: float = 1.0
    """0 is greedy: argmax, no noise."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    """Multiplicative, over output tokens and, by `prompt_penalty`, the prompt's (CTRL, arXiv 1909.05858)."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    prompt_penalty: PromptPenalty = PromptPenalty.REPETITION
    length_penalty: LengthPenalty | None = None
    seed: int = 0
    """64 bits. The gateway draws one when the client gave none, so every attempt repeats the same noise."""
    logit_bias: dict[int, float] = {}
    allowed_token_ids: tuple[int, ...] = ()
    """Empty allows all."""
    bad_sequences: tuple[tuple[int, ...], ...] = ()
    """The output never holds one of these: the last id of each is ruled out behind the ids before it."""
    num_logprobs: int | None = None
    """None: no log-probabilities. k: the chosen token's and the k most likely ones'."""
    num_prompt_logprobs: int | None = None
    """The same for the prompt's own tokens (`services.common.prompt_logprobs`)."""
    grammar: GrammarSpec | None = None
    """Tokens that it does not allow are never chosen; the model's end is allowed where it may end."""


class StopParams(msgspec.Struct, frozen=True, omit_defaults=True):
    """When a sequence ends. The engine applies ids and lengths, the control process applies strings (R10)."""

    max_new_tokens: int
    min_new_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()
    include_stop_string: bool = False
    ignore_eos: bool = False
    include_eos: bool = False
    """Leave the text of the model's end in the output; special tokens have none unless they are shown."""


class TextParams(msgspec.Struct, frozen=True, omit_defaults=True):
    """How output ids become text."""

    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True


class Request(msgspec.Struct, frozen=True):
    """One validated, tokenized request. Immutable for all its attempts."""

    request_id: str
    """128 random bits as 32 hex digits, made by the gateway."""
    model: str
    prompt_ids: list[int]
    """At least one id, each in [0, vocab_size)."""
    sampling: SamplingParams
    stop: StopParams
    text: TextParams = TextParams()
    num_choices: int = 1
    priority: int = 0
    """Lower runs first."""
    client_request_id: str = ""
    """The client's own label; appears in logs only."""
    queue_budget_s: float = 60.0
    """How long it may wait before its prefill starts."""
    deadline_s: float = 600.0
    """How long it may take in all, from the gateway's acceptance."""
    caller: str = ""
    """Name of the API key it came with; empty where none is needed. Output lengths are predicted by caller."""
    traceparent: str = ""
    """W3C trace context of the gateway's span; empty where the request is not traced."""


class TokenLogprob(msgspec.Struct, frozen=True):
    """Log-probability of one output token after temperature-free softmax of the raw logits."""

    token_id: int
    logprob: float
    top: list[tuple[int, float]] = []
    """The most likely (token id, logprob), best first."""


class Finish(msgspec.Struct, frozen=True):
    """The end of one sequence."""

    reason: FinishReason
    num_output_tokens: int
    """Tokens that count: what lies beyond is dropped by whoever holds it (R10)."""
    stop_reason: str | int | None = None
    """The stop string or stop token id that matched."""
    message: str = ""
    """For ERROR and ABORT: what happened, for a person."""


class Delta(msgspec.Struct, frozen=True, gc=False):
    """Consecutive output tokens of one choice. Never splits a UTF-8 character."""

    choice: int
    first_index: int
    """Output position of `token_ids[0]`, from 0."""
    token_ids: list[int]
    text: str
    """The text these tokens make visible; may be empty while a character or a possible stop string is held back."""
    logprobs: list[TokenLogprob] | None = None
    finish: Finish | None = None
    text_lengths: tuple[int, ...] = ()
    """Characters of `text` that each token made visible, in order, so that a delta can be cut between tokens. What
    `text` has beyond their sum was held back and became visible by `finish`."""
