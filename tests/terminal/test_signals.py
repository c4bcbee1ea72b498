"""Signals that a command was started to ignore, and those that always end it."""

import signal

import pytest

from penstock.terminal.signals import interrupted_by, uninterrupted
from tests.servers import handling


def test_an_ignored_signal_stays_ignored_and_the_others_interrupt():
    with handling(signal.SIG_IGN, signal.SIGHUP), interrupted_by(signal.SIGTERM, signal.SIGHUP):
        signal.raise_signal(signal.SIGHUP)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)


def test_sigterm_interrupts_even_if_it_was_ignored():
    with (
        handling(signal.SIG_IGN, signal.SIGTERM),
        interrupted_by(signal.SIGTERM),
        pytest.raises(KeyboardInterrupt),
    ):
        signal.raise_signal(signal.SIGTERM)


def test_no_signal_interrupts_the_cleanup():
    with uninterrupted():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.raise_signal(number)
