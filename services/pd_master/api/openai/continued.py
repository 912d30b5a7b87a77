"""`continue_final_message`: the prompt ends within the conversation's last message, and the output goes on with it."""

from services.common.errors import InvalidRequestError
from services.pd_master.api.openai.chat_schema import ChatBody

_NAME = "continue_final_message"


def check_continued(body: ChatBody) -> None:
    """Raises InvalidRequestError where there is nothing to go on with."""
    if not body.continue_final_message:
        return
    if body.add_generation_prompt:
        raise InvalidRequestError(f"{_NAME}: cannot be combined with add_generation_prompt", param=_NAME)
    last = body.messages[-1]
    if last.role != "assistant" or not last.content or last.tool_calls:
        raise InvalidRequestError(f"{_NAME}: the last message must be the assistant's, with text only", param=_NAME)


def cut_after(prompt: str, final_text: str) -> str:
    """A conversation as text, up to the end of what its last message says. Templates may trim messages. Raises
    InvalidRequestError where the template shows the message in another form."""
    for text in (final_text, final_text.strip()):
        at = prompt.rfind(text)
        if text and at >= 0:
            return prompt[: at + len(text)]
    raise InvalidRequestError(f"{_NAME}: the model's chat template does not show that message as it is", param=_NAME)
