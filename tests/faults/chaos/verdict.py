"""Whether an answer from the troubled cluster is the one that the quiet cluster gave (R9), and what may excuse it."""

import math
from collections.abc import Sequence
from typing import Any

from tests.faults.chaos.answers import TRANSPORT, Answer, Call, Choice

LOGPROB_TOLERANCE = 5e-3
"""Batches of other sizes sum in another order."""


def difference(quiet: Answer, got: Answer, *, is_cut: bool) -> str:
    """What differs, empty if nothing does. `is_cut`: the client went away, so what it has is a beginning."""
    if is_cut and not got.is_whole and not got.error:
        return _beginnings(quiet, got)
    if got.status != quiet.status:
        return f"status {got.status} instead of {quiet.status}: {got.error}"
    if got.error or not got.is_whole:
        return "" if got.error and got.status >= 400 else f"it broke off: {got.error}"
    return _answers_differ(quiet, got)


def _answers_differ(quiet: Answer, got: Answer) -> str:
    if sorted(got.choices) != sorted(quiet.choices):
        return f"choices {sorted(got.choices)} instead of {sorted(quiet.choices)}"
    for at, choice in got.choices.items():
        if found := _choices_differ(quiet.choices[at], choice):
            return f"choice {at}: {found}"
    if got.usage != quiet.usage:
        return f"{got.usage} instead of {quiet.usage}"
    return _values_differ("prompt_logprobs", quiet.prompt_logprobs, got.prompt_logprobs)


def is_transport_error(answer: Answer) -> bool:
    """Whether the connection to the master broke."""
    return answer.status == TRANSPORT


def _choices_differ(quiet: Choice, got: Choice) -> str:
    for name in ("ids", "thoughts", "text", "calls", "finish", "stop_reason"):
        expected, found = getattr(quiet, name), getattr(got, name)
        if expected != found:
            return f"{name} {_apart(expected, found)}"
    return _values_differ("logprobs", quiet.logprobs, got.logprobs)


def _apart(expected: Any, found: Any) -> str:  # noqa: ANN401  texts, lists or single values
    if not isinstance(expected, str | list) or not isinstance(found, str | list):
        return f"{found!r} instead of {expected!r}"
    same = next((i for i, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b), None)
    at = min(len(expected), len(found)) if same is None else same
    return (
        f"from {at} on: {found[at : at + 12]!r} instead of {expected[at : at + 12]!r}; "
        f"{len(found)} instead of {len(expected)} in all"
    )


def _values_differ(name: str, expected: Sequence[float], found: Sequence[float]) -> str:
    if len(expected) != len(found):
        return f"{len(found)} {name} instead of {len(expected)}"
    for at, (a, b) in enumerate(zip(expected, found, strict=True)):
        if not math.isclose(a, b, abs_tol=LOGPROB_TOLERANCE):
            return f"{name}[{at}] is {b} instead of {a}"
    return ""


def _beginnings(quiet: Answer, got: Answer) -> str:
    for at, choice in got.choices.items():
        whole = quiet.choices.get(at)
        if whole is None:
            return f"choice {at} should not be there"
        if not whole.text.startswith(choice.text):
            return f"choice {at}: text {_apart(whole.text, choice.text)}"
        if not whole.thoughts.startswith(choice.thoughts):
            return f"choice {at}: thoughts {_apart(whole.thoughts, choice.thoughts)}"
        if whole.ids[: len(choice.ids)] != choice.ids:
            return f"choice {at}: ids {_apart(whole.ids, choice.ids)}"
        if not _begins(whole.calls, choice.calls):
            return f"choice {at}: calls {choice.calls} of {whole.calls}"
    return ""


def _begins(whole: Sequence[Call], got: Sequence[Call]) -> bool:
    """Whether calls are the first of those; the last of them may be a beginning."""
    if not got:
        return True
    *done, last = got
    if done != list(whole[: len(done)]) or len(got) > len(whole):
        return False
    return whole[len(done)].name == last.name and whole[len(done)].arguments.startswith(last.arguments)
