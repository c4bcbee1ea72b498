"""A codec for tests, and a listener that hears what a server gets, sends and stores."""

import contextlib
import hashlib
import itertools
import os
import socket
import threading
from collections.abc import Iterable, Iterator
from functools import partial
from operator import contains
from typing import Any

from tests.servers import Server, eventually

MARKER = "the text that nobody may read"


class TestSeal:
    """Seals with the last of its keys. Not a cipher: it only makes a text unreadable, and notices a wrong key."""

    __test__ = False

    def __init__(self, *keys: str, secret: bytes = b"") -> None:
        self.keys = keys
        self._secret = secret

    def seal(self, body: bytes) -> tuple[str, bytes]:
        key, nonce = self.keys[-1], os.urandom(8)
        check = hashlib.blake2b(body, key=nonce, digest_size=8).digest()
        return key, nonce + self._mixed(key, nonce, check + body)

    def open(self, sealed: bytes, key: str) -> bytes:
        if key not in self.keys:
            raise KeyError(key)
        opened = self._mixed(key, sealed[:8], sealed[8:])
        if hashlib.blake2b(opened[8:], key=sealed[:8], digest_size=8).digest() != opened[:8]:
            raise ValueError("wrong key")
        return opened[8:]

    def _mixed(self, key: str, nonce: bytes, text: bytes) -> bytes:
        mask = hashlib.shake_256(self._secret + key.encode() + nonce).digest(len(text))
        return bytes(a ^ b for a, b in zip(text, mask, strict=True))


class Wire:
    """Everything that servers were sent, and all commands that their scripts executed."""

    def __init__(self) -> None:
        self._texts: list[bytearray] = []

    def __contains__(self, text: str) -> bool:
        return any(text.encode() in heard for heard in self._texts)

    @property
    def is_silent(self) -> bool:
        return not any(len(heard) > len(b"+OK\r\n") for heard in self._texts)


@contextlib.contextmanager
def listening(nodes: Iterable[Server]) -> Iterator[Wire]:
    """Hear what these servers are sent during the block."""
    wire = Wire()
    with contextlib.ExitStack() as opened:
        for node in nodes:
            heard = bytearray()
            wire._texts.append(heard)
            connection = opened.enter_context(contextlib.closing(socket.socket(socket.AF_UNIX)))
            connection.connect(str(node.socket))
            connection.sendall(b"MONITOR\r\n")
            thread = threading.Thread(target=_read, args=(connection, heard), daemon=True)
            thread.start()
            opened.callback(thread.join)
            opened.callback(connection.shutdown, socket.SHUT_RDWR)
            eventually(partial(heard.startswith, b"+OK"))
        yield wire
        for node, heard in zip(nodes, wire._texts, strict=True):
            end = f"end {next(_numbers)}"
            node.client.echo(end)
            eventually(partial(contains, heard, end.encode()))


_numbers = itertools.count()


def _read(connection: socket.socket, heard: bytearray) -> None:
    with contextlib.suppress(OSError):
        while data := connection.recv(1 << 16):
            heard += data


def stored(client: Any, text: str) -> list[str]:
    """The keys of a server in which a text stands, in their names or anywhere in their values."""
    found = []
    for key in client.scan_iter(count=1000):
        kind = client.type(key)
        match kind:
            case b"string":
                value: Any = client.get(key)
            case b"hash":
                value = client.hgetall(key)
            case b"list":
                value = client.lrange(key, 0, -1)
            case b"set":
                value = client.smembers(key)
            case b"zset":
                value = client.zrange(key, 0, -1)
            case b"stream":
                value = client.xrange(key)
            case _:
                raise AssertionError(kind)
        if text in repr(key) or text in repr(value):
            found.append(key.decode())
    return found
