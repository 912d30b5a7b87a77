"""A model folder of the Llama-3.1-8B shape without weights: a config for `--load-format random`, and a tokenizer whose
vocabulary has that model's size, so that texts of random tokens cost the gateway what real ones do.
"""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "bos_token_id": 128000,
    "eos_token_id": 128001,
}
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def write_model(folder: Path) -> Path:
    """Write it, unless it is there; returns the folder."""
    tokenizer_file = folder / "tokenizer.json"
    if not tokenizer_file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(CONFIG, indent=2))
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
        _tokenizer(int(str(CONFIG["vocab_size"]))).save(str(tokenizer_file))
    return folder


def _tokenizer(size: int) -> Tokenizer:
    """Byte-level BPE over bytes, all pairs of letters, and as many triples as there is room for."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [(a, b) for a, b in product(_LETTERS, repeat=2)]
    triples = [(a + b, c) for (a, b), c in product(pairs, _LETTERS)]
    merges = [*pairs, *triples][: size - len(alphabet)]
    vocabulary = {text: number for number, text in enumerate([*alphabet, *(a + b for a, b in merges)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
