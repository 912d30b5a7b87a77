"""What one step of the engine says of its sequences; a part of `ipc`."""

import struct

import msgspec

from services.common.request import FinishReason, TokenLogprob


class SequenceOutput(msgspec.Struct, frozen=True, array_like=True):
    """New tokens of one sequence in one step."""

    job_id: int
    choice: int
    first_index: int
    """Output position of token_ids[0]."""
    token_ids: list[int]
    logprobs: list[TokenLogprob] | None = None
    finish: FinishReason | None = None
    """STOP or LENGTH; the sequence is gone from the engine (with hand_over: nothing to decode, its KV is freed)."""
    stop_token_id: int | None = None


class TokenColumns(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One token more of each of n sequences, of which there is nothing else to say: the rule, hundreds of times a step.

    Little-endian columns, because making and encoding an object for each takes longer than all else about it.
    """

    job_ids: bytes = b""
    """[n] int64."""
    choices: bytes = b""
    """[n] int32."""
    indexes: bytes = b""
    """[n] int32: output position of the token."""
    token_ids: bytes = b""
    """[n] int32."""

    def outputs(self) -> list[SequenceOutput]:
        """The same, one by one."""
        n = len(self.job_ids) // 8
        job_ids = struct.unpack(f"<{n}q", self.job_ids)
        columns = (struct.unpack(f"<{n}i", each) for each in (self.choices, self.indexes, self.token_ids))
        return [
            SequenceOutput(job_id, choice, index, [token_id])
            for job_id, choice, index, token_id in zip(job_ids, *columns, strict=True)
        ]
