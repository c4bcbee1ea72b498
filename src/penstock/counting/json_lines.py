"""Access logs with one JSON object in each line: nginx and Apache, Caddy, Traefik and Envoy.

Caddy, Traefik and Envoy have names of their own. In nginx and Apache the administrator chooses the names, so several
are known for each column, and the first one present is taken.

The programs write other objects into the same stream, some of them about the same request. Only the line of the access
log is a request, and it has a URL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.counting.kinds import EXACT
from penstock.counting.request import Column, LineReader, Precision
from penstock.counting.stamps import any_stamp, moment_of_any

_decode = msgspec.json.Decoder(dict[str, Any]).decode

Values = Mapping[Column, object]


def _nginx(line: Mapping[str, Any]) -> Values | None:
    found: dict[Column, object] = {}
    for column, names in _NGINX_NAMES.items():
        found[column] = next((line[name] for name in names if name in line), None)
    request, method = found["request"], _first(line, _METHODS)
    if request is None or (method and " " not in str(request)):
        path = _first(line, _PATHS) if request is None else str(request)
        found["request"] = _request_of(method, path, _first(line, _ARGUMENTS))
    return found


_NGINX_NAMES: dict[Column, tuple[str, ...]] = {
    "client": ("remote_addr", "remote_ip", "remoteIP", "client_ip", "clientip", "client", "ip", "http_x_forwarded_for"),
    "stamp": ("time_local", "time_iso8601", "time", "timestamp", "@timestamp", "msec", "ts", "date", "datetime"),
    "request": ("request",),
    "status": ("status", "status_code", "response", "response_code"),
    "size": ("body_bytes_sent", "bytes_sent", "bytes", "size", "response_size"),
    "referer": ("http_referer", "http_referrer", "referer", "referrer"),
    "agent": ("http_user_agent", "user_agent", "agent", "useragent", "userAgent"),
    "vhost": ("host", "http_host", "server_name", "vhost"),
}
_METHODS = ("request_method", "method", "verb")
_PATHS = ("request_uri", "uri", "url", "path", "document_uri")
_ARGUMENTS = ("query_string", "args", "request_query", "query")


def _first(line: Mapping[str, Any], names: Sequence[str]) -> str:
    return str(next((line[name] for name in names if line.get(name)), ""))


def _request_of(method: object, path: object, query: str = "") -> str | None:
    if not isinstance(path, str) or path in {"", "-"}:
        return None
    if query and "?" not in path:
        path += f"?{query.removeprefix('?')}"
    return f"{method or '-'} {path}"


def _caddy(line: Mapping[str, Any]) -> Values | None:
    request = line.get("request")
    if not isinstance(request, dict) or not _is_of_caddys_access_log(line):
        return None
    headers = {str(name).lower(): value for name, value in (request.get("headers") or {}).items()}
    return {
        "client": request.get("client_ip") or request.get("remote_ip") or request.get("remote_addr"),
        "stamp": line.get("ts"),
        "request": _request_of(request.get("method"), request.get("uri")),
        "status": line.get("status"),
        "size": line.get("size"),
        "referer": _header(headers.get("referer")),
        "agent": _header(headers.get("user-agent")),
        "vhost": request.get("host"),
    }


def _is_of_caddys_access_log(line: Mapping[str, Any]) -> bool:
    """Caddy also writes the request with its errors and, when it debugs, with each round trip to an upstream. A filter
    may have removed the name of the logger, the message, or both; only the access log has a size."""
    if "logger" in line:
        return f"{line['logger']}.".startswith("http.log.access.")
    return line["msg"] == "handled request" if "msg" in line else "size" in line


def _header(values: object) -> object:
    return values[0] if isinstance(values, list) and values else None


def _traefik(line: Mapping[str, Any]) -> Values | None:
    if "DownstreamStatus" not in line and "OriginStatus" not in line:
        return None
    return {
        "client": line.get("ClientHost") or line.get("ClientAddr"),
        "stamp": line.get("StartLocal") or line.get("StartUTC") or line.get("time"),
        "request": _request_of(line.get("RequestMethod"), line.get("RequestPath")),
        "status": line.get("DownstreamStatus", line.get("OriginStatus")),
        "size": line.get("DownstreamContentSize", line.get("OriginContentSize")),
        "referer": line.get("request_Referer"),
        "agent": line.get("request_User-Agent"),
        "vhost": line.get("RequestHost"),
    }


def _envoy(line: Mapping[str, Any]) -> Values | None:
    if "response_code" not in line or "start_time" not in line:
        return None
    forwarded = line.get("x_forwarded_for")
    return {
        "client": line.get("downstream_remote_address") if forwarded in {None, "", "-"} else forwarded,
        "stamp": line["start_time"],
        "request": _request_of(line.get("method"), line.get("path")),
        "status": line["response_code"],
        "size": line.get("bytes_sent"),
        "referer": line.get("referer"),
        "agent": line.get("user_agent"),
        "vhost": line.get("authority"),
    }


# --- cells ---


def _text(value: object) -> bytes:
    return value.encode(errors="replace") if isinstance(value, str) and value != "-" else b""


def _client(value: object) -> bytes:
    """The first of a list of clients."""
    return value.partition(",")[0].strip().encode(errors="replace") if isinstance(value, str) else b""


def _stamp(value: object) -> bytes:
    if isinstance(value, bool) or value is None:
        return b""
    return any_stamp(f"{value}".strip("[]").encode(errors="replace"))  # Apache writes %t with brackets


def _number(value: object) -> bytes:
    """The digits of a number that a table can hold, or of a text that contains one; else nothing."""
    if isinstance(value, bool):
        return b""
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        value = str(int(value))
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 18 and int(value) < EXACT:
        return value.encode()
    return b""


def _status(value: object) -> bytes:
    if value in {"", "-"}:
        return b"-"
    digits = _number(value)
    return digits if len(digits) == 3 or digits == b"0" else b""


def _size(value: object) -> bytes:
    return b"-" if value in {None, "", "-"} else _number(value)


_CELLS: dict[Column, Callable[[object], bytes]] = {
    "client": _client,
    "stamp": _stamp,
    "request": _text,
    "status": _status,
    "size": _size,
    "referer": _text,
    "agent": _text,
    "vhost": _text,
}
_REQUIRED: tuple[Column, ...] = ("stamp", "client", "status", "size")


@dataclass(frozen=True)
class JsonFormat:
    """A format with one JSON object in each line; `values` returns the columns of an object, or None."""

    name: str
    values: Callable[[Mapping[str, Any]], Values | None]

    def readers(self, wanted: frozenset[Column], precision: Precision, *, utc: bool) -> Sequence[LineReader]:
        columns: tuple[Column, ...] = (*_REQUIRED, *sorted(wanted - {*_REQUIRED}))
        makers: list[tuple[Column, Callable[[object], bytes]]] = [(column, _CELLS[column]) for column in columns]
        malformed = (b"",) * len(columns)

        def cells(line: bytes) -> tuple[bytes, ...]:
            if not line.startswith(b"{"):
                return malformed
            try:
                found = self.values(_decode(line))
                if found is None or not isinstance(found["request"], str):
                    return malformed
                row = tuple([make(found[column]) for column, make in makers])
            except (msgspec.DecodeError, UnicodeDecodeError, AttributeError, TypeError, RecursionError):
                return malformed
            return row if all(row[: len(_REQUIRED)]) else malformed

        def rows(text: bytes) -> list[tuple[bytes, ...]]:
            return [cells(line) for line in text.split(b"\n")[:-1]]

        cell: dict[Column, int] = {column: index for index, column in enumerate(columns)}
        return [LineReader(rows, cell, moment_of_any(utc=utc))]


CADDY = JsonFormat("caddy", _caddy)
TRAEFIK = JsonFormat("traefik", _traefik)
NGINX_JSON = JsonFormat("nginx-json", _nginx)
ENVOY = JsonFormat("envoy", _envoy)
