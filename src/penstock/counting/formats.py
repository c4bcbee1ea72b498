"""The formats of access logs that are known by name, and which of them a log is in.

    common           %h %l %u %t "%r" %>s %b
    combined         the same, with referer and agent; further fields may follow, as in the `main` format of nginx
    vhost_common, vhost_combined    the same, with %v or %v:%p before it
    alb              AWS Application Load Balancer
    caddy, traefik, envoy, nginx-json    a JSON object in each line
    w3c              IIS, CloudFront: the columns are those that `#Fields:` in the file names

In all except w3c, each line may have a prefix of `prefixes.py`: syslog+combined, cri+common (Kubernetes), docker+caddy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from penstock.counting.format_strings import format_of
from penstock.counting.grammar import ALB, COMBINED, COMMON, COMMON_OR_COMBINED, VHOST_COMBINED, VHOST_COMMON
from penstock.counting.json_lines import CADDY, ENVOY, NGINX_JSON, TRAEFIK
from penstock.counting.prefixes import PREFIXES, PrefixedFormat
from penstock.counting.request import Column, LineReader, LogFormat, Precision, without_marks
from penstock.counting.w3c import FIELDS, w3c_format
from penstock.errors import ConfigurationError

PLAIN: tuple[LogFormat, ...] = (COMBINED, COMMON, VHOST_COMBINED, VHOST_COMMON)
"""The formats of Apache and nginx that are known by name."""

_FORMATS: tuple[LogFormat, ...] = (*PLAIN, ALB, CADDY, TRAEFIK, ENVOY, NGINX_JSON)
_SYNONYMS = {"main": "combined", "json": "nginx-json", "nginx": "combined", "apache": "combined"}

SAMPLE_LINES = 200
"""Lines from which a format is guessed."""


@dataclass(frozen=True)
class AnyFormat:
    """Every format that one line is enough to recognise: all except w3c. No line is in two of them."""

    name: str = "any"

    def readers(self, wanted: frozenset[Column], precision: Precision, *, utc: bool) -> Sequence[LineReader]:
        return [reader for format in _EVERY for reader in format.readers(wanted, precision, utc=utc)]


_BARE: tuple[LogFormat, ...] = (COMMON_OR_COMBINED, ALB, CADDY, TRAEFIK, ENVOY, NGINX_JSON)
_EVERY = (*_BARE, *(PrefixedFormat(prefix, format) for prefix in PREFIXES for format in _BARE))

ANY = AnyFormat()


def log_format(name: str) -> LogFormat:
    """The format with this name, or the one that a text in the syntax of nginx or Apache describes. A prefix may be
    before it, as in `syslog+combined`; `w3c date time c-ip` names the fields of a W3C log.

    Raises ConfigurationError if there is no such format.
    """
    prefix, plus, rest = name.partition("+")
    if plus and prefix in PREFIXES:
        return PrefixedFormat(prefix, log_format(rest))
    if "$" in name or "%" in name:
        return format_of(name)
    if name == ANY.name:
        return ANY
    if name.startswith("w3c "):
        return w3c_format(name.removeprefix("w3c "))
    for format in _FORMATS:
        if format.name == _SYNONYMS.get(name, name):
            return format
    known = ", ".join(format.name for format in _FORMATS)
    raise ConfigurationError(
        f"no format is called {name!r}. Choose one of {known}, w3c; put a prefix ({', '.join(PREFIXES)}) before it, as "
        "in syslog+combined; or write the format as the server's configuration does, with $variables or %directives"
    )


def guess_format(lines: Sequence[bytes]) -> LogFormat | None:
    """The format that matches the most of these lines, usually the first lines of a log. None if no line is in a format
    that is known. The columns of a W3C log are those of the first `#Fields:` that names enough of them."""
    lines = [line for line in lines if line.strip()][:SAMPLE_LINES]
    text = without_marks(b"\n".join([*(line.removesuffix(b"\n") for line in lines), b""]))
    for line in text.split(b"\n"):
        if line.startswith(FIELDS):
            with suppress(ConfigurationError):
                return w3c_format(line.removeprefix(FIELDS).decode(errors="replace"))
    best = max(_candidates(text), key=lambda format: _read(format, text), default=None)
    return best if best and _read(best, text) else None


def _candidates(text: bytes) -> Iterator[LogFormat]:
    yield from _FORMATS
    for prefix, removals in PREFIXES.items():
        if any(remove(text).strip() for remove in removals):
            yield from (PrefixedFormat(prefix, format) for format in _FORMATS)


def _read(format: LogFormat, text: bytes) -> int:
    """How many lines of a text are in this format."""
    readers = [reader for reader in format.readers(frozenset(), "second", utc=False) if not reader.quick]
    return max(sum(map(reader.reads, reader.rows(text))) for reader in readers)
