"""Random requests of every API and feature, all from one source of chance."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tests.engine.schemas import random_schema
from tests.faults.chaos.tool_cases import LONGEST, chat_tools, messages_tools, responses_tools
from tests.integration.prompts import CHAT, LONG, PLAIN

MAX_TOKENS = (1, 1, 2, 3, 8, 24, 60, 120, 200, 300, 300, 300)
SHARED = (0, 0, 40, 129, 300, 420)
"""Characters of a long text that prompts begin with, some alike."""
REGEXES = (r"[a-f]{8}(,[a-f]{8}){0,9}", r"\d{3}-\d{4}", r"(yes|no|maybe){1,20}", r"[^z]{0,60}z")
CHOICES = (["red", "green", "blue"], ["one two three", "one two four"], ["x"])
STOPS = ("e", "qu", "th", "\n", "é", "ab", "<", "0", "xyz")
BAD_WORDS = ("a", "the", "qu", "1", "<")
UNFORCED = ("min_tokens", "ignore_eos", "bad_words")
"""What cannot be combined with a call that is forced."""
GRAMMAR_SHARE, HANG_UP_SHARE = 0.2, 0.12


@dataclass(frozen=True, slots=True)
class Case:
    """One request. The same case is sent many times, and gives the same answer each time (R9)."""

    number: int
    api: str
    """A path of HTTP, or `rpc` for Generate of gRPC."""
    body: dict[str, Any]
    is_stream: bool
    num_choices: int = 1
    hang_up_after: int | None = field(default=None, compare=False)
    """Events of a stream, or hundredths of a second for a whole answer, after which the client is gone."""

    def staying(self) -> "Case":
        """The same without the hanging up."""
        return replace(self, hang_up_after=None)


class Chance(random.Random):
    """The one source of a round's cases."""

    longest = max(MAX_TOKENS)
    """The most output tokens a case asks for."""

    has_tools = False
    """Whether the model's template knows tools and thoughts."""

    def length(self) -> int:
        """How many a case asks for at most."""
        return min(self.choice(MAX_TOKENS), self.longest)


def random_cases(seed: int, count: int, longest: int, model: str, *, has_tools: bool) -> list[Case]:
    """Equal seeds give equal cases, but that none asks for more than `longest` tokens. Hanging up is part of the
    sending, not of the case."""
    chance = Chance(seed)
    chance.longest, chance.has_tools = longest, has_tools
    return [_case(chance, number, model) for number in range(count)]


def hang_up_or_stay(case: Case, chance: random.Random) -> Case:
    """Some clients of every API go away in the middle."""
    if chance.random() >= HANG_UP_SHARE:
        return case
    return replace(case, hang_up_after=chance.choice((0, 1, 2, 5, 20, 50)))


def _case(chance: Chance, number: int, model: str) -> Case:
    make = chance.choices(list(_APIS), list(_APIS.values()))[0]
    case = make(chance, number)
    if case.api != "rpc" and not case.api.startswith("/generate"):
        case.body["model"] = model
    return case


# -------------------------------------------------------------------------------------------------------------- parts


def _texts(chance: Chance) -> tuple[str, str]:
    """A beginning that prompts share, and what follows it."""
    return LONG[: chance.choice(SHARED)], chance.choice(CHAT + PLAIN)[:80]


def _how(chance: Chance) -> dict[str, Any]:
    """Sampling, by the names that OpenAI's APIs have for it."""
    if chance.random() < 0.35:
        how: dict[str, Any] = {"temperature": 0.0}
    else:
        how = {"temperature": chance.choice((1.0, 1.0, 0.7, 1.4)), "seed": chance.randrange(2**40)}
        how |= _some(chance, 0.15, top_p=0.9, top_k=20, min_p=0.02)
    how |= _some(chance, 0.15, presence_penalty=0.8, frequency_penalty=0.6, repetition_penalty=1.3)
    if chance.random() < 0.15:
        how["logit_bias"] = {str(chance.randrange(200)): chance.choice((-100, -3, 4)) for _ in range(3)}
    return how


def _some(chance: Chance, share: float, **fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if chance.random() < share}


def _ends(chance: Chance) -> dict[str, Any]:
    """Where the output ends, and what it must not hold."""
    most = chance.length()
    ends: dict[str, Any] = {"max_tokens": most, "stop": chance.sample(STOPS, 2), "min_tokens": min(most, 12)}
    ends |= {"ignore_eos": True, "bad_words": chance.sample(BAD_WORDS, 2), "include_stop_str_in_output": True}
    return {"max_tokens": most} | {name: ends[name] for name in ends if chance.random() < 0.25}


def _form(chance: Chance) -> dict[str, Any]:
    """A grammar; a rare one does not compile, and is the client's error wherever it runs."""
    kind = chance.choice(("guided_json", "guided_json", "guided_regex", "guided_choice"))
    if kind == "guided_json":
        return {kind: random_schema(chance.randrange(200))}
    if kind == "guided_choice":
        return {kind: chance.choice(CHOICES)}
    return {kind: "(a" if chance.random() < 0.1 else chance.choice(REGEXES)}


def _openai(chance: Chance, *, stream: bool) -> dict[str, Any]:
    body: dict[str, Any] = {"n": chance.choice((1, 1, 1, 2, 3, 4)), "stream": stream, **_how(chance)}
    if chance.random() < GRAMMAR_SHARE:
        body |= {"max_tokens": chance.length(), **_form(chance)}
    else:
        body |= _ends(chance)
    if stream:
        body["stream_options"] = {"include_usage": True}
    elif chance.random() < 0.15:
        body["prompt_logprobs"] = chance.choice((0, 2))
    return body | _some(chance, 0.2, priority=chance.choice((-3, 5)))


# --------------------------------------------------------------------------------------------------------------- APIs


def _chat(chance: Chance, number: int) -> Case:
    stream = chance.random() < 0.6
    body = _openai(chance, stream=stream)
    shared, own = _texts(chance)
    body["messages"] = [{"role": "system", "content": shared}, {"role": "user", "content": own}]
    if chance.has_tools and not any(name.startswith("guided_") for name in body):
        body |= chat_tools(chance) | {"max_tokens": min(body["max_tokens"], LONGEST)}
        del body["messages"][0]
        for name in UNFORCED if "tools" in body else ():
            body.pop(name, None)
    if chance.random() < 0.3:
        body |= {"logprobs": True, "top_logprobs": chance.choice((0, 3))}
    return Case(number, "/v1/chat/completions", body, stream, body["n"])


def _completions(chance: Chance, number: int) -> Case:
    stream = chance.random() < 0.6
    body = _openai(chance, stream=stream)
    shared, own = _texts(chance)
    several = chance.random() < 0.15
    body["prompt"] = [shared + own, own] if several else shared + own
    body |= _some(chance, 0.2, echo=True, logprobs=chance.choice((0, 1, 4)))
    if not stream and chance.random() < 0.3:
        body["best_of"] = body["n"] + 1
    return Case(number, "/v1/completions", body, stream, body["n"] * (2 if several else 1))


def _native(chance: Chance, number: int) -> Case:
    stream = chance.random() < 0.6
    how, ends = _how(chance), _ends(chance)
    shared, own = _texts(chance)
    names = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens", "stop": "stop_sequences"}
    given = {names.get(name, name): value for name, value in (how | ends).items()}
    known = {name: value for name, value in given.items() if name not in _NOT_NATIVE}
    known |= {"do_sample": how["temperature"] > 0, "return_details": True}
    known |= _some(chance, 0.15, input_penalty=True, exponential_decay_length_penalty=[5, 1.1])
    count = 1 if stream else chance.choice((1, 1, 2, 4))
    if count > 1:
        known["n"] = count
    elif not stream and chance.random() < 0.2:
        known["prompt_logprobs"] = 1
    path = "/generate_stream" if stream else "/generate"
    return Case(number, path, {"inputs": shared + own, "parameters": known}, stream, count)


_NOT_NATIVE = ("min_p", "bad_words", "include_stop_str_in_output")


def _responses(chance: Chance, number: int) -> Case:
    stream = chance.random() < 0.6
    shared, own = _texts(chance)
    body: dict[str, Any] = {"input": own, "temperature": 0, "max_output_tokens": chance.length()}
    body |= {"stream": stream, "instructions": shared or None}
    if chance.random() < GRAMMAR_SHARE:
        schema = random_schema(chance.randrange(200))
        body["text"] = {"format": {"type": "json_schema", "name": "s", "schema": schema}}
    elif chance.has_tools:
        body |= responses_tools(chance)
        body |= {"instructions": None, "max_output_tokens": min(body["max_output_tokens"], LONGEST)}
    return Case(number, "/v1/responses", body, stream)


def _messages(chance: Chance, number: int) -> Case:
    stream = chance.random() < 0.6
    shared, own = _texts(chance)
    body: dict[str, Any] = {"max_tokens": chance.length(), "temperature": 0, "stream": stream}
    body["messages"] = [{"role": "user", "content": shared + own}]
    body |= _some(chance, 0.3, stop_sequences=chance.sample(STOPS, 2), system=shared or "Be brief.")
    if chance.has_tools:
        body |= messages_tools(chance)
        body |= {"messages": [{"role": "user", "content": own}], "max_tokens": min(body["max_tokens"], LONGEST)}
    return Case(number, "/v1/messages", body, stream)


def _rpc(chance: Chance, number: int) -> Case:
    how, ends = _how(chance), _ends(chance)
    how["logit_bias"] = {int(token): float(bias) for token, bias in how.get("logit_bias", {}).items()}
    if chance.random() < 0.3:
        how["num_logprobs"] = chance.choice((0, 3))
    if chance.random() < 0.15:
        how["num_prompt_logprobs"] = 1
    stop = {"max_new_tokens": ends["max_tokens"], "stop_strings": ends.get("stop", [])}
    stop |= {"min_new_tokens": ends.get("min_tokens", 0), "ignore_eos": ends.get("ignore_eos", False)}
    shared, own = _texts(chance)
    count = chance.choice((1, 1, 2, 3, 4))
    options = {"num_choices": count, "priority": chance.choice((0, 0, -2, 2))}
    return Case(number, "rpc", {"text": shared + own, "sampling": how, "stop": stop, "options": options}, True, count)


_APIS: dict[Callable[[Chance, int], Case], float] = {
    _chat: 3, _completions: 3, _native: 3, _responses: 1, _messages: 1, _rpc: 3,
}  # fmt: skip
