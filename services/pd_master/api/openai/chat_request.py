"""A chat body becomes a request: checks, template, tokens. Other APIs that are chats translate their bodies to this
one."""

import msgspec

from services.common.errors import InvalidRequestError
from services.common.request import Request
from services.pd_master import checks
from services.pd_master.api.http import HttpCall, UntilDisconnect
from services.pd_master.api.openai import sampling
from services.pd_master.api.openai.answer_plan import AnswerPlan, plan_answer
from services.pd_master.api.openai.chat_schema import ChatBody
from services.pd_master.api.openai.continued import check_continued, cut_after
from services.pd_master.api.openai.messages import template_messages, template_tools
from services.pd_master.api.openai.structured import forced_functions
from services.pd_master.gateway import Gateway, Target, new_request_id
from services.pd_master.tokenizer import encode_bounded


def check_chat(body: ChatBody) -> None:
    """What types alone do not say. Raises InvalidRequestError naming the field."""
    sampling.check_fields(body)
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequestError("top_logprobs: needs logprobs to be true", param="top_logprobs")
    forced_functions(body)
    check_continued(body)
    checks.check_template_kwargs(body.chat_template_kwargs or {}, "chat_template_kwargs")


async def chat_request(gateway: Gateway, body: ChatBody, target: Target, call: HttpCall) -> tuple[Request, AnswerPlan]:
    """A checked body as a request, and how its output is to be read. `call`: that it came with.

    Raises InvalidRequestError and ContextLengthError naming the field.
    """
    config = gateway.config
    num_choices = checks.choice_count(body.n, config, param="n")
    num_logprobs = (body.top_logprobs or 0) if body.logprobs else None
    params = sampling.sampling_params(body, target, num_logprobs)
    prompt_ids, plan = await gateway.tokenizers.run_for(call.size, chat_prompt, body, target)
    bad = await sampling.bad_sequences(gateway, body, target)
    params = msgspec.structs.replace(params, grammar=plan.grammar, bad_sequences=bad)
    checks.check_prompt_logprobs(len(prompt_ids), body.prompt_logprobs, param="prompt_logprobs")
    wanted = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    param = "max_completion_tokens" if body.max_completion_tokens is not None else "max_tokens"
    max_new = checks.fit_output(len(prompt_ids), wanted, target, param=param, num_choices=num_choices)
    text = sampling.text_params(body)
    if plan.marks_are_special:
        text = msgspec.structs.replace(text, skip_special_tokens=False)
    request = Request(
        request_id=new_request_id(),
        model=target.model.name,
        prompt_ids=prompt_ids,
        sampling=params,
        stop=sampling.stop_params(body, target.model, max_new),
        text=text,
        num_choices=num_choices,
        priority=body.priority or 0,
        client_request_id=call.label,
        queue_budget_s=config.queue_budget_s,
        deadline_s=config.deadline_s,
    )
    return request, plan


async def prompt_length(gateway: Gateway, body: ChatBody, call: HttpCall) -> int:
    """Tokens of the prompt that a conversation makes. Raises as `chat_request`."""
    async with UntilDisconnect(call):
        target = await gateway.target(body.model)
        prompt_ids, _ = await gateway.tokenizers.run_for(call.size, chat_prompt, body, target)
        return len(prompt_ids)


def chat_prompt(body: ChatBody, target: Target) -> tuple[list[int], AnswerPlan]:
    """Template and tokenizer, in a tokenizer thread; what the output will look like follows from them. Raises
    InvalidRequestError and ContextLengthError (`messages`)."""
    tools = template_tools(body.tools) if body.tool_choice != "none" else None
    template = target.text.template(with_tools=tools is not None)
    extra = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        extra["reasoning_effort"] = body.reasoning_effort
    messages = template_messages(body.messages, template)
    begins_turn = body.add_generation_prompt is not False and not body.continue_final_message
    text = template.render(messages, tools=tools, add_generation_prompt=begins_turn, extra=extra)
    if not text:
        raise InvalidRequestError("messages: the chat template makes an empty prompt of them", param="messages")
    if body.continue_final_message:
        text = cut_after(text, messages[-1]["content"])
    special = body.add_special_tokens or False  # templates write the special tokens themselves
    ids = encode_bounded(target.text, text, target.model.max_context_tokens, param="messages", special=special)
    return ids, plan_answer(body, template.source, text, target.text.special_id)
