"""The bytes of the protocol, the handshake's judgement and the lanes' names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.ipc import AttemptKey
from services.engine.transfer.config import TransferConfig
from services.engine.transfer.events import PeerAddress
from services.engine.transfer.handshake import client_hello, judge_hello, refusal, server_answer
from services.engine.transfer.heads import HeadRange
from services.engine.transfer.lanes import Lane, allows_cuda_ipc, fastest_lane
from services.engine.transfer.wire import (
    CONTROL_TAG_MASK,
    FRAME_BYTES,
    FRAME_MESSAGES,
    HELLO_BYTES,
    MAX_CHANNEL,
    SHARE_BYTES,
    Control,
    Fate,
    Hello,
    Kind,
    Verdict,
    control_tag,
    pack_frame,
    payload_tag,
    unpack_frame,
)

words = st.integers(0, 2**32 - 1)


channels, ids = st.integers(0, MAX_CHANNEL), st.binary(min_size=16, max_size=16).map(bytes.hex)
describing = st.tuples(
    st.sampled_from([Kind.ANNOUNCE, Kind.PROOF]), channels, words, st.builds(AttemptKey, ids, words),
    words, words, st.integers(0, 2**63), st.none() | words, words,
).map(lambda fields: Control(*fields))  # fmt: skip
others = st.tuples(
    st.sampled_from([Kind.SENT, Kind.TAKEN, Kind.ANSWER, Kind.PROVEN, Kind.PING, Kind.BYE]), channels, words,
    st.sampled_from(Fate), st.floats(0, 2**20, width=32), st.integers(0, 2**16 - 1),
).map(lambda told: Control(told[0], told[1], told[2], fate=told[3], rate=told[4], num_seqs=told[5]))  # fmt: skip


@given(st.lists(describing | others, min_size=1, max_size=FRAME_MESSAGES))
def test_a_frame_holds_its_messages_in_order_whatever_lies_behind_them(messages: list[Control]) -> None:
    raw = pack_frame(messages)
    assert len(raw) <= FRAME_BYTES
    assert unpack_frame(raw) == messages
    assert unpack_frame(raw.ljust(FRAME_BYTES, b"\xff")) == messages


ONE = pack_frame([Control(Kind.ANNOUNCE, 7)])


@pytest.mark.parametrize(
    "raw", [bytes(FRAME_BYTES), bytes([FRAME_MESSAGES + 1]) + bytes(FRAME_BYTES), b"\x02" + ONE[1:], ONE[:-1]]
)
def test_bytes_that_are_no_frame_are_an_error(raw: bytes) -> None:
    with pytest.raises(ValueError, match="frame"):
        unpack_frame(raw)


def test_an_unknown_kind_or_fate_is_an_error() -> None:
    with pytest.raises(ValueError, match="kind"):
        unpack_frame(b"\x01\xfa" + bytes(FRAME_BYTES))
    with pytest.raises(ValueError, match="fate"):
        unpack_frame(bytes([1, Kind.ANSWER, 250]) + bytes(FRAME_BYTES))


@pytest.mark.parametrize("request_id", ["", "ab", "zz" * 16, "ab" * 17])
def test_a_request_id_that_is_not_128_bits_of_hex_is_an_error(request_id: str) -> None:
    with pytest.raises(ValueError, match="hexadecimal"):
        Control(Kind.ANNOUNCE, 1, key=AttemptKey(request_id, 1)).pack()


@given(st.integers(0, MAX_CHANNEL), st.integers(0, MAX_CHANNEL), words, words)
def test_tags_name_one_payload_and_control_never_matches_them(a: int, b: int, seq_a: int, seq_b: int) -> None:
    assert (payload_tag(a, seq_a) == payload_tag(b, seq_b)) == ((a, seq_a) == (b, seq_b))
    assert control_tag(a) & CONTROL_TAG_MASK == control_tag(0)
    assert payload_tag(a, seq_a) & CONTROL_TAG_MASK != control_tag(0)
    assert payload_tag(a, seq_a) < 2**64


def config(**changes: object) -> TransferConfig:
    return TransferConfig(**{"peer_id": "d", "incarnation": "d-1", "group": "g", **changes})  # type: ignore[arg-type]


ADDRESS = PeerAddress("d", "127.0.0.1", 1, "d-1", "g")


def hello(sender: TransferConfig, address: PeerAddress = ADDRESS, page_bytes: int = 64) -> Hello:
    return Hello.unpack(client_hello(sender, address, 5, page_bytes).pack())


def test_a_hello_survives_its_bytes() -> None:
    made = client_hello(config(peer_id="x" * 64), ADDRESS, 5, 2**40)._replace(
        share=b"s" * SHARE_BYTES, reads_pages=True
    )
    assert len(made.pack()) == HELLO_BYTES
    assert Hello.unpack(made.pack()) == made


def test_bytes_of_something_else_are_an_error() -> None:
    with pytest.raises(ValueError, match="not a KV transfer peer"):
        Hello.unpack(b"GET / HTTP/1.1\r\n".ljust(HELLO_BYTES, b"\0"))


@pytest.mark.parametrize(
    ("received", "verdict"),
    [
        (hello(config()), Verdict.ACCEPTED),
        (hello(config())._replace(protocol=99), Verdict.PROTOCOL),
        (hello(config(), PeerAddress("d", "h", 1, "d-1", "other")), Verdict.GROUP),
        (hello(config(), PeerAddress("d", "h", 1, "d-0", "g")), Verdict.INCARNATION),
        (hello(config(heads=HeadRange(1, 2))), Verdict.HEADS),
        (hello(config(), page_bytes=128), Verdict.PAGE_BYTES),
    ],
)
def test_a_receiver_judges_every_field(received: Hello, verdict: Verdict) -> None:
    assert judge_hello(config(), 64, received) is verdict


def test_a_sender_does_not_take_another_process_for_the_one_it_meant() -> None:
    sender, mine = config(peer_id="p", incarnation="p-1"), hello(config(peer_id="p", incarnation="p-1"))
    answer = server_answer(config(), mine, Verdict.ACCEPTED, 9, 64)
    assert refusal(sender, ADDRESS, answer) is None
    assert refusal(sender, ADDRESS, answer._replace(incarnation="d-2")) is not None
    assert refusal(sender, ADDRESS, answer._replace(expected_incarnation="p-0")) is not None
    assert refusal(sender, ADDRESS, answer._replace(protocol=99)) is not None
    assert "no KV head" in (refusal(sender, ADDRESS, answer._replace(verdict=Verdict.HEADS)) or "")
    assert "KV heads" in (refusal(sender, ADDRESS, answer._replace(heads=HeadRange(0, 2))) or "")


@pytest.mark.parametrize(
    ("transports", "on_device", "lane"),
    [
        (["tcp", "tcp"], False, Lane.TCP),
        (["tcp", "sysv"], False, Lane.SHARED_MEMORY),
        (["rc_mlx5", "tcp"], False, Lane.RDMA),
        (["tcp", "cuda_copy", "cuda_ipc"], True, Lane.CUDA_IPC),
        (["tcp", "cuda_ipc"], False, Lane.TCP),
        (["rc_mlx5", "cuda_copy"], True, Lane.RDMA),
        ([], True, Lane.UNKNOWN),
    ],
)
def test_the_lane_is_the_fastest_that_can_move_such_pages(transports: list[str], on_device: bool, lane: Lane) -> None:
    assert fastest_lane(transports, device_pages=on_device) is lane


@pytest.mark.parametrize(
    ("tls", "is_allowed"),
    [("all", True), ("rc,cuda_ipc,sm", True), ("cuda,tcp", True), ("tcp", False), ("^cuda_ipc", False), ("^tcp", True)],
)
def test_pages_are_mapped_only_where_the_setting_leaves_cuda_ipc_in(tls: str, is_allowed: bool) -> None:
    assert allows_cuda_ipc(tls) is is_allowed


def test_lanes_are_ordered_by_speed() -> None:
    assert Lane.TCP.is_slower_than(Lane.RDMA)
    assert Lane.UNKNOWN.is_slower_than(Lane.TCP)
    assert not Lane.CUDA_IPC.is_slower_than(Lane.RDMA)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"peer_id": ""}, "peer_id"),
        ({"incarnation": "x" * 65}, "incarnation"),
        ({"group": ""}, "group"),
        ({"credit": 0}, "credit"),
        ({"depth": 0}, "depth"),
        ({"listen_port": 70_000}, "listen_port"),
        ({"push_timeout_s": 0.0}, "push_timeout_s"),
        ({"silence_s": 1.0, "heartbeat_s": 1.0}, "silence_s"),
    ],
)
def test_a_bad_setting_is_named(changes: dict[str, object], field: str) -> None:
    with pytest.raises(ValueError, match=field):
        config(**changes)
