"""Starting and stopping engines: real processes that behave, misbehave and die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from engine.process import Address, EngineProcess, Readiness, free_port
from protocols.errors import EngineError

Script = Callable[[str], list[str]]
LISTEN = """
import json, os, signal, socket, sys, time
listener = socket.create_server(("127.0.0.1", 0))
print(json.dumps({"event": "listening", "host": "127.0.0.1", "port": listener.getsockname()[1], "pid": os.getpid()}), flush=True)
"""
OBEY = LISTEN + "signal.signal(signal.SIGTERM, lambda *_: os._exit(0))\ntime.sleep(600)\n"
HEALTH = """
import http.server, sys
answers = [int(code) for code in sys.argv[2].split(",")]
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(answers.pop(0) if len(answers) > 1 else answers[0])
        self.end_headers()
    def log_message(self, *arguments):
        pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.fixture
def start(tmp_path: Path, environment: dict[str, str]) -> Iterator[Callable[..., EngineProcess]]:
    with ExitStack() as stack:

        def run(argv: list[str], readiness: Readiness = "line", **extra: str) -> EngineProcess:
            engine = EngineProcess.start(
                argv,
                env=environment | extra,
                stdout_log=tmp_path / "stdout.log",
                stderr_log=tmp_path / "stderr.log",
                cwd=tmp_path,
                readiness=readiness,
            )
            return stack.enter_context(engine)

        yield run


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition: Callable[[], bool], seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return condition()


def test_the_readiness_line_says_where_the_engine_listens(
    start: Callable[..., EngineProcess], script: Script, tmp_path: Path
) -> None:
    engine = start(script(OBEY))
    address = engine.wait_ready(20)
    assert address.host == "127.0.0.1"
    assert f'"port": {address.port}' in (tmp_path / "stdout.log").read_text()
    assert f'"pid": {engine.pid}' in (tmp_path / "stdout.log").read_text()
    assert engine.is_alive


def test_an_engine_that_obeys_ends_with_its_own_code(start: Callable[..., EngineProcess], script: Script) -> None:
    engine = start(script(OBEY))
    engine.wait_ready(20)
    record = engine.stop(10)
    assert (record.code, record.signal, record.was_forced) == (0, None, False)
    assert record.seconds < 10
    assert not engine.is_alive
    assert engine.stop(10) is record


def test_an_engine_that_ignores_the_request_is_killed_after_the_grace_time(
    start: Callable[..., EngineProcess], script: Script
) -> None:
    engine = start(
        script("import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + LISTEN + "time.sleep(600)")
    )
    engine.wait_ready(20)
    record = engine.stop(0.3)
    assert (record.code, record.signal, record.was_forced) == (None, signal.SIGKILL, True)
    assert record.seconds >= 0.3
    assert record.text() == "signal SIGKILL"


def test_an_engine_that_died_by_itself_keeps_its_exit_code(start: Callable[..., EngineProcess], script: Script) -> None:
    engine = start(script(LISTEN + "sys.exit(7)"))
    assert wait_until(lambda: not engine.is_alive)
    record = engine.stop(5)
    assert (record.code, record.signal, record.was_forced) == (7, None, False)


def test_stopping_ends_what_the_engine_started(
    start: Callable[..., EngineProcess], script: Script, tmp_path: Path
) -> None:
    engine = start(
        script(
            "import subprocess\nchild = subprocess.Popen(['/bin/sleep', '600'])\nopen('child', 'w').write(str(child.pid))\n"
            + OBEY
        )
    )
    engine.wait_ready(20)
    child = int((tmp_path / "child").read_text())
    assert is_running(child)
    engine.stop(10)
    assert wait_until(lambda: not is_running(child))


def test_an_engine_that_crashes_takes_its_children_along(
    start: Callable[..., EngineProcess], script: Script, tmp_path: Path
) -> None:
    engine = start(
        script(
            "import subprocess\nchild = subprocess.Popen(['/bin/sleep', '600'])\nopen('child', 'w').write(str(child.pid))\n"
            + LISTEN
            + "os.abort()"
        )
    )
    assert wait_until(lambda: not engine.is_alive)
    child = int((tmp_path / "child").read_text())
    assert wait_until(lambda: not is_running(child))
    assert engine.stop(1).signal == signal.SIGABRT


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (
            "import sys\nprint('no such model', file=sys.stderr)\nsys.exit(3)",
            ["ended before it was ready (exit code 3)", "no such model"],
        ),
        ("import os\nos.abort()", ["signal SIGABRT"]),
        ("print('hello', flush=True)\nimport time\ntime.sleep(60)", ["printed 'hello' instead of its readiness line"]),
        (
            'print(\'{"event":"listening"}\', flush=True)\nimport time\ntime.sleep(60)',
            ["instead of its readiness line"],
        ),
        (
            'print(\'{"event":"listening","host":"127.0.0.1","port":0}\', flush=True)\nimport time\ntime.sleep(60)',
            ["instead of its readiness line"],
        ),
        ("print('[1]', flush=True)\nimport time\ntime.sleep(60)", ["instead of its readiness line"]),
        ("print('[' * 60000, flush=True)\nimport time\ntime.sleep(60)", ["instead of its readiness line"]),
        (
            "import sys\nsys.stdout.write('x' * 70000)\nsys.stdout.flush()\nimport time\ntime.sleep(60)",
            ["a very long one"],
        ),
        (
            LISTEN + "print('late words', file=sys.stderr, flush=True)\nsys.exit(1)",
            ["ended before it was ready (exit code 1)"],
        ),
    ],
)
def test_an_engine_that_does_not_become_ready_is_a_clear_error(
    start: Callable[..., EngineProcess], script: Script, source: str, words: list[str]
) -> None:
    engine = start(script(source))
    if "late words" in source:
        assert wait_until(lambda: not engine.is_alive)
    with pytest.raises(EngineError) as caught:
        engine.wait_ready(20)
    for expected in words:
        assert expected in str(caught.value)
    assert caught.value.hint == "the whole log is stderr.log"
    assert not engine.is_alive


def test_an_engine_that_takes_too_long_is_stopped(start: Callable[..., EngineProcess], script: Script) -> None:
    engine = start(script("import sys, time\nprint('still loading', file=sys.stderr, flush=True)\ntime.sleep(600)"))
    assert wait_until(lambda: engine.log_tail() != ())
    with pytest.raises(EngineError, match=r"not ready within 0.2 s; its last words:\n  still loading"):
        engine.wait_ready(0.2)
    assert not engine.is_alive


def test_a_program_that_cannot_be_executed_is_named(start: Callable[..., EngineProcess], tmp_path: Path) -> None:
    engine = start([str(tmp_path / "missing-server")])
    with pytest.raises(EngineError, match=r"cannot start .*missing-server: No such file or directory"):
        engine.wait_ready(20)


def test_readiness_by_health_waits_while_the_model_loads(start: Callable[..., EngineProcess], script: Script) -> None:
    engine = start([*script(HEALTH), "{port}", "503,503,200"], "health")
    address = engine.wait_ready(20)
    assert engine.argv[-2] == str(address.port)
    assert engine.stop(2).signal == signal.SIGTERM


def test_another_health_status_is_an_error(start: Callable[..., EngineProcess], script: Script) -> None:
    engine = start([*script(HEALTH), "{port}", "503,401"], "health")
    with pytest.raises(EngineError, match="/health with status 401"):
        engine.wait_ready(20)


def test_health_that_never_comes_ends_with_the_limit(start: Callable[..., EngineProcess], script: Script) -> None:
    engine = start([*script(HEALTH), "{port}", "503"], "health")
    with pytest.raises(EngineError, match=r"not ready within 0\.5 s"):
        engine.wait_ready(0.5)


def test_health_needs_a_place_for_the_port(start: Callable[..., EngineProcess], script: Script) -> None:
    with pytest.raises(EngineError, match=r"\{port\}"):
        start(script(OBEY), "health")


def test_the_engine_sees_only_its_own_environment(
    start: Callable[..., EngineProcess], script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_RUNNER", "x")
    engine = start(script("import json, os\njson.dump(dict(os.environ), open('seen', 'w'))\n" + OBEY), ARM="candidate")
    engine.wait_ready(20)
    seen = (tmp_path / "seen").read_text()
    assert '"ARM": "candidate"' in seen
    assert "SECRET_OF_THE_RUNNER" not in seen


def test_logs_are_appended_to_and_never_truncated(
    start: Callable[..., EngineProcess], script: Script, tmp_path: Path
) -> None:
    (tmp_path / "stderr.log").write_text("before\n")
    engine = start(script("import sys\nprint('after', file=sys.stderr)\nsys.exit(1)"))
    assert wait_until(lambda: not engine.is_alive)
    assert (tmp_path / "stderr.log").read_text() == "before\nafter\n"


def test_the_engine_dies_with_a_killed_runner(script: Script, tmp_path: Path) -> None:
    runner = script(
        f"""
import sys, time
sys.path[:0] = {sys.path!r}
from pathlib import Path
from engine.process import EngineProcess
folder = Path({str(tmp_path)!r})
engine = EngineProcess.start({script(OBEY)!r}, env={{}}, stdout_log=folder / "out", stderr_log=folder / "err")
engine.wait_ready(20)
print(engine.pid, flush=True)
time.sleep(600)
"""
    )
    process = subprocess.Popen(runner, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    assert is_running(pid)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert wait_until(lambda: not is_running(pid))


def test_the_engine_outlives_the_thread_that_started_it(start: Callable[..., EngineProcess], script: Script) -> None:
    started: list[EngineProcess] = []
    argv = script(OBEY)
    thread = threading.Thread(target=lambda: started.append(start(argv)))
    thread.start()
    thread.join()
    started[0].wait_ready(20)
    time.sleep(0.2)
    assert started[0].is_alive


def test_leaving_the_context_stops_the_engine(script: Script, tmp_path: Path, environment: dict[str, str]) -> None:
    with EngineProcess.start(
        script(OBEY), env=environment, stdout_log=tmp_path / "o", stderr_log=tmp_path / "e"
    ) as engine:
        engine.wait_ready(20)
    assert not engine.is_alive


def test_a_free_port_can_be_listened_on() -> None:
    port = free_port()
    assert 0 < port < 65536
    assert Address("127.0.0.1", port).port == port


def test_many_engines_start_and_end_without_leaving_a_process(script: Script, tmp_path: Path) -> None:
    pids = []
    argv = script(OBEY)
    for index in range(5):
        with EngineProcess.start(
            argv, env={}, stdout_log=tmp_path / f"o{index}", stderr_log=tmp_path / f"e{index}"
        ) as engine:
            engine.wait_ready(20)
            pids.append(engine.pid)
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists() and os.getpgid(pid) == pid]
