"""A native body becomes a request. Fields at fault are named as `parameters.<name>`."""

from collections.abc import Callable

from services.common.config import GatewayConfig
from services.common.errors import InvalidRequestError
from services.common.request import (
    GrammarSpec,
    LengthPenalty,
    PromptPenalty,
    Request,
    SamplingParams,
    StopParams,
    TextParams,
)
from services.pd_master import checks
from services.pd_master.api.native.schema import GenerateBody, Parameters
from services.pd_master.backend import ServedModel
from services.pd_master.gateway import Target, new_request_id
from services.pd_master.grammars.source import ebnf_grammar, regex_grammar, schema_grammar
from services.pd_master.model_text import ModelText
from services.pd_master.tokenizer import encode_bounded

DEFAULT_MAX_NEW_TOKENS = 16384


def check_body(body: GenerateBody, *, stream: bool) -> None:
    """What types alone do not say. Raises InvalidRequestError naming the field."""
    parameters = body.parameters
    if stream and _count(parameters) > 1:
        raise _at("n", "a stream has one choice on this wire, as in LightLLM")
    if stream and num_prompt_logprobs(parameters) is not None:
        raise _at("prompt_logprobs", "not in a stream")
    for kind, items in (body.multimodal_params or {}).items():
        if items:
            param = f"multimodal_params.{kind}"
            raise InvalidRequestError(f"{param}: the served models read text only", param=param)


def num_prompt_logprobs(parameters: Parameters) -> int | None:
    """Rivals to show of each prompt token; None for no log-probabilities of the prompt, which -1 asks for too."""
    given = parameters.prompt_logprobs
    return None if given is None or given < 0 else given


def build_request(body: GenerateBody, target: Target, config: GatewayConfig, label: str) -> Request:
    """Tokenizes, so it runs in a tokenizer thread. Raises InvalidRequestError and ContextLengthError."""
    parameters, model = body.parameters, target.model
    num_choices = checks.choice_count(_count(parameters), config, param="parameters.n")
    sampling = _sampling(parameters, model)
    prompt_ids = _prompt_ids(body, target)
    checks.check_prompt_logprobs(len(prompt_ids), sampling.num_prompt_logprobs, param="parameters.prompt_logprobs")
    max_new = checks.fit_output(
        len(prompt_ids), parameters.max_new_tokens, target, param="parameters.max_new_tokens",
        num_choices=num_choices, default=DEFAULT_MAX_NEW_TOKENS,
    )  # fmt: skip
    return Request(
        request_id=new_request_id(),
        model=model.name,
        prompt_ids=prompt_ids,
        sampling=sampling,
        stop=_stop(parameters, target, max_new),
        text=TextParams(
            skip_special_tokens=parameters.skip_special_tokens is not False,
            spaces_between_special_tokens=parameters.add_spaces_between_special_tokens is not False,
        ),
        num_choices=num_choices,
        client_request_id=str(parameters.group_request_id or label)[:128],
        queue_budget_s=config.queue_budget_s,
        deadline_s=config.deadline_s,
    )


def _count(parameters: Parameters) -> int:
    """`n` and `best_of` say the same on this wire; one of them is enough."""
    if parameters.n is not None and parameters.best_of is not None and parameters.n != parameters.best_of:
        raise _at("best_of", "must equal n")
    return parameters.n or parameters.best_of or 1


def _prompt_ids(body: GenerateBody, target: Target) -> list[int]:
    if not body.inputs:
        raise InvalidRequestError("inputs: it is empty", param="inputs")
    if isinstance(body.inputs, list):
        return checks.checked_prompt_ids(body.inputs, target.model, "inputs")
    special = body.parameters.add_special_tokens is not False
    return encode_bounded(target.text, body.inputs, target.model.max_context_tokens, param="inputs", special=special)


def _sampling(parameters: Parameters, model: ServedModel) -> SamplingParams:
    checks.check_ids(parameters.logit_bias or (), model, "parameters.logit_bias")
    checks.check_ids(parameters.allowed_token_ids or (), model, "parameters.allowed_token_ids")
    seed = parameters.seed if parameters.seed != -1 else None
    return SamplingParams(
        temperature=checks.temperature_of(parameters.temperature) if parameters.do_sample else 0.0,
        top_k=max(parameters.top_k or 0, 0),
        top_p=parameters.top_p if parameters.top_p is not None else 1.0,
        repetition_penalty=parameters.repetition_penalty if parameters.repetition_penalty is not None else 1.0,
        presence_penalty=parameters.presence_penalty or 0.0,
        frequency_penalty=parameters.frequency_penalty or 0.0,
        prompt_penalty=PromptPenalty.ALL if parameters.input_penalty else PromptPenalty.NONE,
        length_penalty=_length_penalty(parameters),
        seed=checks.seed_of(seed),
        logit_bias=parameters.logit_bias or {},
        allowed_token_ids=tuple(parameters.allowed_token_ids or ()),
        num_logprobs=0,  # every token on this wire shows its own
        num_prompt_logprobs=num_prompt_logprobs(parameters),
        grammar=_grammar(parameters),
    )


def _length_penalty(parameters: Parameters) -> LengthPenalty | None:
    given = parameters.exponential_decay_length_penalty
    return None if given is None or given[1] == 1.0 else LengthPenalty(*given)


_GRAMMARS: dict[str, Callable[[object, str], GrammarSpec]] = {
    "regular_constraint": regex_grammar,
    "guided_grammar": ebnf_grammar,
    "guided_json": schema_grammar,
}


def _grammar(parameters: Parameters) -> GrammarSpec | None:
    given = [name for name in _GRAMMARS if getattr(parameters, name)]
    if not given:
        return None
    if len(given) > 1:
        raise _at(given[1], f"{given[0]} is given too")
    for name in ("min_new_tokens", "ignore_eos", "allowed_token_ids"):
        if getattr(parameters, name):
            raise _at(name, f"cannot be combined with {given[0]}")
    return _GRAMMARS[given[0]](getattr(parameters, given[0]), f"parameters.{given[0]}")


def _stop(parameters: Parameters, target: Target, max_new_tokens: int) -> StopParams:
    if (parameters.min_new_tokens or 0) > max_new_tokens:
        raise _at("min_new_tokens", f"more than the {max_new_tokens} tokens that may be generated")
    given = parameters.stop_sequences or []
    sequences = [given] if isinstance(given, str) else given
    ids = [sequence for sequence in sequences if isinstance(sequence, list)]
    for sequence in ids:
        checks.check_ids(sequence, target.model, "parameters.stop_sequences")
    strings = [sequence for sequence in sequences if isinstance(sequence, str)]
    strings += [_as_string(sequence, target.text) for sequence in ids if len(sequence) > 1]
    return StopParams(
        max_new_tokens=max_new_tokens,
        min_new_tokens=parameters.min_new_tokens or 0,
        stop_token_ids=tuple(sequence[0] for sequence in ids if len(sequence) == 1),
        stop_strings=tuple(strings),
        ignore_eos=parameters.ignore_eos or False,
        include_eos=parameters.print_eos_token or False,
    )


def _as_string(ids: list[int], text: ModelText) -> str:
    """Several ids stop where their text appears; what stands for no whole characters cannot."""
    try:
        string = b"".join([text.vocabulary.piece(token) for token in ids]).decode()
    except UnicodeDecodeError as error:
        raise _at("stop_sequences", f"the ids {ids} stand for a part of a character") from error
    if not string:
        raise _at("stop_sequences", f"the ids {ids} have no text")
    return string


def _at(name: str, problem: str) -> InvalidRequestError:
    return InvalidRequestError(f"parameters.{name}: {problem}", param=f"parameters.{name}")
