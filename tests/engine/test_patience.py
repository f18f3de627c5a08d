"""Waiting for an answer: late ones are late by the time in which we ran, and what is there is never too late."""

from __future__ import annotations

import http.server
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from engine.patience import Patience

ASKS = """
import http.client, sys
from engine.process import cut_after
connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=6)
with cut_after(connection, 6):
    connection.request("GET", "/")
    print("asked", flush=True)
    print(connection.getresponse().status)
"""


class Source:
    """Is ready at a moment; a wait of n seconds takes that long, or as long as the process was stopped in it."""

    def __init__(self, ready_s: float, stops: dict[int, float] | None = None) -> None:
        self.clock_s, self.ready_s, self.stops, self.waits = 0.0, ready_s, stops or {}, 0

    def now_s(self) -> float:
        return self.clock_s

    def poll(self, timeout: float | None = None, /) -> list[tuple[int, int]]:
        assert timeout is not None
        asked_s = timeout / 1000
        self.clock_s = min(max(self.ready_s, self.clock_s), self.clock_s + asked_s)
        self.clock_s += self.stops.get(self.waits, 0.0)
        self.waits += 1
        return [(0, 1)] if self.clock_s >= self.ready_s else []


@pytest.mark.parametrize(("ready_s", "is_in_time"), [(0.0, True), (9.5, True), (10.5, False), (1e9, False)])
def test_an_answer_is_waited_for_as_long_as_was_said(ready_s: float, is_in_time: bool) -> None:
    source = Source(ready_s)
    patience = Patience(10, source.now_s)
    assert patience.wait(source) is is_in_time
    assert patience.left_s == pytest.approx(10 - min(ready_s, 10))


def test_a_process_that_was_stopped_does_not_call_an_answer_late() -> None:
    source = Source(ready_s=305.0, stops={2: 300.0})
    assert Patience(30, source.now_s).wait(source)


def test_what_is_there_already_counts_when_the_time_is_over() -> None:
    source = Source(ready_s=0.0)
    patience = Patience(0, source.now_s)
    assert patience.wait(source)
    assert not Patience(-1, source.now_s).wait(Source(ready_s=5.0))


def test_several_waits_share_one_time() -> None:
    source = Source(ready_s=6.0)
    patience = Patience(10, source.now_s)
    assert patience.wait(source)
    source.ready_s = 12.0
    assert not patience.wait(source)


def test_a_stopped_process_takes_the_answer_that_came_meanwhile() -> None:
    class Late(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            time.sleep(1)
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Late) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        argv = [sys.executable, "-c", ASKS, str(server.server_port)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, map(Path, sys.path)))}
        with subprocess.Popen(
            argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as asking:
            assert asking.stdout is not None
            assert asking.stdout.readline() == "asked\n"
            asking.send_signal(signal.SIGSTOP)
            time.sleep(7)  # longer than the whole limit
            asking.send_signal(signal.SIGCONT)
            out, err = asking.communicate(timeout=30)
        server.shutdown()
    assert (out, asking.returncode) == ("204\n", 0), err
