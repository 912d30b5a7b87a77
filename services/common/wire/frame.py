"""New output of one step: `DeltaFrame`. Nearly all of it is one token a sequence, which travels in columns."""

from services.common.ipc import AttemptKey
from services.common.messages import AttemptDelta, Deltas
from services.common.request import Delta
from services.common.wire.errors import WireError, require
from services.common.wire.generation import delta_from_proto, delta_to_proto
from services.common.wire.names import key_from_proto, key_to_proto
from sluice.v1 import worker_pb2 as pb


def frame_to_proto(frame: Deltas) -> pb.DeltaFrame:
    """Inverse of `frame_from_proto`, but for the order of different choices."""
    if not frame.in_columns:
        return pb.DeltaFrame(deltas=[_one_to_proto(one) for one in frame.deltas])
    tokens: list[AttemptDelta] = []
    others: list[AttemptDelta] = []
    for one in frame.deltas:
        (tokens if _is_token(one.delta) else others).append(one)
    return pb.DeltaFrame(deltas=[_one_to_proto(one) for one in others], columns=_columns(tokens))


def frame_from_proto(proto: pb.DeltaFrame) -> Deltas:
    """WireError when a key is incomplete or columns differ in length."""
    deltas = [AttemptDelta(key_from_proto(one.key), delta_from_proto(one.delta)) for one in proto.deltas]
    if not proto.HasField("columns"):
        return Deltas(deltas)
    return Deltas([*_tokens(proto.columns), *deltas], in_columns=True)


def _one_to_proto(one: AttemptDelta) -> pb.AttemptDelta:
    return pb.AttemptDelta(key=key_to_proto(one.key), delta=delta_to_proto(one.delta))


def _is_token(delta: Delta) -> bool:
    return (
        len(delta.token_ids) == 1
        and delta.logprobs is None
        and delta.finish is None
        and delta.text_lengths == (len(delta.text),)
    )


def _columns(tokens: list[AttemptDelta]) -> pb.TokenColumns:
    return pb.TokenColumns(
        request_ids=[one.key.request_id for one in tokens],
        attempts=[one.key.attempt for one in tokens],
        choices=[one.delta.choice for one in tokens],
        first_indexes=[one.delta.first_index for one in tokens],
        token_ids=[one.delta.token_ids[0] for one in tokens],
        texts=[one.delta.text for one in tokens],
    )


def _tokens(proto: pb.TokenColumns) -> list[AttemptDelta]:
    request_ids, attempts = list(proto.request_ids), list(proto.attempts)
    require(all(request_ids), "deltas.columns.request_ids")
    require(all(attempts), "deltas.columns.attempts")
    columns = (request_ids, attempts, proto.choices, proto.first_indexes, proto.token_ids, proto.texts)
    try:
        return [
            AttemptDelta(AttemptKey(request_id, attempt), Delta(choice, first, [token], text, None, None, (len(text),)))
            for request_id, attempt, choice, first, token, text in zip(*columns, strict=True)
        ]
    except ValueError as error:
        raise WireError(f"columns of deltas differ in length: {error}", param="deltas.columns") from error
