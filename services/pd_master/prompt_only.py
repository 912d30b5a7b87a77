"""Requests for no tokens at all, which ask what the model says of their prompt. Workers have a token from each
sequence: it is dropped in the gateway, and not counted."""

import msgspec

from services.common.request import Delta, Finish, FinishReason, Request

FAILURES = (FinishReason.ERROR, FinishReason.ABORT)


def of_one_token(request: Request) -> Request:
    """The request as workers take it."""
    return msgspec.structs.replace(request, stop=msgspec.structs.replace(request.stop, max_new_tokens=1))


def bare_ends(deltas: list[Delta]) -> list[Delta]:
    """The ends of choices without their output, each at its limit; failures as they are."""
    return [Delta(delta.choice, 0, [], "", finish=_end(delta.finish)) for delta in deltas if delta.finish is not None]


def _end(finish: Finish) -> Finish:
    return finish if finish.reason in FAILURES else Finish(FinishReason.LENGTH, num_output_tokens=0)
