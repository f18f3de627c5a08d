"""`assay trend` over real campaigns and over a list, and `assay view`."""

from __future__ import annotations

from typing import Any

import pytest


def test_campaigns_against_one_baseline_are_one_series_and_a_slow_release_shows(world: Any) -> None:
    gates, claim = world.EXACT_GATES + world.LOSS_GATE, "non_inferiority"
    for name, slow in (("first", []), ("second", []), ("third", ["--fault", "slow=30"])):
        path = world.protocol(name=name, candidate=slow, schedule=world.BLOCKS, gates=gates, claim=claim)
        world.run("run", path, "--store", world.store)
    (found,) = world.run("trend", "--store", world.store, "--json").json()
    assert [point["name"].split("-")[0] for point in found["points"]] == ["first", "second", "third"]
    (change,) = found["changes"]
    assert change["to"].startswith("third")
    assert change["after_pct"] == pytest.approx(-30, abs=0.01)
    assert found["band_pct"] is None
    shown = world.run("trend", "--store", world.store).out
    assert "changed between second-" in shown
    assert "`assay calibrate` gives it" in shown


def test_a_list_without_a_record_is_a_series_too(world: Any) -> None:
    path = world.root / "releases.csv"
    rows = [f"r{n},{0.1 * (n % 3) - (4 if n > 5 else 0)},0.5" for n in range(12)]
    path.write_text("\n".join(["name,change_pct,error_pct", *rows]) + "\n")
    (found,) = world.run("trend", "--csv", path, "--json").json()
    assert [(change["from"], change["to"]) for change in found["changes"]] == [("r5", "r6")]
    steady = world.root / "steady.csv"
    steady.write_text("name,change_pct,error_pct,df\n" + "\n".join(f"r{n},{0.1 * (n % 2)},0.5,5" for n in range(6)))
    assert "no change point" in world.run("trend", "--csv", steady).out


HOSTILE = [
    f"name,change_pct,error_pct,df\na,0,1,5\nb,0,1,5\nc,{cells}\n"
    for cells in (
        "1,1," + "9" * 400,
        "1,1e308,5",
        "1,1e-320,5",
        "1e308,1,5",
        "1,5,5,5",
        "1,1_0,5",
        "1,1,1.5",
        "nan,1,5",
    )
]


@pytest.mark.parametrize("text", ["", "name,change_pct\na,1\n", "name,change_pct,error_pct\na,x,1\n", "name,change_pct,error_pct\na,-100,1\n", *HOSTILE])  # fmt: skip
def test_a_list_that_is_no_series_is_refused(world: Any, text: str) -> None:
    path = world.root / "releases.csv"
    path.write_text(text)
    assert world.run("trend", "--csv", path).code == 2


def test_a_campaign_without_a_loss_stands_in_no_series(world: Any) -> None:
    world.run("run", world.protocol(), "--store", world.store)
    ended = world.run("trend", "--store", world.store)
    assert ended.code == 6
    assert "computed no loss" in ended.err


def test_requests_are_described_arm_by_arm_and_never_called_observations(finished: Any) -> None:
    found = finished.run("view", "--store", finished.store, "--json").json()
    rows = {(row["measure"], row["arm"]): row for row in found["distributions"]}
    assert set(rows) == {(m, arm) for m in ("ttft", "itl", "tpot", "e2e") for arm in ("baseline", "candidate")}
    one = rows["ttft", "candidate"]
    assert (one["loads"], one["requests"], one["count"]) == (2, 2, 2)
    assert one["least_ms"] <= one["percentiles_ms"][1] <= one["most_ms"]
    gaps = rows["itl", "baseline"]
    assert gaps["count"] == 2 * 23, "24 tokens have 23 gaps"
    assert 0 <= gaps["between_loads"] <= 1
    assert one["between_loads"] is None, "one request a load leaves no spread inside a load"
    shown = finished.run("view", "--store", finished.store).out
    assert "Description only" in shown
    assert "a verdict counts fresh loads" in " ".join(shown.split())
