"""The attributes of valkey-py and redis-py that neither documents: each is there, and is what the driver takes it for.

Each test is named after the attribute, so a new release of a library that moves one fails with its name.
"""

from __future__ import annotations

import asyncio
import inspect
import socket
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

from penstock.driver.library import (
    add_command,
    log_in,
    log_in_only_once,
    log_in_option,
    open_socket,
    pipeline_commands,
    read_client,
    reply_parser,
)
from tests.servers import Cluster, Server

LIBRARIES = ("valkey", "redis")
CLIENTS = {"valkey": "Valkey", "redis": "Redis"}

every_library = pytest.mark.parametrize("library", LIBRARIES)


@every_library
def test_connection_sock(library: str, server: Server):
    connection = import_module(f"{library}.connection").UnixDomainSocketConnection(path=str(server.socket))
    assert connection._sock is None, "Connection._sock"
    connection.connect()
    assert isinstance(connection._sock, socket.socket), "Connection._sock"
    connection.disconnect()


@every_library
def test_connection_parser_and_its_reader(library: str, server: Server):
    pytest.importorskip({"valkey": "libvalkey", "redis": "hiredis"}[library])
    connection = import_module(f"{library}.connection").UnixDomainSocketConnection(path=str(server.socket), protocol=2)
    connection.connect()
    found, opened = reply_parser(connection), open_socket(connection)
    if import_module(library).__version__ == "5.0.1":  # of redis-py: the library reads the replies itself
        assert found is None
        return
    assert found is not None, "Connection._parser._reader, NOT_ENOUGH_DATA"
    assert opened is not None
    parser, incomplete = found
    opened.sendall(b"*2\r\n$4\r\nPING\r\n$3\r\nyou\r\nNONSENSE\r\n")
    received = b""
    while received.count(b"\r\n") < 3:
        received += opened.recv(4096)
    parser.feed(received[:7])
    assert parser.gets() is incomplete, "NOT_ENOUGH_DATA"
    parser.feed(received[7:])
    assert parser.gets() == b"you"
    assert type(parser.gets()).__name__ == "ResponseError"
    connection.disconnect()


@every_library
def test_a_parser_in_python_has_no_reader_in_c(library: str, server: Server):
    module = import_module(f"{library}.connection")
    parser = import_module(f"{library}._parsers")._RESP2Parser
    connection = module.UnixDomainSocketConnection(path=str(server.socket), protocol=2, parser_class=parser)
    connection.connect()
    assert reply_parser(connection) is None
    connection.disconnect()


@every_library
async def test_connection_writer(library: str, server: Server):
    module = import_module(f"{library}.asyncio.connection")
    connection = module.UnixDomainSocketConnection(path=str(server.socket))
    assert connection._writer is None, "Connection._writer"
    await connection.connect()
    assert isinstance(connection._writer, asyncio.StreamWriter), "Connection._writer"
    assert isinstance(connection._writer.get_extra_info("socket")._sock, socket.socket), "TransportSocket._sock"
    await connection.disconnect()


@every_library
async def test_connection_connect_func_and_on_connect(library: str, server: Server):
    called: list[Any] = []

    async def note(connection: Any) -> None:
        called.append(connection)
        await log_in(connection)

    (name,) = log_in_option(library)
    module = import_module(f"{library}.asyncio.connection")
    connection = module.UnixDomainSocketConnection(path=str(server.socket), client_name="ada", **{name: note})
    log_in_only_once(connection)
    server.client.config_resetstat()
    await connection.connect()
    assert server.client.info("commandstats")["cmdstat_client|setname"]["calls"] == 1, "logged in more than once"
    assert called == [connection], name
    assert "writelines" in vars(connection._writer)
    await connection.send_command("PING")
    assert await connection.read_response() == b"PONG"
    await connection.disconnect()


@every_library
@pytest.mark.parametrize("face", ["", ".asyncio"])
def test_pipeline_command_stack_and_pipeline_execute_command(library: str, face: str):
    client = getattr(import_module(f"{library}{face}.client"), CLIENTS[library])()
    pipeline = client.pipeline()
    assert not pipeline_commands(pipeline), "Pipeline.command_stack"
    add_command(pipeline, "PING")
    assert len(pipeline_commands(pipeline)) == 1, "Pipeline.pipeline_execute_command"


@every_library
@pytest.mark.parametrize("face", ["", ".asyncio"])
def test_pool_connection_class_and_connection_kwargs(library: str, face: str):
    client = getattr(import_module(f"{library}{face}.client"), CLIENTS[library])(host="h", port=1, password="x")
    pool = client.connection_pool
    assert inspect.isclass(pool.connection_class), "ConnectionPool.connection_class"
    assert pool.connection_kwargs["password"] == "x", "ConnectionPool.connection_kwargs"
    assert read_client(client).options == {"password": "x"}


@every_library
@pytest.mark.parametrize("face", ["", ".asyncio"])
def test_pool_sentinel_manager_and_service_name(library: str, face: str):
    sentinel = import_module(f"{library}{face}.sentinel").Sentinel([("h", 1)])
    pool = sentinel.master_for("main").connection_pool
    assert pool.service_name == "main", "SentinelConnectionPool.service_name"
    (one,) = pool.sentinel_manager.sentinels
    assert one.connection_pool.connection_kwargs["host"] == "h", "SentinelConnectionPool.sentinel_manager.sentinels"


@every_library
async def test_cluster_nodes_manager(library: str):
    module = import_module(f"{library}.asyncio.cluster")
    client = getattr(module, f"{CLIENTS[library]}Cluster")(startup_nodes=[module.ClusterNode("127.0.0.1", 1)])
    manager = client.nodes_manager
    assert [(node.host, node.port) for node in manager.startup_nodes.values()] == [("127.0.0.1", 1)], "startup_nodes"
    assert manager.address_remap is None, "NodesManager.address_remap"
    arguments = getattr(client, "connection_kwargs", None) or manager.connection_kwargs
    assert isinstance(arguments, dict), "connection_kwargs"
    await client.aclose()


@every_library
def test_blocking_cluster_nodes_manager(library: str, cluster: Cluster):
    module = import_module(f"{library}.cluster")
    client = getattr(module, f"{CLIENTS[library]}Cluster")(host="127.0.0.1", port=cluster.nodes[0].port)
    ports = {node.port for node in client.nodes_manager.startup_nodes.values()}
    assert cluster.nodes[0].port in ports, "NodesManager.startup_nodes"
    assert client.nodes_manager.address_remap is None, "NodesManager.address_remap"
    arguments = getattr(client, "connection_kwargs", None) or client.nodes_manager.connection_kwargs
    assert isinstance(arguments, dict), "NodesManager.connection_kwargs"
    client.close()


def test_no_other_module_touches_them(source_of: Callable[[str], str]):
    for name in ("aio", "blocking", "connector", "engine", "server_driver"):
        text = source_of(name)
        for attribute in (
            "._sock",
            "._writer",
            "._parser._",
            "command_stack",
            "pipeline_execute",
            "nodes_manager",
            "connection_kwargs",
        ):
            assert attribute not in text.replace("self._writer", ""), f"driver/{name}.py touches {attribute}"


@pytest.fixture
def source_of() -> Callable[[str], str]:
    return lambda name: inspect.getsource(import_module(f"penstock.driver.{name}"))
