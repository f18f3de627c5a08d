"""Block selection over random histories: both ways, the reference, and a prefix rebuilt from nothing always agree."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from qsa_history import STEPS, play
from qsa_library import Library

# `make nightly` plays 10,000.
N_HISTORIES = int(os.environ.get("ASSAY_QSA_HISTORIES", "300"))


@pytest.mark.timeout(3600)
def test_every_input_equals_the_references_over_random_histories(
    qsa: Library, record_property: Callable[[str, object], None]
) -> None:
    counts = play(qsa, range(N_HISTORIES))
    record_property("qsa_histories", N_HISTORIES)
    for name, count in sorted(counts.items()):
        record_property(f"qsa_{name}", count)
    assert counts["runs"] > N_HISTORIES * STEPS / 2
    assert {"guarded", "general", "masked"} <= {name.split()[0] for name in counts}
    assert counts["prefix equal"] > counts["prefix untracked"]
    assert counts["guarded tracked"] > counts["runs"] / 2, "the guarded path is what most runs take"
