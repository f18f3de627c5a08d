"""One running server of an arm, asked over HTTP: every exchange as it came, and the greedy request that checks ask."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from engine.process import Address, EngineProcess, cut_after
from harness.api_key import request_headers
from protocols.canonical import JsonValue

STOP_GRACE_S = 5.0
NO_ANSWER = 0
"""Stands for the status of an exchange without one."""
MAX_ANSWER_BYTES = 64 << 20
"""Longest answer that is read; 262,144 ids take 2 MB."""


class ArmServer:
    """One running server of an arm."""

    def __init__(self, process: EngineProcess, address: Address, *, timeout_s: float) -> None:
        self.process = process
        self._address = address
        self._timeout_s = timeout_s

    def ask(self, name: str, body: Mapping[str, Any], route: str = "/completion") -> dict[str, JsonValue]:
        """Post a body; return ``{"name","status","body"}``, the status 0 and the reason where no answer came."""
        return self.send(name, json.dumps(body).encode(), route)

    def send(self, name: str, body: bytes | None, route: str) -> dict[str, JsonValue]:
        """Post bytes, or get where there are none."""
        connection = http.client.HTTPConnection(*self._address, timeout=self._timeout_s)
        try:
            headers = {"Content-Type": "application/json", **request_headers()}
            with cut_after(connection, self._timeout_s):
                connection.request("GET" if body is None else "POST", route, body, headers)
                answer = connection.getresponse()
                text = _whole(answer).decode("utf-8", "replace")
        except (OSError, http.client.HTTPException) as error:
            return {"name": name, "status": NO_ANSWER, "body": f"no answer: {type(error).__name__} {error}"}
        else:
            return {"name": name, "status": answer.status, "body": text}
        finally:
            connection.close()

    def at_once(self, calls: Sequence[Callable[[], dict[str, JsonValue]]]) -> list[dict[str, JsonValue]]:
        """Make several calls that begin at the same moment; return what each gave, in order."""
        found: list[dict[str, JsonValue]] = [{} for _ in calls]
        start = threading.Barrier(len(calls))

        def make(place: int) -> None:
            start.wait()
            found[place] = calls[place]()

        threads = [threading.Thread(target=make, args=(place,)) for place in range(len(calls))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found


def _whole(answer: http.client.HTTPResponse) -> bytes:
    """Read a body in pieces: a length that is a lie reserves no memory. HTTPException where it is cut or too long."""
    data = bytearray()
    while piece := answer.read(1 << 20):
        data += piece
        if len(data) > MAX_ANSWER_BYTES:
            raise http.client.HTTPException(f"more than {MAX_ANSWER_BYTES} bytes")
    if answer.length:
        raise http.client.IncompleteRead(bytes(data), answer.length)
    return bytes(data)


def greedy_body(ids: Sequence[int], n_tokens: int, **more: object) -> dict[str, object]:
    """Return a greedy completion request over token ids that asks for the ids of its answer."""
    return {
        "prompt": [*ids],
        "n_predict": n_tokens,
        "temperature": 0,
        "seed": 1,
        "ignore_eos": True,
        "cache_prompt": True,
        "return_tokens": True,
        "stream": False,
        **more,
    }
