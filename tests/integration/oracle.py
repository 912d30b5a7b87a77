"""What `transformers` itself answers, greedily and in float32: the judge of every token Sluice produces.

Answers are kept on disk, named after everything they depend on: a second run of the tests asks only new questions.
"""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from tests.integration.prompts import CHAT, PLAIN


class Oracle:
    """Greedy `generate` on one model folder, one prompt at a time, without Sluice."""

    def __init__(self, model_dir: Path) -> None:
        self.tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(model_dir)
        self._model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
        eos = self._model.generation_config.eos_token_id
        self._eos = {eos} if isinstance(eos, int) else {*eos}
        weights = hashlib.sha256((model_dir / "model.safetensors").read_bytes()).hexdigest()
        self._versions = [weights, transformers.__version__, torch.__version__]
        self._kept = model_dir.parent.parent / "oracle"
        self._kept.mkdir(exist_ok=True)

    def chat_ids(self, user: str) -> tuple[int, ...]:
        """Prompt ids of a one-turn chat, through the model's own template."""
        text = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": user}], tokenize=False, add_generation_prompt=True
        )
        return self.ids(str(text))

    def ids(self, text: str) -> tuple[int, ...]:
        """Token ids of a text, no special tokens added."""
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def sixteen_prompts(self) -> list[tuple[int, ...]]:
        """Eight chats and eight plain texts: the streams of tests that disturb sixteen at once."""
        return [self.chat_ids(text) for text in CHAT[:8]] + [self.ids(text) for text in PLAIN[:8]]

    def text(self, ids: Sequence[int]) -> str:
        """The text of output ids as an API shows it: special tokens left out."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    def is_end(self, token: int) -> bool:
        """Whether an answer ends with it."""
        return token in self._eos

    def generate(
        self, prompt_ids: Sequence[int], max_new_tokens: int, *, ignore_eos: bool = False, guess: Sequence[int] = ()
    ) -> list[int]:
        """Output ids; the EOS id, when reached, is the last one unless it is ignored.

        `guess`: somebody's answer. One pass over all of it tells whether each of its tokens is the likeliest behind
        those before it, which takes a fraction of the time of one pass a token. A wrong one changes nothing.
        """
        question = json.dumps([self._versions, list(prompt_ids), max_new_tokens, ignore_eos])
        kept = self._kept / f"{hashlib.sha256(question.encode()).hexdigest()}.json"
        if kept.exists():
            return [int(each) for each in json.loads(kept.read_text())]
        if self._ends(guess, max_new_tokens, ignore_eos=ignore_eos) and self._likeliest(prompt_ids, guess):
            answer = list(guess)
        else:
            answer = self._generate(prompt_ids, max_new_tokens, ignore_eos=ignore_eos)
        partly = kept.with_suffix(f".{os.getpid()}")
        partly.write_text(json.dumps(answer))
        partly.replace(kept)
        return answer

    def logprobs(self, prompt_ids: Sequence[int]) -> torch.Tensor:
        """Log-probabilities of what follows each token: [num_tokens, vocab_size], float32."""
        with torch.inference_mode():
            logits: torch.Tensor = self._model(torch.tensor([list(prompt_ids)])).logits[0]
        return logits.log_softmax(-1)

    def _ends(self, answer: Sequence[int], max_new_tokens: int, *, ignore_eos: bool) -> bool:
        """Whether an answer ends where `generate` does, and not before."""
        eos = [] if ignore_eos else [at for at, token in enumerate(answer, start=1) if token in self._eos]
        return len(answer) == min([max_new_tokens, *eos])

    def _likeliest(self, prompt_ids: Sequence[int], answer: Sequence[int]) -> bool:
        """Whether each token of an answer is the likeliest behind those before it."""
        given = torch.tensor([[*prompt_ids, *answer[:-1]]])
        with torch.inference_mode():
            logits: torch.Tensor = self._model(given, logits_to_keep=len(answer)).logits[0]
        return bool((logits.argmax(-1) == torch.tensor(list(answer))).all())

    def _generate(self, prompt_ids: Sequence[int], max_new_tokens: int, *, ignore_eos: bool) -> list[int]:
        prompt = torch.tensor([list(prompt_ids)])
        with torch.inference_mode():
            generate = cast(Callable[..., torch.Tensor], self._model.generate)
            output = generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=max_new_tokens,
                do_sample=False,
                pad_token_id=0,
                **({"eos_token_id": None} if ignore_eos else {}),
            )
        return [int(each) for each in output[0, len(prompt_ids) :]]
