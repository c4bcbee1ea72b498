"""Certificates for servers that speak TLS, made with openssl."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

HAS_OPENSSL = shutil.which("openssl") is not None


@dataclass(frozen=True)
class Certificate:
    """A certificate that is its own authority, and its key."""

    file: Path
    key: Path

    @property
    def server_options(self) -> tuple[str, ...]:
        """The options with which a server shows it, and asks its clients for none."""
        files = (
            "--tls-cert-file",
            str(self.file),
            "--tls-key-file",
            str(self.key),
            "--tls-ca-cert-file",
            str(self.file),
        )
        return (*files, "--tls-auth-clients", "no")


def make_certificate(folder: Path, *names: str) -> Certificate:
    """Make a certificate for these names, such as `DNS:localhost` and `IP:127.0.0.1`."""
    made = Certificate(folder / "certificate.pem", folder / "key.pem")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=penstock", "-addext", f"subjectAltName={','.join(names)}"]
    subprocess.run([*command, "-keyout", str(made.key), "-out", str(made.file)], check=True, capture_output=True)
    return made
