"""Weights from each format, and errors that name what is wrong."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file

from services.common.request import SamplingParams
from services.engine.config import ConfigError, parse_config
from services.engine.load import load_model
from services.engine.models.config import read_model_config
from services.engine.models.gguf import gguf_name
from tests.engine.driver import Driver, engine_config
from tests.engine.tiny import prompt_of, reference_greedy, reference_logits


def write_gguf(folder: Path, path: Path) -> None:
    """Write a tiny llama as llama.cpp's converter does: with q and k interleaved."""
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_eos_token_id(config["eos_token_id"])
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, tensor in load_file(folder / "model.safetensors").items():
        for part, num_heads in heads.items():
            if f"{part}.weight" in name:
                rows, columns = tensor.shape
                tensor = (
                    tensor.view(num_heads, 2, rows // num_heads // 2, columns).transpose(1, 2).reshape(rows, columns)
                )
        writer.add_tensor(gguf_name(name), tensor.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("in_folder", [False, True])
def test_a_gguf_file_gives_the_same_tokens(llama: Path, tmp_path: Path, in_folder: bool) -> None:
    write_gguf(llama, tmp_path / "tiny.gguf")
    driver = Driver(tmp_path if in_folder else tmp_path / "tiny.gguf")
    assert driver.outputs(driver.admit(prompt_of(20), 12))[0] == reference_greedy(llama, prompt_of(20), 12)
    assert driver.engine.ready().eos_token_ids == (210,)


@pytest.mark.parametrize("family", [None, "gpt_neox"])
def test_a_file_of_weights_that_was_cut_off_is_named(llama: Path, tmp_path: Path, family: str | None) -> None:
    """In a family of our own, and in one that transformers loads."""
    folder = tmp_path / "model"
    shutil.copytree(llama, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | ({"model_type": family} if family else {})))
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ConfigError, match=str(folder)):
        load_model(engine_config(folder))


def test_a_context_beyond_the_models_own_is_refused(llama: Path) -> None:
    with pytest.raises(ConfigError, match="--max-context-tokens: 1000000 is not allowed; the model's own context has"):
        load_model(engine_config(llama, max_context_tokens=1_000_000))


def test_sharded_safetensors_are_found_through_their_index(llama: Path, tmp_path: Path) -> None:
    tensors = load_file(llama / "model.safetensors")
    names = sorted(tensors)
    weight_map: dict[str, str] = {}
    for i, part in enumerate((names[::2], names[1::2])):
        save_file({name: tensors[name] for name in part}, tmp_path / f"part{i}.safetensors")
        weight_map |= dict.fromkeys(part, f"part{i}.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    shutil.copy(llama / "config.json", tmp_path)
    driver = Driver(tmp_path)
    assert driver.outputs(driver.admit(prompt_of(9), 6))[0] == reference_greedy(llama, prompt_of(9), 6)


def test_random_weights_need_only_a_config_and_repeat_by_seed(llama: Path, tmp_path: Path) -> None:
    shutil.copy(llama / "config.json", tmp_path)
    one, same, other = (Driver(tmp_path, load_format="random", random_seed=seed) for seed in (1, 1, 2))
    outputs = [driver.outputs(driver.admit(prompt_of(9), 12))[0] for driver in (one, same, other)]
    assert outputs[0] == outputs[1] != outputs[2]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_half_precision_stays_close(family: str, dtype: str, model_of: Callable[[str], Path]) -> None:
    driver, prompt = Driver(model_of(family), dtype=dtype), prompt_of(12)
    command = driver.admit(prompt, 6, sampling=SamplingParams(temperature=0.0, num_logprobs=0))
    (tokens,) = driver.outputs(command)
    exact = reference_logits(model_of(family), [*prompt, *tokens]).log_softmax(-1)[len(prompt) - 1 :]
    for i, each in enumerate(driver.logprobs[command.job_id, 0]):
        assert each.logprob == pytest.approx(float(exact[i, each.token_id]), abs=0.5)


def test_fingerprints_differ_by_content_and_layouts_by_dtype(llama: Path, model_of: Callable[[str], Path]) -> None:
    same, again = (load_model(engine_config(llama)) for _ in range(2))
    other, narrow = load_model(engine_config(model_of("qwen3"))), load_model(engine_config(llama, dtype="bfloat16"))
    assert (same.fingerprint, same.layout) == (again.fingerprint, again.layout)
    assert same.fingerprint != other.fingerprint
    assert (same.fingerprint == narrow.fingerprint, same.layout == narrow.layout) == (True, False)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model_type", "mamba", "layer_types linear_attention are not supported"),
        ("hidden_size", None, "hidden_size is None"),
        ("rope_parameters", {"rope_type": "yarn", "rope_theta": 1.0}, "rope type is 'yarn'"),
        ("hidden_act", "gelu", "hidden_act is 'gelu'"),
        ("intermediate_size", 64, "gate_proj.weight has shape [48, 32], expected [64, 32]"),
    ],
)
def test_a_config_that_cannot_be_served_says_why(
    llama: Path, tmp_path: Path, key: str, value: object, message: str
) -> None:
    shutil.copytree(llama, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {key: value}))
    with pytest.raises(ConfigError) as error:
        load_model(engine_config(tmp_path))
    assert message in str(error.value)


def test_missing_files_and_weights_are_named(llama: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no config\.json"):
        load_model(engine_config(tmp_path))
    shutil.copy(llama / "config.json", tmp_path)
    with pytest.raises(ConfigError, match=r"neither model\.safetensors nor"):
        load_model(engine_config(tmp_path))
    tensors = load_file(llama / "model.safetensors")
    del tensors["model.layers.1.mlp.down_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=r"no weight named model\.layers\.1\.mlp\.down_proj\.weight"):
        load_model(engine_config(tmp_path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"endpoint": "x", "model": "m", "chunk_token": 3}', "chunk_token"),
        ('{"endpoint": "x", "model": "m", "chunk_tokens": 0}', "chunk_tokens is 0; allowed: 1 or more"),
        ('{"endpoint": "x", "model": "m", "dtype": "int8"}', "dtype"),
        ("{", "engine configuration"),
    ],
)
def test_a_bad_configuration_names_the_key(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_config(text)
    assert message in str(error.value)


def test_eos_ids_come_from_the_generation_config_first(llama: Path, tmp_path: Path) -> None:
    shutil.copy(llama / "config.json", tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [4, 5]}')
    assert read_model_config(tmp_path).eos_token_ids == (4, 5)


def test_llama3_rope_blends_frequencies(model_of: Callable[[str], Path]) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    from services.engine.models.rope import inverse_frequencies

    folder = model_of("llama3-rope")
    config = read_model_config(folder)
    expected = LlamaRotaryEmbedding(LlamaConfig.from_pretrained(folder)).inv_freq
    assert torch.equal(inverse_frequencies(config.rope, config.head_dim), expected)
