"""Who may talk to whom: hellos made and judged. Pure."""

from services.engine.transfer.config import TransferConfig
from services.engine.transfer.events import PeerAddress
from services.engine.transfer.wire import TRANSFER_PROTOCOL, Hello, Verdict, group_digest

_REASONS = {
    Verdict.PROTOCOL: "the transfer protocols differ",
    Verdict.GROUP: "the groups differ (model fingerprint or KV layout)",
    Verdict.INCARNATION: "this is another start of the process than the one meant",
    Verdict.HEADS: "the ranks have no KV head in common",
    Verdict.PAGE_BYTES: "the sizes of the transfer pages differ",
}


def client_hello(config: TransferConfig, address: PeerAddress, channel: int, page_bytes: int) -> Hello:
    """What a sender opens with."""
    return Hello(
        TRANSFER_PROTOCOL, Verdict.ACCEPTED, channel, config.rank, page_bytes, 0, config.heads,
        config.peer_id, config.incarnation, address.incarnation, group_digest(address.group),
    )  # fmt: skip


def judge_hello(config: TransferConfig, page_bytes: int, hello: Hello) -> Verdict:
    """What a receiver makes of a hello."""
    if hello.protocol != TRANSFER_PROTOCOL:
        return Verdict.PROTOCOL
    if hello.group_digest != group_digest(config.group):
        return Verdict.GROUP
    if hello.expected_incarnation != config.incarnation:
        return Verdict.INCARNATION
    if hello.heads.meet(config.heads).num_heads == 0:
        return Verdict.HEADS
    return Verdict.ACCEPTED if hello.page_bytes == page_bytes else Verdict.PAGE_BYTES


def server_answer(config: TransferConfig, hello: Hello, verdict: Verdict, channel: int, page_bytes: int) -> Hello:
    """What a receiver answers."""
    return Hello(
        TRANSFER_PROTOCOL, verdict, channel, config.rank, page_bytes, config.credit, config.heads,
        config.peer_id, config.incarnation, hello.incarnation, group_digest(config.group),
    )  # fmt: skip


def refusal(config: TransferConfig, address: PeerAddress, answer: Hello) -> str | None:
    """Why a sender cannot use this peer, in words; None when it can.

    Besides the peer's own verdict the sender checks the answer itself: a process that took over the address of an old
    peer must never be taken for it.
    """
    if answer.verdict is not Verdict.ACCEPTED:
        return f"{address.peer_id} refused: {_REASONS[answer.verdict]}"
    if answer.protocol != TRANSFER_PROTOCOL:
        return _REASONS[Verdict.PROTOCOL]
    if answer.incarnation != address.incarnation or answer.expected_incarnation != config.incarnation:
        return _REASONS[Verdict.INCARNATION]
    if answer.heads != address.heads:
        return f"{address.peer_id} holds the KV heads {answer.heads}, not {address.heads}"
    return None
