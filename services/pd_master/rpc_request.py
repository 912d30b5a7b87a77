"""A gRPC call becomes a request, checked as strictly as an HTTP body: protobuf carries types, not bounds."""

from typing import Any

import msgspec

from services.common.config import GatewayConfig
from services.common.errors import InvalidRequestError
from services.common.gateway_messages import CallOptions, ChatTurn, CountCall, GenerationCall
from services.common.request import GrammarSpec, Request, SamplingParams, StopParams
from services.pd_master import checks
from services.pd_master.backend import ServedModel
from services.pd_master.gateway import Target, new_request_id
from services.pd_master.grammars.source import checked_spec
from services.pd_master.tokenizer import encode_bounded

ROLES = ("system", "user", "assistant", "tool")
MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 10
MAX_BAD_SEQUENCES = 512


def build_request(call: GenerationCall, target: Target, config: GatewayConfig, remaining_s: float | None) -> Request:
    """Tokenizes, so it runs in a tokenizer thread. `remaining_s`: until the call's own deadline.

    Raises InvalidRequestError and ContextLengthError naming the proto's field.
    """
    model, options = target.model, call.options
    _check_options(options)
    num_choices = checks.choice_count(options.num_choices, config, param="options.num_choices")
    _check_sampling(call.sampling, model)
    _check_stop(call.stop, model)
    prompt_ids = _prompt_ids(call, target)
    max_new = checks.fit_output(
        len(prompt_ids), call.max_new_tokens, target, param="stop.max_new_tokens", num_choices=num_choices
    )
    checks.check_prompt_logprobs(
        len(prompt_ids), call.sampling.num_prompt_logprobs, param="sampling.num_prompt_logprobs"
    )
    if call.stop.min_new_tokens > max_new:
        raise _at("stop.min_new_tokens", f"more than the {max_new} tokens that may be generated")
    deadlines = (config.deadline_s, options.deadline_s, remaining_s)
    return Request(
        request_id=new_request_id(),
        model=model.name,
        prompt_ids=prompt_ids,
        sampling=msgspec.structs.replace(
            call.sampling,
            seed=checks.seed_of(call.seed),
            temperature=checks.temperature_of(call.sampling.temperature),
            grammar=_grammar(call),
        ),
        stop=msgspec.structs.replace(call.stop, max_new_tokens=max_new),
        text=call.text,
        num_choices=num_choices,
        priority=options.priority,
        client_request_id=options.client_request_id,
        queue_budget_s=options.queue_budget_s or config.queue_budget_s,
        deadline_s=min(limit for limit in deadlines if limit is not None),
    )


def _grammar(call: GenerationCall) -> GrammarSpec | None:
    given = call.sampling.grammar
    if given is None:
        return None
    _require(not call.sampling.allowed_token_ids, "sampling.allowed_token_ids", "cannot be combined with a grammar")
    _require(not call.sampling.bad_sequences, "sampling.bad_sequences", "cannot be combined with a grammar")
    _require(not call.stop.min_new_tokens, "stop.min_new_tokens", "cannot be combined with a grammar")
    _require(not call.stop.ignore_eos, "stop.ignore_eos", "cannot be combined with a grammar")
    return checked_spec(given, "sampling.grammar.source")


def count_tokens(call: CountCall, target: Target) -> int:
    """Tokens of a text or a conversation; runs in a tokenizer thread."""
    if isinstance(call.input, str):
        return len(target.text.encode(call.input))
    return len(target.text.encode(_render(call.input, "", target), add_special_tokens=False))


def _prompt_ids(call: GenerationCall, target: Target) -> list[int]:
    limit = target.model.max_context_tokens
    if isinstance(call.input, str):
        return encode_bounded(target.text, call.input, limit, param="text")
    turns = [turn for turn in call.input if isinstance(turn, ChatTurn)]
    if turns:
        text = _render(turns, call.template_kwargs_json, target)
        return encode_bounded(target.text, text, limit, param="messages", special=False)
    ids = [token for token in call.input if isinstance(token, int)]
    return checks.checked_prompt_ids(ids, target.model, "token_ids.ids")


def _render(turns: list[ChatTurn], kwargs_json: str, target: Target) -> str:
    messages: list[dict[str, Any]] = []
    for at, turn in enumerate(turns):
        if turn.role not in ROLES:
            raise _at(f"messages[{at}].role", f"must be one of {', '.join(ROLES)}")
        message = {"role": turn.role, "content": turn.content, "name": turn.name}
        messages.append({name: value for name, value in message.items() if name == "content" or value})
    return target.text.template().render(messages, extra=_template_kwargs(kwargs_json))


def _template_kwargs(kwargs_json: str) -> dict[str, Any]:
    if not kwargs_json:
        return {}
    try:
        kwargs: dict[str, Any] = msgspec.json.decode(kwargs_json, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise _at("chat_template_kwargs_json", f"not a JSON object: {error}") from error
    checks.check_template_kwargs(kwargs, "chat_template_kwargs_json")
    return kwargs


def _check_options(options: CallOptions) -> None:
    _require(options.num_choices > 0, "options.num_choices", "must be at least 1")
    _require(len(options.client_request_id) <= 256, "options.client_request_id", "longer than 256 characters")
    _require(options.queue_budget_s is None or options.queue_budget_s > 0, "options.queue_budget_s", "must be > 0")
    _require(options.deadline_s is None or options.deadline_s > 0, "options.deadline_s", "must be > 0")


def _check_sampling(params: SamplingParams, model: ServedModel) -> None:
    _require(0 <= params.temperature <= 100, "sampling.temperature", "must be in [0, 100]")
    _require(params.top_k >= 0, "sampling.top_k", "must not be negative")
    _require(0 < params.top_p <= 1, "sampling.top_p", "must be in (0, 1]")
    _require(0 <= params.min_p <= 1, "sampling.min_p", "must be in [0, 1]")
    _require(0 < params.repetition_penalty <= 100, "sampling.repetition_penalty", "must be in (0, 100]")
    _require(-2 <= params.presence_penalty <= 2, "sampling.presence_penalty", "must be in [-2, 2]")
    _require(-2 <= params.frequency_penalty <= 2, "sampling.frequency_penalty", "must be in [-2, 2]")
    biases = params.logit_bias.values()
    _require(all(-100 <= bias <= 100 for bias in biases), "sampling.logit_bias", "must be in [-100, 100]")
    top = params.num_logprobs
    _require(top is None or 0 <= top <= MAX_LOGPROBS, "sampling.num_logprobs", f"must be in [0, {MAX_LOGPROBS}]")
    num = params.num_prompt_logprobs
    _require(num is None or 0 <= num <= MAX_LOGPROBS, "sampling.num_prompt_logprobs", f"must be in [0, {MAX_LOGPROBS}]")
    length = params.length_penalty
    _require(length is None or length.start >= 0, "sampling.length_penalty.start", "must not be negative")
    _require(length is None or 1 <= length.factor <= 100, "sampling.length_penalty.factor", "must be in [1, 100]")
    _check_bad_sequences(params.bad_sequences, model)
    checks.check_ids(params.logit_bias, model, "sampling.logit_bias")
    checks.check_ids(params.allowed_token_ids, model, "sampling.allowed_token_ids")


def _check_bad_sequences(sequences: tuple[tuple[int, ...], ...], model: ServedModel) -> None:
    _require(len(sequences) <= MAX_BAD_SEQUENCES, "sampling.bad_sequences", f"more than {MAX_BAD_SEQUENCES}")
    for at, ids in enumerate(sequences):
        field = f"sampling.bad_sequences[{at}].ids"
        _require(1 <= len(ids) <= checks.MAX_BAD_TOKENS, field, f"must be 1 to {checks.MAX_BAD_TOKENS} ids")
        checks.check_ids(ids, model, field)


def _check_stop(params: StopParams, model: ServedModel) -> None:
    _require(params.max_new_tokens > 0, "stop.max_new_tokens", "must be at least 1")
    _require(params.min_new_tokens >= 0, "stop.min_new_tokens", "must not be negative")
    checks.check_ids(params.stop_token_ids, model, "stop.stop_token_ids")
    strings = params.stop_strings
    _require(len(strings) <= MAX_STOP_STRINGS, "stop.stop_strings", f"more than {MAX_STOP_STRINGS}")
    _require(all(strings), "stop.stop_strings", "holds an empty string")
    _require(all(len(string) <= 256 for string in strings), "stop.stop_strings", "holds one over 256 characters")


def _require(holds: bool, field: str, problem: str) -> None:
    if not holds:
        raise _at(field, problem)


def _at(field: str, problem: str) -> InvalidRequestError:
    return InvalidRequestError(f"{field}: {problem}", param=field)
