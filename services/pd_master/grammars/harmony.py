"""gpt-oss: messages on channels. The last one, an answer or a call, has the form that is asked for; those before it,
the analysis and what is said ahead of a call, are free.

A call ends the model's turn, so there is one, and what ends it is one of the model's own ends: it is in no grammar.
"""

from services.pd_master.grammars.forms import ANY_TEXT, Format, SpecialId, either, mark, sequence, text
from services.pd_master.parsers.harmony import CHANNEL, MESSAGE, START

_END = "<|end|>"
_CONSTRAIN = "<|constrain|>"


def answer(form: Format, special_id: SpecialId) -> Format:
    """An answer on the final channel."""
    return sequence(_before(special_id, "analysis"), _message(special_id, text("final"), form))


def forced_calls(calls: list[tuple[str, Format]], special_id: SpecialId) -> Format:
    """One call. calls: function names with what their arguments look like."""
    return sequence(_before(special_id, "analysis", "commentary"), _any_call(calls, special_id))


def answer_or_call(form: Format, calls: list[tuple[str, Format]], special_id: SpecialId) -> Format:
    """An answer on the final channel, or a call."""
    final = _message(special_id, text("final"), form)
    return sequence(_before(special_id, "analysis", "commentary"), either([final, _any_call(calls, special_id)]))


def _any_call(calls: list[tuple[str, Format]], special_id: SpecialId) -> Format:
    def call(name: str, arguments: Format) -> Format:
        head = sequence(text(f"commentary to=functions.{name} "), mark(special_id, _CONSTRAIN), text("json"))
        return _message(special_id, head, arguments)

    return either([call(name, arguments) for name, arguments in calls])


def _before(special_id: SpecialId, *channels: str) -> Format:
    """Any number of whole messages on these channels, and the beginning of the next one."""
    again = sequence(mark(special_id, START), text("assistant"))
    free = {"type": "tag", "begin": "", "content": ANY_TEXT, "end": _end(special_id)}
    whole = [sequence(_message(special_id, text(channel), free), again) for channel in channels]
    return {"type": "star", "content": either(whole)}


def _end(special_id: SpecialId) -> Format | str:
    token = special_id(_END)
    return _END if token is None else {"type": "token", "token": token}


def _message(special_id: SpecialId, head: Format, content: Format) -> Format:
    return sequence(mark(special_id, CHANNEL), head, mark(special_id, MESSAGE), content)
