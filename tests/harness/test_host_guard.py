"""One campaign a host, and a guard that tells who holds it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.host_guard import Holder, guard_path, hold_host, look_at_host
from protocols.errors import HostError

HOLD = """
import sys, time
from pathlib import Path
from harness.host_guard import hold_host
with hold_host(Path("/somewhere/store"), path=Path(sys.argv[1])) as guard:
    guard.name_campaign("pair-1")
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Any:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / "guard")], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def test_a_second_campaign_is_refused_with_the_name_of_the_first(tmp_path: Path, holder: Any) -> None:
    with pytest.raises(HostError) as error, hold_host(tmp_path, path=tmp_path / "guard"):
        pass
    assert str(error.value) == f"process {holder.pid} already runs campaign pair-1 on this host"
    assert error.value.where == "store /somewhere/store"
    assert look_at_host(tmp_path / "guard").is_held


def test_a_holder_that_was_killed_frees_the_host_and_is_named(tmp_path: Path, holder: Any) -> None:
    holder.kill()
    holder.wait()
    state = look_at_host(tmp_path / "guard")
    assert (state.is_held, state.holder) == (False, Holder(pid=holder.pid, campaign="pair-1", store="/somewhere/store"))
    with hold_host(tmp_path, path=tmp_path / "guard") as guard:
        assert guard.stale_holder == Holder(pid=holder.pid, campaign="pair-1", store="/somewhere/store")


def test_a_holder_that_leaves_in_order_is_forgotten(tmp_path: Path) -> None:
    for _ in range(2):
        with hold_host(tmp_path, path=tmp_path / "guard") as guard:
            assert guard.stale_holder is None
            assert json.loads((tmp_path / "guard").read_text())["pid"] == os.getpid()
    assert look_at_host(tmp_path / "guard").holder is None


def test_half_a_line_of_a_dead_holder_is_not_a_holder(tmp_path: Path) -> None:
    (tmp_path / "guard").write_text('{"pid": 12, "camp')
    with hold_host(tmp_path, path=tmp_path / "guard") as guard:
        assert guard.stale_holder is None


def test_a_lock_whose_named_process_is_gone_is_still_respected(tmp_path: Path, holder: Any) -> None:
    """The lock decides, not the text: the holder may live in another container."""
    (tmp_path / "guard").write_text('{"pid": 4194305, "campaign": null, "store": "x"}')
    with (
        pytest.raises(HostError, match=r"although process 4194305 .* is gone"),
        hold_host(tmp_path, path=tmp_path / "guard"),
    ):
        pass


def test_the_guard_is_open_to_every_user_of_the_host(tmp_path: Path) -> None:
    with hold_host(tmp_path, path=tmp_path / "guard"):
        assert (tmp_path / "guard").stat().st_mode & 0o777 == 0o666


def test_a_link_in_place_of_the_guard_is_refused(tmp_path: Path) -> None:
    (tmp_path / "guard").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(HostError, match="cannot be opened"), hold_host(tmp_path, path=tmp_path / "guard"):
        pass
    assert not (tmp_path / "elsewhere").exists()


def test_without_a_name_in_the_environment_all_users_share_one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASSAY_HOST_GUARD", raising=False)
    assert guard_path().name == "assay-host.guard"
    monkeypatch.setenv("ASSAY_HOST_GUARD", "/x/guard")
    assert guard_path() == Path("/x/guard")


def test_a_campaign_does_not_start_while_another_runs(world: Any, holder: Any, tmp_path: Path) -> None:
    ended = world.run("run", world.protocol(), "--store", world.store, ASSAY_HOST_GUARD=str(tmp_path / "guard"))
    assert ended.code == 5
    assert f"process {holder.pid} already runs campaign pair-1" in ended.err
    assert not world.store.exists()
