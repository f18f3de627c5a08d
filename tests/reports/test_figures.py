"""The figures of a campaign that ran for real, and of a machine that was made up."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree as ET

from reports.figures import MACHINE_FIGURE, TOKENS_FIGURE, campaign_figures

NAMESPACE = "{http://www.w3.org/2000/svg}"


def texts(svg: bytes) -> list[str]:
    return [element.text or "" for element in ET.fromstring(svg).iter(f"{NAMESPACE}text")]


def test_a_campaign_has_both_figures_with_every_load(finished: Any) -> None:
    figures = campaign_figures(finished.store, "latest")
    assert set(figures) == {MACHINE_FIGURE, TOKENS_FIGURE}
    for content in figures.values():
        assert {"A1", "C1", "C2", "A2"} <= set(texts(content))
    assert "tokens, cold" in " ".join(texts(figures[TOKENS_FIGURE]))


def test_the_figures_stand_in_the_evidence_and_are_the_same_again(finished: Any) -> None:
    folder = next(finished.store.glob("campaigns/*"))
    for name, content in campaign_figures(finished.store, "latest").items():
        assert (folder / name).read_bytes() == content


def test_phases_and_arms_are_shaded(finished: Any) -> None:
    machine = campaign_figures(finished.store, "latest")[MACHINE_FIGURE].decode()
    for colour in ("#1f77b4", "#d95f02", "#7570b3", "#1b9e77"):
        assert f"fill='{colour}' fill-opacity" in machine


def test_every_token_is_drawn(finished: Any) -> None:
    tokens = campaign_figures(finished.store, "latest")[TOKENS_FIGURE]
    drawn = [element.attrib["d"] for element in ET.fromstring(tokens).iter(f"{NAMESPACE}path")]
    assert len(drawn) == 4
    assert all(path.count("L") + path.count("M") >= 1 for path in drawn)
