"""Block selection over random histories: both ways, the reference, and a prefix rebuilt from nothing always agree."""

from __future__ import annotations

import os
from collections import Counter

import pytest
from qsa_history import History
from qsa_library import Library

# `make nightly` runs 10,000.
N_HISTORIES = int(os.environ.get("ASSAY_QSA_HISTORIES", "300"))
STEPS = 12


@pytest.mark.timeout(3600)
def test_every_input_equals_the_references_over_random_histories(qsa: Library) -> None:
    counts: Counter[str] = Counter()
    for seed in range(N_HISTORIES):
        history = History(qsa, seed)
        try:
            for _ in range(STEPS):
                history.step()
        except AssertionError as error:
            raise AssertionError(f"history {seed} ({history.policy}, ratio {history.ratio})") from error
        finally:
            history.close()
        counts += history.counts
    print(f"{N_HISTORIES} histories: {dict(sorted(counts.items()))}")
    assert counts["runs"] > N_HISTORIES * STEPS / 2
    routes = {name.split()[0] for name in counts}
    assert {"guarded", "general", "masked"} <= routes
    assert counts["prefix equal"] > counts["prefix untracked"]
    assert counts["guarded tracked"] > counts["runs"] / 4, "the guarded path is what most runs take"
