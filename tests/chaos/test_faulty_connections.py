"""Every component at work through connections that are delayed, cut, half-open and slow: nothing is lost or doubled."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from typing import get_args

import pytest

from penstock import Penstock, Settings
from tests.chaos import storm
from tests.chaos.load import Load
from tests.driver.proxy import Fault, Proxy
from tests.servers import Server

SECONDS = 0.6
"""Of each fault."""

IMPATIENT = Settings(reply_timeout=0.5, ping_interval=0.5, give_up_after=60, lease=2)


@pytest.mark.parametrize("face", ["blocking", "aio"])
def test_every_component_keeps_its_promises_behind_faulty_connections(face: str):
    faults: list[Fault] = list(get_args(Fault))
    until = time.monotonic() + (storm.seconds() if "PENSTOCK_STORM_SECONDS" in os.environ else 0) / 4
    with (
        Server() as server,
        contextlib.closing(Proxy(server, storm.seed())) as proxy,
        Penstock(proxy.address, prefix="load", settings=IMPATIENT) as app,
    ):
        with Load(app, face) as load:
            load.until_all_continue()
            for number, fault in enumerate(itertools.cycle(faults)):
                if number >= len(faults) and time.monotonic() > until:
                    break
                before, proxy.fault = proxy.faults, fault
                time.sleep(SECONDS)
                proxy.fault = None
                assert proxy.faults > before
            load.until_all_continue()
        print(f"{proxy.faults} faults; {load}")
        assert load.violations() == []
