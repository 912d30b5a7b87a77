"""What `transformers` itself answers, greedily and in float32: the judge of every token Sluice produces."""

import functools
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase


class Oracle:
    """Greedy `generate` on one model folder, one prompt at a time, without Sluice."""

    def __init__(self, model_dir: Path) -> None:
        self.tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(model_dir)
        self._model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
        self.generate = functools.cache(self._generate)

    def chat_ids(self, user: str) -> tuple[int, ...]:
        """Prompt ids of a one-turn chat, through the model's own template."""
        text = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": user}], tokenize=False, add_generation_prompt=True
        )
        return self.ids(str(text))

    def ids(self, text: str) -> tuple[int, ...]:
        """Token ids of a text, no special tokens added."""
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def text(self, ids: Sequence[int]) -> str:
        """The text of output ids as an API shows it: special tokens left out."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    def generate_past_eos(self, prompt_ids: tuple[int, ...], max_new_tokens: int) -> tuple[int, ...]:
        """Exactly `max_new_tokens` output ids: EOS is a token like any other."""
        return self.generate(prompt_ids, max_new_tokens, True)

    def _generate(self, prompt_ids: tuple[int, ...], max_new_tokens: int, ignore_eos: bool = False) -> tuple[int, ...]:
        """Output ids; the EOS id, when reached, is the last one unless it is ignored."""
        prompt = torch.tensor([prompt_ids])
        with torch.inference_mode():
            output = self._model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=max_new_tokens,
                do_sample=False,
                pad_token_id=0,
                **({"eos_token_id": None} if ignore_eos else {}),
            )
        return tuple(output[0, len(prompt_ids) :].tolist())
