"""Real certificates for tests, made by openssl."""

import shutil
import subprocess
from pathlib import Path

HAS_OPENSSL = shutil.which("openssl") is not None
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


def make_authority(folder: Path) -> Path:
    """A folder with an authority: `ca.pem` and `ca.key`."""
    folder.mkdir(parents=True, exist_ok=True)
    _openssl(folder, "req", "-x509", *_KEY, "-keyout", "ca.key", "-out", "ca.pem", "-subj", f"/CN={folder.name}")
    return folder


def make_certificate(authority: Path, name: str, names: str = "IP:127.0.0.1,DNS:localhost") -> None:
    """`NAME.pem` and `NAME.key` beside the authority that signs it, valid for `names`; those there are replaced."""
    (authority / "names").write_text(f"subjectAltName={names}\n")
    _openssl(authority, "req", *_KEY, "-keyout", "new.key", "-out", "new.csr", "-subj", f"/CN={name}")
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names")
    _openssl(authority, "x509", "-req", "-in", "new.csr", "-out", "new.pem", *signed)
    for kind in ("key", "pem"):
        (authority / f"new.{kind}").replace(authority / f"{name}.{kind}")


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)
