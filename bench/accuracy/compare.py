"""Log-likelihoods that lm_eval got from a server, against transformers on the same weights in float32.

    python -m bench.accuracy.compare MODEL_FOLDER LM_EVAL_OUTPUT_FOLDER

reads what `lm_eval run --log_samples` wrote of multiple-choice and rolling tasks, and prints how many there are and the
largest difference. Ends with status 1 where one is above TOLERANCE.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers

TOLERANCE = 1e-3
"""Of the sum of a continuation's log-probabilities: float32 sums in another order differ by some 1e-5 a token."""


class Scored(NamedTuple):
    """A continuation, what stands before it, and what the server said of it; without a context it follows BOS."""

    context: str
    continuation: str
    value: float


class Reference:
    """The model in transformers."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
        self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    @torch.inference_mode()
    def log_likelihood(self, context: str, continuation: str) -> float:
        """Of the continuation's tokens; as lm_eval has it, both are tokenized as one text."""
        before = self._tokenizer(context).input_ids if context else [self._tokenizer.bos_token_id]
        after = self._tokenizer(context + continuation).input_ids
        ids = torch.tensor([after if context else before + after])
        logprobs = torch.log_softmax(self._model(ids).logits[0], dim=-1)
        scored = range(len(before), ids.shape[1])
        return sum(float(logprobs[at - 1, ids[0, at]]) for at in scored)


def scored(folder: Path) -> Iterator[Scored]:
    """What lm_eval wrote below a folder."""
    for file in sorted(folder.rglob("samples_*.jsonl")):
        for line in file.read_text().splitlines():
            sample = json.loads(line)
            for arguments, (answer,) in zip(sample["arguments"].values(), sample["resps"], strict=True):
                if "arg_1" not in arguments:
                    yield Scored("", arguments["arg_0"], float(answer))
                elif isinstance(arguments["arg_1"], str):
                    yield Scored(arguments["arg_0"], arguments["arg_1"], float(answer[0]))


def main() -> None:
    """Compare all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="the folder that is served")
    parser.add_argument("output", type=Path, help="lm_eval's --output_path")
    arguments = parser.parse_args()
    reference = Reference(arguments.model)
    differences = [
        abs(one.value - reference.log_likelihood(one.context, one.continuation)) for one in scored(arguments.output)
    ]
    if not differences:
        sys.exit(f"{arguments.output} holds no samples with log-likelihoods")
    print(f"{len(differences)} log-likelihoods, largest difference {max(differences):.1e}")
    sys.exit(not all(one <= TOLERANCE for one in differences))  # NaN is not


if __name__ == "__main__":
    main()
