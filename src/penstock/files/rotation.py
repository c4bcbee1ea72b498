"""Names of rotated logs: which log a file such as `access.log.2.gz` or `access-20260302.log` once was."""

from __future__ import annotations

import os
import re

from penstock.files.unpack import SUFFIXES

_NUMBER = r"\.\d{1,6}"
_DATE = r"[-._]?\d{4}-?\d{2}-?\d{2}(?:[-_.T]\d{1,10}|[-_.T]?\d{2}[-_.:]?\d{2}(?:[-_.:]?\d{2})?)?"
_WORD = r"\.(?:old|bak|prev)"
_ROTATED = re.compile(rf"(?P<log>.+?)(?P<suffix>(?:{_NUMBER}|(?<=[^\d]){_DATE}|{_WORD})+)(?P<extension>\.[A-Za-z]\w*)?")


def unpacked_path(path: str) -> str:
    """The path without the suffix of a packed file."""
    return next((path.removesuffix(suffix) for suffix in SUFFIXES if path.endswith(suffix)), path)


def log_path(path: str) -> str:
    """The path of the log that this file was before it was rotated and packed; the path itself if it was not."""
    folder, name = os.path.split(unpacked_path(path))
    if found := _ROTATED.fullmatch(name):
        name = found["log"].rstrip("-._") + (found["extension"] or "")
    return os.path.join(folder, name)


def is_rotated(path: str) -> bool:
    """Whether this is a rotated log: it has a rotation suffix, and a file without the suffix is in the same folder."""
    log = log_path(path)
    return log != unpacked_path(path) and os.path.exists(log)
