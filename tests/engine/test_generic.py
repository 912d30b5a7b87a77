"""Families without a file of their own, through transformers' modules over our pool; what cannot be is named."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from services.engine.config import ConfigError
from services.engine.load import load_model
from tests.engine.driver import Driver, engine_config
from tests.engine.tiny import EOS, MAX_CONTEXT, VOCAB, prompt_of, reference_greedy


@pytest.mark.parametrize("family", ["gemma3", "olmo2", "phi3", "starcoder2", "gpt-neox"])
def test_greedy_equals_transformers(family: str, model_of: Any) -> None:  # noqa: ANN401
    """Chunked prompts and decode rows in one step, a cached prefix, and rows of different lengths."""
    folder: Path = model_of(family)
    driver = Driver(folder)
    prompts = [prompt_of(length) for length in (1, 16, 40)]
    outputs = driver.outputs(*(driver.admit(prompt, 12, stop_token_ids=(EOS,)) for prompt in prompts))
    assert outputs == [reference_greedy(folder, prompt, 12) for prompt in prompts]
    longer = prompts[2] + prompt_of(9, seed=1)
    assert driver.outputs(driver.admit(longer, 6, stop_token_ids=(EOS,))) == [reference_greedy(folder, longer, 6)]
    assert driver.engine.state.counters.prefix_hit_tokens >= 40
    driver.check()


def test_it_says_that_it_is_slower_and_what_it_is(model_of: Any, caplog: pytest.LogCaptureFixture) -> None:  # noqa: ANN401
    with caplog.at_level(logging.WARNING):
        loaded = load_model(engine_config(model_of("olmo2")))
    assert any("olmo2 runs through transformers' modules" in record.message for record in caplog.records)
    assert (loaded.config.vocab_size, loaded.config.num_kv_heads, loaded.config.head_dim) == (VOCAB, 2, 8)
    assert (loaded.max_context_tokens, loaded.config.eos_token_ids) == (MAX_CONTEXT, (EOS,))


@pytest.mark.parametrize(
    ("family", "changes", "limit", "why"),
    [
        ("gemma3", {}, 128, "window"),
        ("starcoder2", {"sliding_window": 100}, 100, "window"),
        ("olmo2", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4,
                                       "original_max_position_embeddings": 64}}, 64, "original_max_position"),
    ],
)  # fmt: skip
def test_what_depends_on_the_distance_limits_the_context(
    family: str, changes: dict[str, Any], limit: int, why: str, model_of: Any, tmp_path: Path,  # noqa: ANN401
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    config = json.loads((model_of(family) / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    with caplog.at_level(logging.WARNING):
        assert load_model(engine_config(tmp_path, load_format="random")).max_context_tokens == limit
    assert any(f"limited to {limit} tokens" in r.message and why in r.message for r in caplog.records)


def test_random_weights_need_only_the_config(model_of: Any, tmp_path: Path) -> None:  # noqa: ANN401
    (tmp_path / "config.json").write_text((model_of("olmo2") / "config.json").read_text())
    outputs = []
    for _ in range(2):
        driver = Driver(tmp_path, load_format="random", random_seed=3)
        outputs.append(driver.outputs(driver.admit(prompt_of(9), 5)))
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "nosuch"}, "model_type 'nosuch' would run through transformers: it cannot read config.json"),
        (
            {"layer_types": ["full_attention", "linear_attention", "full_attention"]},
            "linear_attention are not supported",
        ),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "only unquantised weights are supported"),
        ({"model_type": "t5", "is_encoder_decoder": True}, "cross-attention"),
        ({"model_type": "llava"}, "multimodal"),
        ({"model_type": "bloom", "n_head": 4}, "0 of its 3 layers attend through"),
    ],
)
def test_what_is_not_supported_is_named(changes: dict[str, Any], message: str, model_of: Any, tmp_path: Path) -> None:  # noqa: ANN401
    config = json.loads((model_of("olmo2") / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(ConfigError, match=message):
        load_model(engine_config(tmp_path, load_format="random"))


def test_a_soft_cap_in_attention_is_refused_by_name(model_of: Any) -> None:  # noqa: ANN401
    with pytest.raises(ConfigError, match="'gemma2' would run through transformers: a soft cap on attention scores"):
        load_model(engine_config(model_of("gemma2")))


def test_missing_weights_are_not_made_up(model_of: Any, tmp_path: Path) -> None:  # noqa: ANN401
    for file in model_of("olmo2").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights: dict[str, torch.Tensor] = load_file(tmp_path / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ConfigError, match="no weights named model.layers.1.mlp.up_proj.weight"):
        load_model(engine_config(tmp_path))


def test_ranks_are_for_families_with_a_file(model_of: Any) -> None:  # noqa: ANN401
    config = engine_config(model_of("olmo2"), num_ranks=2, rendezvous="file:///nowhere")
    from services.engine.load import _build
    from services.engine.ranks import Ranks

    with pytest.raises(ConfigError, match="'olmo2' runs on one rank only"):
        _build(config, torch.device("cpu"), Ranks())
