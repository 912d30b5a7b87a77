"""Everything that crosses between pods survives the wire, and what cannot be read is refused by name."""

import enum
import types
from collections.abc import Callable
from typing import Any, Union, get_args, get_origin

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common import messages, peer_messages, wire
from services.common.ipc import AttemptKey
from services.common.request import Delta, Request, SamplingParams, StopParams
from sluice.v1 import reservation_pb2, types_pb2, worker_pb2

ID = "ab" * 16
KEY = AttemptKey(ID, 1)


def values_of(kind: Any) -> st.SearchStrategy[Any]:  # noqa: ANN401 - a type annotation of any form
    """Any value of a domain type, its collections not empty."""
    if kind is AttemptKey:
        return st.builds(AttemptKey, st.integers(0, 2**128 - 1).map("{:032x}".format), st.integers(1, 2**31 - 1))
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return st.fixed_dictionaries({field.name: values_of(field.type) for field in msgspec.structs.fields(kind)}).map(
            lambda fields: kind(**fields)
        )
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return st.sampled_from(kind)
    simple: dict[Any, st.SearchStrategy[Any]] = {
        int: st.integers(1, 2**31 - 1),
        float: st.floats(1e-3, 1e6),
        str: st.text(min_size=1, max_size=8),
        bool: st.booleans(),
        bytes: st.binary(min_size=1, max_size=8),
        type(None): st.none(),
    }
    return simple[kind] if kind in simple else _values_of_generic(get_origin(kind), get_args(kind))


def _values_of_generic(origin: Any, arguments: tuple[Any, ...]) -> st.SearchStrategy[Any]:  # noqa: ANN401
    if origin is list:
        return st.lists(values_of(arguments[0]), min_size=1, max_size=3)
    if origin is dict:
        return st.dictionaries(values_of(arguments[0]), values_of(arguments[1]), min_size=1, max_size=3)
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(values_of(arguments[0]), min_size=1, max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*[values_of(one) for one in arguments])
    assert origin in {Union, types.UnionType}, origin
    return st.one_of([values_of(one) for one in arguments])


def crosses_unchanged(message: Any, to_proto: Callable[[Any], Any], from_proto: Callable[[Any], Any]) -> bool:  # noqa: ANN401
    """Send a message through real bytes."""
    proto = to_proto(message)
    return bool(from_proto(type(proto).FromString(proto.SerializeToString())) == message)


def redirects_forward(message: Any) -> bool:  # noqa: ANN401
    """Whether a redirect names a later attempt, which is the only kind that is read."""
    return not isinstance(message, messages.Redirect) or message.new_attempt > message.key.attempt


@given(values_of(messages.MasterMessage).filter(redirects_forward))
def test_master_messages_cross_unchanged(message: messages.MasterMessage) -> None:
    assert crosses_unchanged(message, wire.master_message_to_proto, wire.master_message_from_proto)


def leaves_the_order(message: Any) -> bool:  # noqa: ANN401
    """Whether a message is no frame in columns, which puts single tokens first."""
    return not isinstance(message, messages.Deltas) or not message.in_columns


@given(values_of(messages.WorkerMessage).filter(leaves_the_order))
def test_worker_messages_cross_unchanged(message: messages.WorkerMessage) -> None:
    assert crosses_unchanged(message, wire.worker_message_to_proto, wire.worker_message_from_proto)


@given(st.lists(values_of(messages.MasterMessage).filter(redirects_forward), min_size=1, max_size=5), st.booleans())
def test_what_masters_say_at_once_is_read_in_its_order(said: list[messages.MasterMessage], in_batches: bool) -> None:
    protos = list(wire.master_messages_to_protos(said, in_batches=in_batches))
    assert len(protos) == (1 if in_batches else len(said))
    assert [message for proto in protos for message in wire.master_messages_from_proto(proto)] == said


@given(st.lists(values_of(messages.WorkerMessage).filter(leaves_the_order), min_size=1, max_size=5), st.booleans())
def test_what_workers_say_at_once_is_read_in_its_order(said: list[messages.WorkerMessage], in_batches: bool) -> None:
    protos = list(wire.worker_messages_to_protos(said, in_batches=in_batches))
    assert len(protos) == (1 if in_batches else len(said))
    assert [message for proto in protos for message in wire.worker_messages_from_proto(proto)] == said


def test_long_prompts_do_not_add_up_to_a_message_that_is_too_large() -> None:
    long = Request(ID, "m", [40_000] * 1_000_000, SamplingParams(), StopParams(1))
    submit = messages.Submit(KEY, long, (0,), [], None, 0.0)
    said: list[messages.MasterMessage] = [messages.Abort([KEY]), submit, submit, messages.Abort([KEY])]
    protos = list(wire.master_messages_to_protos(said, in_batches=True))
    assert [len(wire.master_messages_from_proto(proto)) for proto in protos] == [1, 1, 1, 1]


@given(values_of(peer_messages.PrefillMessage))
def test_prefill_messages_cross_unchanged(message: peer_messages.PrefillMessage) -> None:
    assert crosses_unchanged(message, wire.prefill_message_to_proto, wire.prefill_message_from_proto)


@given(values_of(peer_messages.DecodeMessage))
def test_decode_messages_cross_unchanged(message: peer_messages.DecodeMessage) -> None:
    assert crosses_unchanged(message, wire.decode_message_to_proto, wire.decode_message_from_proto)


def token_of(choice: int, text: str) -> messages.AttemptDelta:
    return messages.AttemptDelta(KEY, Delta(choice, 7, [9], text, text_lengths=(len(text),)))


@given(st.lists(st.one_of(values_of(messages.AttemptDelta), st.builds(token_of, st.integers(0, 3), st.text()))))
def test_frames_in_columns_hold_the_same_deltas_single_tokens_first(deltas: list[messages.AttemptDelta]) -> None:
    proto = wire.worker_message_to_proto(messages.Deltas(deltas, in_columns=True))
    read = wire.worker_message_from_proto(type(proto).FromString(proto.SerializeToString()))
    assert isinstance(read, messages.Deltas)
    num_tokens = len(deltas) - len(proto.deltas.deltas)
    ahead, behind = read.deltas[:num_tokens], read.deltas[num_tokens:]
    assert ahead == [one for one in deltas if one in ahead]
    assert behind == [one for one in deltas if one not in ahead]
    assert all(one.delta.text_lengths == (len(one.delta.text),) and one.delta.finish is None for one in ahead)


def test_tokens_of_a_step_travel_in_columns_alone() -> None:
    frame = messages.Deltas([token_of(0, " a"), token_of(1, "")], in_columns=True)
    proto = wire.worker_message_to_proto(frame)
    assert not proto.deltas.deltas
    assert crosses_unchanged(frame, wire.worker_message_to_proto, wire.worker_message_from_proto)


@given(st.integers(0, 2**64 - 1))
def test_every_64_bit_seed_crosses(seed: int) -> None:
    assert crosses_unchanged(SamplingParams(seed=seed), wire.sampling_to_proto, wire.sampling_from_proto)


@pytest.mark.parametrize(
    "message",
    [
        messages.Abort([]),
        messages.Peers([]),
        messages.Submit(KEY, Request(ID, "m", [0], SamplingParams(0.0), StopParams(1)), (0,), [], None, 0.0),
    ],
)
def test_empty_parts_cross(message: messages.MasterMessage) -> None:
    assert crosses_unchanged(message, wire.master_message_to_proto, wire.master_message_from_proto)


def test_delta_without_tokens_crosses() -> None:
    assert crosses_unchanged(Delta(0, 7, [], ""), wire.delta_to_proto, wire.delta_from_proto)


def test_absent_parameters_of_a_public_request_are_neutral() -> None:
    sampling = wire.sampling_from_proto(types_pb2.SamplingParams())
    assert sampling == SamplingParams()
    assert wire.text_from_proto(types_pb2.TextParams()).skip_special_tokens
    assert wire.stop_from_proto(types_pb2.StopParams(), default_max_new_tokens=9).max_new_tokens == 9


def _submit(**fields: Any) -> worker_pb2.WorkerServiceSessionRequest:
    return worker_pb2.WorkerServiceSessionRequest(submit=worker_pb2.SubmitAttempt(**fields))


def _columns(**fields: Any) -> worker_pb2.WorkerServiceSessionResponse:
    frame = worker_pb2.DeltaFrame(columns=worker_pb2.TokenColumns(**fields))
    return worker_pb2.WorkerServiceSessionResponse(deltas=frame)


NAMED = worker_pb2.AttemptKey(request_id=ID, attempt=1)
EVENT = worker_pb2.AttemptEvent


@pytest.mark.parametrize(
    ("proto", "field"),
    [
        (worker_pb2.WorkerServiceSessionRequest(), "message"),
        (_submit(), "submit.choices"),
        (_submit(choices=[0]), "key.request_id"),
        (_submit(choices=[0], key=worker_pb2.AttemptKey(request_id=ID)), "key.attempt"),
        (_submit(choices=[0], key=worker_pb2.AttemptKey(request_id=f"{ID}.1", attempt=1)), "key.request_id"),
        (_submit(choices=[0], key=NAMED), "request.request_id"),
        (
            _submit(choices=[0], key=NAMED, request=worker_pb2.GenerationRequest(request_id=ID, prompt_ids=[1])),
            "stop.max_new_tokens",
        ),
        (
            worker_pb2.WorkerServiceSessionRequest(redirect=worker_pb2.RedirectAttempt(key=NAMED, new_attempt=1)),
            "redirect.new_attempt",
        ),
    ],
)
def test_master_message_that_cannot_be_read_names_the_field(
    proto: worker_pb2.WorkerServiceSessionRequest, field: str
) -> None:
    with pytest.raises(wire.WireError) as caught:
        wire.master_message_from_proto(proto)
    assert caught.value.param == field


@pytest.mark.parametrize(
    ("proto", "field"),
    [
        (worker_pb2.WorkerServiceSessionResponse(), "message"),
        (worker_pb2.WorkerServiceSessionResponse(event=EVENT(key=NAMED)), "event"),
        (
            worker_pb2.WorkerServiceSessionResponse(event=EVENT(key=NAMED, failed=worker_pb2.AttemptFailed())),
            "failed.cause",
        ),
        (
            worker_pb2.WorkerServiceSessionResponse(
                hello=worker_pb2.WorkerHello(worker=worker_pb2.WorkerRef(worker_id="w", incarnation="1"), role=99)  # type: ignore[arg-type]
            ),
            "hello.role",
        ),
        (_columns(request_ids=[ID], attempts=[1], choices=[0]), "deltas.columns"),
        (_columns(request_ids=[""], attempts=[1]), "deltas.columns.request_ids"),
        (_columns(request_ids=[ID], attempts=[0]), "deltas.columns.attempts"),
    ],
)
def test_worker_message_that_cannot_be_read_names_the_field(
    proto: worker_pb2.WorkerServiceSessionResponse, field: str
) -> None:
    with pytest.raises(wire.WireError) as caught:
        wire.worker_message_from_proto(proto)
    assert caught.value.param == field


def test_a_batch_in_a_batch_cannot_be_read() -> None:
    inner = worker_pb2.WorkerServiceSessionRequest(batch=worker_pb2.SessionRequestBatch())
    batch = worker_pb2.SessionRequestBatch(messages=[inner])
    with pytest.raises(wire.WireError, match="no known kind"):
        wire.master_messages_from_proto(worker_pb2.WorkerServiceSessionRequest(batch=batch))


def test_reservation_messages_that_cannot_be_read_name_the_field() -> None:
    with pytest.raises(wire.WireError, match=r"handover\.first"):
        wire.prefill_message_from_proto(
            reservation_pb2.ReservationServiceSessionRequest(handover=reservation_pb2.Handover(key=NAMED))
        )
    with pytest.raises(wire.WireError, match=r"denied\.reason"):
        wire.decode_message_from_proto(
            reservation_pb2.ReservationServiceSessionResponse(denied=reservation_pb2.Denied(key=NAMED))
        )
