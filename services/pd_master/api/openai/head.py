"""What chat answers and completions begin with."""

import time

from services.pd_master.api.openai.answers import AnswerHead
from services.pd_master.api.openai.fields import GenerationFields
from services.pd_master.backend import ServedModel


def answer_head(fields: GenerationFields, model: ServedModel) -> AnswerHead:
    """`service_tier` is there when it was asked for: there is one tier here."""
    head: AnswerHead = {
        "created": int(time.time()),
        "model": model.name,
        "system_fingerprint": f"fp_{model.group}",
    }
    if fields.service_tier is not None:
        head["service_tier"] = "default"
    return head
