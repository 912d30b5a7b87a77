"""`usage` of OpenAI's answers: tokens, never characters or chunks."""

from collections.abc import Sequence

from services.pd_master.api.openai.answers import Usage
from services.pd_master.live_request import LiveRequest


def usage_of(lives: Sequence[LiveRequest], num_reasoning_tokens: int = 0) -> Usage:
    """Sums over the requests that one call made; a prompt counts once however many choices it has."""
    num_prompt = sum(live.num_prompt_tokens for live in lives)
    num_output = sum(live.num_output_tokens for live in lives)
    usage: Usage = {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_output,
        "total_tokens": num_prompt + num_output,
        "prompt_tokens_details": {"cached_tokens": sum(live.cached_tokens for live in lives)},
    }
    if num_reasoning_tokens:
        usage["completion_tokens_details"] = {"reasoning_tokens": num_reasoning_tokens}
    return usage
