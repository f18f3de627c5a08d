"""Slots of engine-server: batching, choice, queue, failures and files, on the library whose replies the prompt dictates."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def start(start_scripted: Callable[..., Any], scripted_folder: Path, tmp_path: Path) -> Callable[..., Any]:
    """Start with flags; the decodes are traced."""
    return lambda *flags: start_scripted(
        "--model", str(scripted_folder / "model"), *flags, environment={"SCRIPTED_TRACE": str(tmp_path / "trace")}
    )


@pytest.fixture
def steps(tmp_path: Path) -> Callable[[], list[dict[int, int]]]:
    """Return a function that gives the decodes so far: tokens by slot."""

    def read() -> list[dict[int, int]]:
        lines = (tmp_path / "trace").read_text().splitlines() if (tmp_path / "trace").exists() else []
        return [{int(slot): int(n) for slot, n in re.findall(r"(\d+):(\d+)", line)} for line in lines]

    return read


def metric(server: Any, name: str) -> float:
    text = server.exchange("GET", "/metrics")[2].decode()
    return float(re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE).group(1))


PAUSE = "\x03" * 10  # in a prompt: the reply has ten tokens without text that take 20 ms each
SLOW = [260]  # a prompt token whose evaluation takes 20 ms


def test_a_prompt_is_evaluated_in_chunks_of_the_ubatch(start: Any, steps: Any) -> None:
    server = start("--ubatch-size", "8", "--ctx-size", "100")
    answer = server.post("/completion", prompt="x" * 18 + "ab|", n_predict=3)
    assert steps() == [{0: 8}, {0: 8}, {0: 5}, {0: 1}, {0: 1}]
    assert (answer["tokens_evaluated"], answer["timings"]["prompt_n"], answer["content"]) == (21, 21, "xxx")


def test_generation_goes_on_in_every_step_while_another_slot_prefills(start: Any, steps: Any) -> None:
    server = start("--ubatch-size", "8", "--parallel", "2", "--ctx-size", "300")
    with server.begin("/completion", prompt=[*SLOW * 100, ord("|")], stream=True) as first:
        server.wait_for(lambda: len(steps()) > 20)
        answer = server.post("/completion", prompt="y" * 63 + "|", n_predict=2)
        assert answer["content"] == "yy"
        shared = [step for step in steps() if len(step) == 2]
        assert shared[:10] == [{0: 1, 1: 7}] * 9 + [{0: 1, 1: 1}] * 1
        first.recv(1)


def test_several_prompts_share_a_batch_in_order_of_arrival(start: Any, steps: Any, in_parallel: Any) -> None:
    server = start("--ubatch-size", "16", "--parallel", "3", "--ctx-size", "100")
    with server.begin("/completion", prompt=[*SLOW * 10, ord("|")], n_predict=2, stream=True) as first:
        server.wait_for(lambda: server.busy_slots() == 1)
        second = server.begin("/completion", prompt="a" * 9 + "|", n_predict=1)
        server.wait_for(lambda: server.busy_slots() == 2)
        third = server.begin("/completion", prompt="b" * 19 + "|", n_predict=1)
        for connection in (second, third):
            assert connection.recv(10).startswith(b"HTTP/1.1 2")
            connection.close()
        first.recv(1)
    joint = [step for step in steps() if 1 in step]
    assert joint[0] == {0: 1, 1: 10} or joint[0] == {0: 1, 1: 10, 2: 5}, steps()
    assert sum(step.get(2, 0) for step in steps()) == 20


def test_eight_clients_share_four_slots(start: Any, steps: Any, in_parallel: Any) -> None:
    server = start("--parallel", "4", "--ctx-size", "100")
    texts = [f"client {i} says hello" for i in range(8)]
    answers = in_parallel(
        *(lambda text=text: server.post("/completion", prompt=text + PAUSE + "|", return_tokens=True) for text in texts)
    )
    assert [answer["content"] for answer in answers] == texts
    assert [bytes(answer["tokens"][: -1 - len(PAUSE)]).decode() for answer in answers] == texts
    assert {answer["id_slot"] for answer in answers} == {0, 1, 2, 3}
    assert all(len(step) <= 4 for step in steps())
    assert max(len(step) for step in steps()) > 1
    assert metric(server, "assay:requests_done_total") == 8
    assert metric(server, "llamacpp:tokens_predicted_total") == sum(len(text + PAUSE) + 1 for text in texts)
    assert metric(server, "llamacpp:requests_processing") == 0


def test_waiting_requests_are_served_in_order(start: Any) -> None:
    server = start("--ctx-size", "200")
    with server.begin("/completion", prompt=[*SLOW * 30, ord("|")], n_predict=1):
        server.wait_for(lambda: server.busy_slots() == 1)
        waiting = []
        for i in range(4):
            waiting.append(server.begin("/completion", prompt=f"{i}|", n_predict=1))
            server.wait_for(lambda i=i: metric(server, "llamacpp:requests_deferred") == i + 1)
        tasks = []
        for connection in waiting:
            connection.recv(100000)
            tasks.append(metric(server, "assay:requests_done_total"))
            connection.close()
        assert tasks == sorted(tasks)


def test_the_slot_with_the_longest_common_prefix_is_taken_else_the_one_unused_for_longest(start: Any) -> None:
    server = start("--parallel", "3", "--ctx-size", "100")
    assert [server.post("/completion", prompt=f"{c}aaaaaaaa|", n_predict=1)["id_slot"] for c in "xyz"] == [0, 1, 2]
    longer = server.post("/completion", prompt="yaaaaaaaa|more", n_predict=1)
    assert (longer["id_slot"], longer["timings"]["cache_n"], longer["timings"]["prompt_n"]) == (1, 10, 4)
    assert server.post("/completion", prompt="new|", n_predict=1)["id_slot"] == 0
    assert server.post("/completion", prompt="zaaa|", n_predict=1)["timings"]["cache_n"] == 4


def test_a_named_slot_is_waited_for_while_others_pass_by(start: Any) -> None:
    server = start("--parallel", "2", "--ctx-size", "200")
    with server.begin("/completion", prompt="\x03" * 90 + "|", id_slot=1) as busy:
        server.wait_for(lambda: server.busy_slots() == 1)
        named = server.begin("/completion", prompt="n|", id_slot=1, n_predict=1)
        assert server.post("/completion", prompt="other|", n_predict=1)["id_slot"] == 0
        assert metric(server, "assay:requests_done_total") == 1
        busy.recv(1)
        assert b'"id_slot":1' in named.recv(100000)
        named.close()
    assert "expected an integer from -1 to 1, got 2" in server.refused("/completion", prompt="a|", id_slot=2)["message"]


def test_a_follow_up_evaluates_only_what_is_new_and_at_least_one_token(start: Any, steps: Any) -> None:
    server = start("--ctx-size", "100")
    first = server.post("/completion", prompt="abcdef|", n_predict=3)
    assert (first["timings"]["cache_n"], first["tokens_cached"]) == (0, 9)
    again = server.post("/completion", prompt="abcdef|", n_predict=1)
    assert (again["timings"]["cache_n"], again["timings"]["prompt_n"], again["content"]) == (6, 1, "a")
    follow_up = server.post("/completion", prompt="abcdef|abcghi", n_predict=1)
    assert (follow_up["timings"]["cache_n"], follow_up["timings"]["prompt_n"]) == (7, 6)
    cut = server.post("/completion", prompt="abX|", n_predict=1)
    assert (cut["timings"]["cache_n"], cut["timings"]["prompt_n"], cut["work"]["n_tokens_evaluated"]) == (2, 2, 2)
    fresh = server.post("/completion", prompt="abX|", n_predict=1, cache_prompt=False)
    assert (fresh["timings"]["cache_n"], fresh["timings"]["prompt_n"], fresh["work"]["n_tokens_evaluated"]) == (0, 4, 4)
    assert steps()[-1] == {0: 4}


def test_a_model_whose_state_cannot_be_cut_is_evaluated_anew(start: Any) -> None:
    server = start("--ctx-size", "100", "--kv-type", "f32")
    server.post("/completion", prompt="abcdef|", n_predict=3)
    assert server.post("/completion", prompt="abcdef|", n_predict=2)["timings"]["cache_n"] == 0
    # "abcdef|" and the one generated token that was evaluated: this is a pure continuation, nothing is cut.
    assert server.post("/completion", prompt="abcdef|aX", n_predict=1)["timings"]["cache_n"] == 8


def test_a_failing_decode_is_a_500_and_the_slot_lives_on(start: Any) -> None:
    server = start("--ctx-size", "100")
    error = server.refused("/completion", prompt=[97, 258, 124])
    assert error == {"code": 500, "message": "the scripted failure", "type": "server_error"}
    assert server.post("/completion", prompt="ok|")["content"] == "ok"
    assert metric(server, "assay:requests_failed_total") == 1


@pytest.mark.parametrize("path", ["/completion", "/v1/completions"])
def test_a_failure_in_mid_stream_is_an_error_event(start: Any, path: str) -> None:
    server = start("--ctx-size", "100")
    *events, last = server.stream(path, prompt="ab\x01|", return_tokens=True)
    assert last == {"error": {"code": 500, "message": "the scripted failure", "type": "server_error"}}
    assert [event["tokens"] for event in events] == [[97], [98], [258]]
    assert server.refused(path, prompt="ab\x01|")["code"] == 500
    assert server.post("/completion", prompt="ok|")["content"] == "ok"


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_logits_that_are_not_numbers_are_an_error(start: Any, temperature: float) -> None:
    server = start("--ctx-size", "100")
    assert "not a number" in server.refused("/completion", prompt=[97, 124, 259], temperature=temperature)["message"]
    assert (
        "not a number" in server.stream("/completion", prompt="a\x02|", temperature=temperature)[-1]["error"]["message"]
    )
    assert server.post("/completion", prompt="ok|")["content"] == "ok"


def test_a_failure_of_one_request_in_a_batch_is_an_error_of_all_in_it_and_of_no_other(start: Any) -> None:
    server = start("--ctx-size", "200", "--parallel", "3", "--ubatch-size", "4")
    with server.begin("/completion", prompt=[*SLOW * 40, ord("|")], n_predict=1) as shares:
        server.wait_for(lambda: server.busy_slots() == 1)
        failing = server.begin("/completion", prompt="x\x01|", n_predict=5)
        assert b"500 Internal" in failing.recv(1000)
        failing.close()
        assert b"HTTP/1.1 " in shares.recv(1000)
    assert server.post("/completion", prompt="ok|")["content"] == "ok"


def test_a_prompt_that_does_not_fit_is_refused_whole(start: Any) -> None:
    server = start("--ctx-size", "16")
    assert server.post("/completion", prompt="x" * 14 + "|")["tokens_predicted"] == 1
    for path in ("/completion", "/v1/completions"):
        for stream in (False, True):
            error = server.refused(path, prompt="x" * 16, stream=stream)
            assert error["type"] == "exceed_context_size_error"
            assert (error["code"], error["n_prompt_tokens"], error["n_ctx"]) == (400, 16, 16)


def test_generation_ends_where_the_context_ends(start: Any) -> None:
    server = start("--ctx-size", "16")
    answer = server.post("/completion", prompt="abcdefghij|")
    assert (answer["content"], answer["stop_type"], answer["truncated"]) == ("abcde", "limit", False)
    assert (answer["tokens_predicted"], answer["tokens_cached"]) == (5, 15)


def test_a_unified_cache_gives_up_idle_prefixes_first(start: Any) -> None:
    server = start("--ctx-size", "32", "--parallel", "2", "--kv-unified")
    assert server.post("/completion", prompt="a" * 19 + "|", n_predict=1)["id_slot"] == 0
    assert server.post("/completion", prompt="b" * 19 + "|", n_predict=3)["content"] == "bbb"
    assert [slot["n_cells"] for slot in server.get("/slots")] == [0, 22]


def test_a_prompt_waits_until_a_unified_cache_has_room_for_it(start: Any, steps: Any) -> None:
    server = start("--ctx-size", "64", "--parallel", "2", "--kv-unified")
    with server.begin("/completion", prompt=[*SLOW * 40, ord("|")], n_predict=1) as first:
        server.wait_for(lambda: server.busy_slots() == 1)
        assert server.post("/completion", prompt="c" * 39 + "|", n_predict=1)["content"] == "c"
        assert first.recv(9) == b"HTTP/1.1 "
    assert all(len(step) == 1 for step in steps())


def test_a_full_unified_cache_ends_the_newest_request_with_an_error(start: Any, in_parallel: Any) -> None:
    server = start("--ctx-size", "64", "--parallel", "2", "--kv-unified")
    older = server.begin("/completion", prompt=[*SLOW * 20, ord("|")], stream=True)
    server.wait_for(lambda: server.busy_slots() == 1)
    events = server.stream("/completion", prompt=[*SLOW * 20, ord("|")])
    error = events[-1]["error"]
    assert (error["code"], error["type"]) == (503, "unavailable_error")
    assert "cache of 64 cells is full with 2 requests" in error["message"]
    assert [event["tokens"] for event in events[:-1]] == [[260]] * len(events[:-1])
    data = b""
    while b"0\r\n\r\n" not in data:
        data += older.recv(65536)
    older.close()
    assert b'"stop_type":"eos"' in data


def test_slots_show_counts_and_settings_but_no_text(start: Any) -> None:
    server = start("--parallel", "2", "--ctx-size", "100")
    server.post("/completion", prompt="secret words|", n_predict=4, stop=["hidden"], top_k=7)
    raw = server.exchange("GET", "/slots")[2]
    for text in (b"secr", b"words", b"hidden"):
        assert text not in raw
    used, unused = json.loads(raw)
    assert {"id": 1, "n_ctx": 100, "is_processing": False, "n_cells": 0}.items() <= unused.items()
    assert used["params"]["top_k"] == 7
    assert (used["n_prompt_tokens"], used["n_prompt_tokens_processed"], used["n_cells"]) == (13, 13, 16)
    assert used["next_token"] == [{"has_next_token": False, "has_new_line": False, "n_remain": 0, "n_decoded": 4}]


def test_a_slot_is_saved_restored_and_erased(start: Any, tmp_path: Path) -> None:
    server = start("--slot-save-path", str(tmp_path), "--parallel", "2", "--ctx-size", "100")
    server.post("/completion", prompt="abcdef|", n_predict=2, id_slot=0)
    saved = server.post("/slots/0?action=save", filename="one.bin")
    assert (saved["id_slot"], saved["filename"], saved["n_saved"]) == (0, "one.bin", 8)
    assert saved["n_written"] == (tmp_path / "one.bin").stat().st_size
    assert server.post("/slots/0?action=erase") == {"id_slot": 0, "n_erased": 8}
    assert server.post("/slots/0?action=erase") == {"id_slot": 0, "n_erased": 0}
    restored = server.post("/slots/1?action=restore", filename="one.bin")
    assert (restored["id_slot"], restored["n_restored"], restored["n_read"]) == (1, 8, saved["n_written"])
    follow_up = server.post("/completion", prompt="abcdef|", n_predict=1)
    assert (follow_up["id_slot"], follow_up["timings"]["cache_n"], follow_up["content"]) == (1, 6, "a")
    assert sorted(path.name for path in tmp_path.glob("*.bin*")) == ["one.bin"]


def test_a_pipe_in_the_place_of_a_slot_file_is_refused_at_once(start: Any, tmp_path: Path) -> None:
    server = start("--slot-save-path", str(tmp_path), "--ctx-size", "100")
    os.mkfifo(tmp_path / "pipe")
    assert "is not a regular file" in server.refused("/slots/0?action=restore", filename="pipe")["message"]


def test_a_changed_or_cut_slot_file_is_refused(start: Any, tmp_path: Path) -> None:
    server = start("--slot-save-path", str(tmp_path), "--ctx-size", "100")
    server.post("/completion", prompt="abc|", n_predict=1)
    server.post("/slots/0?action=save", filename="good")
    good = (tmp_path / "good").read_bytes()
    for place in (0, 9, 17, 25, len(good) // 2, len(good) - 1):
        (tmp_path / "bad").write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        assert "unable to restore" in server.refused("/slots/0?action=restore", filename="bad")["message"]
    for length in (0, 10, len(good) - 1):
        (tmp_path / "bad").write_bytes(good[:length])
        assert server.refused("/slots/0?action=restore", filename="bad")["code"] == 400
    (tmp_path / "link").symlink_to(tmp_path / "good")
    for name in ("link", "missing"):
        assert server.refused("/slots/0?action=restore", filename=name)["code"] == 400
    assert server.get("/slots")[0]["n_cells"] == 4
    assert server.post("/slots/0?action=restore", filename="good")["n_restored"] == 4


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "../a", "a..b", ".hidden", "a\\b", "a\nb", "a\x00b", "x" * 201, 3, None]
)
def test_a_slot_file_must_have_a_plain_name(start: Any, tmp_path: Path, name: Any) -> None:
    server = start("--slot-save-path", str(tmp_path), "--ctx-size", "100")
    before = sorted(tmp_path.iterdir())
    for action in ("save", "restore"):
        assert server.refused(f"/slots/0?action={action}", filename=name)["type"] == "invalid_request_error"
    assert sorted(tmp_path.iterdir()) == before


def test_slot_actions_need_a_folder_a_slot_and_a_known_action(start: Any, tmp_path: Path) -> None:
    server = start("--slot-save-path", str(tmp_path), "--ctx-size", "100")
    for path in (
        "/slots/1?action=erase",
        "/slots/x?action=erase",
        "/slots/-1?action=erase",
        "/slots/0?action=eat",
        "/slots/0",
    ):
        assert server.refused(path, filename="a")["code"] == 400
    without = start("--ctx-size", "100")
    for action in ("save", "restore", "erase"):
        error = without.refused(f"/slots/0?action={action}", filename="a")
        assert (error["code"], error["type"]) == (501, "not_supported_error")
        assert "--slot-save-path" in error["message"]


def test_a_slot_action_waits_for_the_request_in_its_slot(start: Any, tmp_path: Path) -> None:
    server = start("--slot-save-path", str(tmp_path), "--ctx-size", "100")
    with server.begin("/completion", prompt=[*SLOW * 30, ord("|")], n_predict=1) as busy:
        server.wait_for(lambda: server.busy_slots() == 1)
        assert server.post("/slots/0?action=save", filename="after")["n_saved"] == 31
        assert busy.recv(9) == b"HTTP/1.1 "


def test_metrics_are_prometheus_text(start: Any) -> None:
    server = start("--ctx-size", "100")
    server.post("/completion", prompt="abc|", n_predict=2)
    status, headers, body = server.exchange("GET", "/metrics")
    assert (status, headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    names = re.findall(r"^([a-z]+:[a-z_]+) -?[0-9.e+-]+$", body.decode(), re.MULTILINE)
    typed = re.findall(r"^# TYPE (\S+) (?:counter|gauge)$", body.decode(), re.MULTILINE)
    assert names == typed == re.findall(r"^# HELP (\S+) .+$", body.decode(), re.MULTILINE)
    assert metric(server, "llamacpp:prompt_tokens_total") == 4
    assert metric(server, "llamacpp:tokens_predicted_total") == 2
    assert metric(server, "assay:tokens_evaluated_total") == 5
