"""Builds the two images from the Dockerfile with buildah, without a registry: the bases are a bootstrapped Debian.

Everything made is kept in the cache and made anew only when what goes into it has changed.
"""

import configparser
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
CACHE = Path(os.environ.get("SLUICE_CACHE") or Path.home() / ".cache" / "sluice") / "cluster"
TAG = "test"
GATEWAY = f"localhost/sluice/gateway:{TAG}"
WORKER = f"localhost/sluice/worker:{TAG}"
_INPUTS = (
    "Dockerfile",
    ".dockerignore",
    "requirements-*.txt",
    "pyproject.toml",
    "proto/**/*.proto",
    "services/**/*.py",
    "kernels/**/*.py",
)
_PACKAGES = {"buildah": "buildah", "mmdebstrap": "mmdebstrap"}
_BASE_RECIPE = (
    *("mmdebstrap", "--variant=minbase", "--include=ca-certificates,usr-is-merged"),
    "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr",
    *(f"--dpkgopt=path-exclude=/usr/share/{folder}/*" for folder in ("man", "doc", "locale", "info")),
    "bookworm",
)
"""Debian's slim image with certificates, which pip needs here. No Python: the Dockerfile brings what it needs."""
BASE = f"localhost/debian-slim:{hashlib.sha256(' '.join(_BASE_RECIPE).encode()).hexdigest()[:12]}"


def build_images() -> dict[str, Path]:
    """Return the image archives by target, built when they are not there for the tree as it is."""
    CACHE.mkdir(parents=True, exist_ok=True)
    key = _key()
    made = {target: CACHE / f"{target}-{key}.tar" for target in ("gateway", "worker")}
    if not all(path.exists() for path in made.values()):
        _install_tools()
        _build_base()
        for target, image in (("gateway", GATEWAY), ("worker", WORKER)):
            _forget(target)
            _build(target, image)
            _save(image, made[target])
    return made


def build_rdma_worker() -> str:
    """Build the worker's image with UCX's RDMA, of which layers are shared with the other one; its name."""
    CACHE.mkdir(parents=True, exist_ok=True)
    _install_tools()
    _build_base()
    image = WORKER.replace(TAG, "rdma")
    _build("worker", image, UCX="rdma", WORKER_PACKAGES="libibverbs1 ibverbs-providers")
    return image


def run_in(image: str, *command: str) -> str:
    """Run a command in a container of an image; what it says on stdout and stderr."""
    container = subprocess.check_output([*_buildah(), "from", "--pull-never", image], text=True).strip()
    try:
        run = [*_buildah(), "run", "--isolation", "chroot", container, "--", *command]
        return subprocess.run(run, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True).stdout
    finally:
        _run(*_buildah(), "rm", container)


def image_id() -> str:
    """What the images were made of, as a word."""
    return _key()


def _key() -> str:
    digest = hashlib.sha256()
    for path in sorted(path for pattern in _INPUTS for path in ROOT.glob(pattern)):
        digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _run(*command: str | Path) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-40:])
        raise RuntimeError(f"{' '.join(map(str, command))}: status {done.returncode}\n{tail}")


def _install_tools() -> None:
    missing = [package for program, package in _PACKAGES.items() if shutil.which(program) is None]
    if missing:
        _run("apt-get", "update", "-qq")
        _run("apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing)


def _build_base() -> None:
    """Debian, where the Dockerfile's own bases cannot be pulled."""
    if subprocess.run([*_buildah(), "inspect", BASE], capture_output=True, check=False).returncode:
        context = CACHE / "base"
        context.mkdir(exist_ok=True)
        (context / "Dockerfile").write_text("FROM scratch\nADD base.tar /\n")
        _run(*_BASE_RECIPE, context / "base.tar", "http://deb.debian.org/debian")
        _run(*_buildah(), "build", "--isolation", "chroot", "-t", BASE, context)
        shutil.rmtree(context)


def _build(target: str, image: str, **changed: str) -> None:
    arguments = {
        "GATEWAY_BASE": BASE,
        "WORKER_BASE": BASE,
        "TORCH": _torch(),
        "WORKER_PACKAGES": "",
        **changed,
    }
    options = [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
    mounts = [word for mount in _pip_mounts() for word in ("--volume", mount)]
    pull = ("--pull-never", "--layers", "--isolation", "chroot")
    _run(*_buildah(), "build", *pull, *options, *mounts, "--target", target, "-t", image, ROOT)


def _save(image: str, archive: Path) -> None:
    part = archive.with_suffix(".part")
    part.unlink(missing_ok=True)
    _run(*_buildah(), "push", image, f"docker-archive:{part}:{image}")
    part.rename(archive)


def _forget(target: str) -> None:
    for old in CACHE.glob(f"{target}-*.tar"):
        old.unlink()


def _buildah() -> list[str]:
    return ["buildah", "--root", str(CACHE / "storage"), "--runroot", "/run/sluice-buildah"]


def _torch() -> str:
    (pinned,) = (
        line for line in (ROOT / "requirements-cpu.txt").read_text().splitlines() if line.startswith("torch==")
    )
    return f"{pinned}+cpu"


def _pip_mounts() -> list[str]:
    """This machine's pip.conf and what it names, mounted where pip in the build finds them."""
    config = configparser.ConfigParser(interpolation=None)
    config["global"] = {}
    for line in subprocess.check_output([sys.executable, "-m", "pip", "config", "list"], text=True).splitlines():
        name, _, value = line.partition("=")
        if not name.endswith(".constraint"):
            config["global"][name.rpartition(".")[2]] = value.strip("'").replace("\\n", " ")
    config["global"].setdefault("extra-index-url", "https://download.pytorch.org/whl/cpu")
    written = CACHE / "pip.conf"
    with written.open("w") as file:
        config.write(file)
    words = " ".join(config["global"].values()).split()
    paths = {word.removeprefix("file://").removesuffix("/simple") for word in words}
    named = [f"{path}:{path}:ro" for path in sorted(paths) if path.startswith("/") and Path(path).exists()]
    return [f"{written}:/etc/pip.conf:ro", *named]
