"""How much each API key may ask for: requests and tokens a minute, in buckets that refill steadily. Pure.

A call is let in while neither bucket is empty. It counts as one request; all its prompts are taken out then and its
output when it ends, so that one long answer may overdraw the tokens, and the key waits until they are back.
"""

import dataclasses

from services.common.errors import OverloadedError

_MINUTE_S = 60.0


class RateLimitedError(OverloadedError):
    """The key has asked for more than it may; the fleet may be idle."""

    code = "rate_limit_exceeded"


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """Of one key; None where there is no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None

    def divided(self, parts: int) -> "Limits":
        """One of so many equal parts, at least 1."""
        requests, tokens = (one and -(-one // parts) for one in (self.requests_per_minute, self.tokens_per_minute))
        return Limits(requests, tokens)


class _Bucket:
    """Holds up to a minute's worth; full at the start."""

    def __init__(self, per_minute: int, now: float) -> None:
        self._most = float(per_minute)
        self._left = float(per_minute)
        self._at = now

    def wait_s(self, least: float, now: float) -> float:
        """Until it holds `least`; 0 when it does."""
        self._left = min(self._most, self._left + (now - self._at) * self._most / _MINUTE_S)
        self._at = now
        return max(0.0, (least - self._left) * _MINUTE_S / self._most)

    def take(self, amount: float) -> None:
        """Take out, below nothing too."""
        self._left -= amount


class Allowances:
    """One per gateway process: replicas count each for itself."""

    def __init__(self, limits: dict[str, Limits], now: float) -> None:
        """`limits`: by the key's name."""
        self._requests = {
            name: _Bucket(one.requests_per_minute, now) for name, one in limits.items() if one.requests_per_minute
        }
        self._tokens = {
            name: _Bucket(one.tokens_per_minute, now) for name, one in limits.items() if one.tokens_per_minute
        }

    def admit(self, key: str, prompt_tokens: int, now: float) -> None:
        """A call of `key` comes. Raises RateLimitedError saying when to come back, and takes nothing then."""
        requests, tokens = self._requests.get(key), self._tokens.get(key)
        for bucket, what in ((requests, "requests"), (tokens, "tokens")):
            wait_s = bucket.wait_s(1.0, now) if bucket is not None else 0.0
            if wait_s > 0:
                raise RateLimitedError(f"the key {key!r} has used its {what} of this minute", retry_after_s=wait_s)
        if requests is not None:
            requests.take(1.0)
        if tokens is not None:
            tokens.take(prompt_tokens)

    def give_back(self, key: str, prompt_tokens: int) -> None:
        """A call that was let in got no worker: it counts for nothing."""
        for bucket, amount in ((self._requests.get(key), 1.0), (self._tokens.get(key), prompt_tokens)):
            if bucket is not None:
                bucket.take(-amount)

    def used(self, key: str, output_tokens: int) -> None:
        """A request of `key` ended with so many tokens of output."""
        tokens = self._tokens.get(key)
        if tokens is not None:
            tokens.take(output_tokens)
