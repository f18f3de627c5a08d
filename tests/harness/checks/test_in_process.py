"""Each check in process on real builds: a sound build passes it, and the fault that it is for does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from qwen_faulty import SEPARATE, built

from engine.models import fetched_model
from harness.checks.context import CheckContext
from harness.runner import need_of
from protocols.errors import EngineError


@pytest.mark.parametrize(
    ("check", "words"),
    [
        ("kind: operator_boundaries, rows: [65535, 65536], width: 8", "The norm is wrong at 65,536 rows"),
        (
            "kind: state_round_trip, prompt_tokens: 24, steps: 3, kv_mode: unified, image_side: 3, kv_type: f32",
            "The restored state saves to other bytes.",
        ),
        (
            "kind: sequence_copy, prompt_tokens: 134, steps: 3, kv_mode: split, kv_type: f32",
            "copied differs from continued",
        ),
        ("kind: sequence_reuse, prompt_tokens: 24, steps: 3, kv_type: f32", "reused differs from fresh"),
    ],
)
def test_a_sound_build_passes_and_the_fault_is_found(prepared: Any, outcome: Any, check: str, words: str) -> None:
    made = prepared(check, faulty=built("qwen-faults", *SEPARATE))
    assert outcome(made, "baseline").status == "PASS", outcome(made, "baseline").reason
    found = outcome(made)
    assert (found.status, words in found.reason) == ("FAIL", True), found.reason


def test_tokens_that_are_taken_back_leave_nothing(prepared: Any, outcome: Any) -> None:
    check = "kind: rollback, prompt_tokens: 134, steps: 6, rejected_tokens: 3, kv_type: f32"
    made = prepared(check, faulty=built("qwen-stale", "stale-prefix-after-rollback"))
    assert outcome(made, "baseline").status == "PASS", outcome(made, "baseline").reason
    found = outcome(made)
    assert (found.status, "rolled_back differs from continued" in found.reason) == ("FAIL", True), found.reason


def test_a_leak_is_found_by_the_memory_of_the_process(prepared: Any, outcome: Any) -> None:
    made = prepared("kind: memory_growth, steps: 64", faulty=built("qwen-noise", "nondeterministic", "leak"))
    assert outcome(made, "baseline").status == "PASS", outcome(made, "baseline").reason
    found = outcome(made)
    assert (found.status, found.inputs["bytes_per_step"] > 32_768) == ("FAIL", True), found.reason


def test_block_selection_is_compared_by_hash_and_its_suites_run(prepared: Any, outcome: Any) -> None:
    made = prepared("kind: mapping_grid, suites: [reproducer]", faulty=built("qwen-position", "position-only-blocks"))
    sound = outcome(made, "baseline")
    assert (sound.status, sound.inputs["control_differs"]) == ("PASS", True), sound.reason
    found = outcome(made)
    assert (found.status, "suite reproducer: 16 of 16 cases failed" in found.reason) == ("FAIL", True), found.reason


COST = 'kind: operation_cost, depth_tokens: 32, batches: [1, 5], samples: 2, most_rounds: 4, most_increase_pct: "99"'


def test_a_cost_is_measured_in_turns_with_equal_logits(prepared: Any, outcome: Any) -> None:
    found = outcome(prepared(COST))
    assert found.status in {"PASS", "INCONCLUSIVE"}, found.reason  # the host is not quiet
    assert {"batch_1", "batch_5"} <= set(found.inputs)
    assert found.inputs["batch_1"]["rounds"] == 4


def test_every_round_of_a_cost_starts_both_arms_anew(
    prepared: Any, outcome: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes for all rounds: one of them may have its threads on one core all along, which looks like a cost."""
    started: list[str] = []
    worker = CheckContext.worker

    def counted(self: CheckContext, arm: Any = None) -> Any:
        started.append(arm or self.arm)
        return worker(self, arm)

    monkeypatch.setattr(CheckContext, "worker", counted)
    outcome(prepared(COST))
    assert started == ["candidate", "baseline", "baseline", "candidate"] * 2


def test_logits_that_change_from_call_to_call_fail_a_cost(prepared: Any, outcome: Any) -> None:
    found = outcome(prepared(COST, faulty=built("qwen-noise", "nondeterministic", "leak")))
    assert (found.status, found.reason.startswith("Logits differ")) == ("FAIL", True), found.reason


def test_a_cost_beside_an_engine_without_a_library_is_not_run(prepared: Any, outcome: Any, world: Any) -> None:
    made = prepared(COST, candidate="{kind: llama-server, path: engines/fake_engine.py}")
    assert outcome(made, "baseline").reason == "The other arm has no library to measure beside this one."
    assert outcome(made).status == "NOT_RUN"


IMAGES = "kind: images_in_history, depths: [520, 700, 900], image_side: 8, ubatch_tokens: 128"


def test_an_image_that_disables_the_prefix_is_found_by_the_steps_of_a_chunk(
    prepared: Any, outcome: Any, recall_model: Any
) -> None:
    made = prepared(IMAGES, model=recall_model, faulty=built("qwen-masked", "image-disables-prefix"))
    sound = outcome(made, "baseline")
    assert sound.status == "PASS", sound.reason
    found = outcome(made)
    assert (found.status, "host steps of the last full chunk" in found.reason) == ("FAIL", True), found.reason


def test_a_failed_allocation_is_a_recorded_cell(prepared: Any, outcome: Any, recall_model: Any) -> None:
    found = outcome(prepared(f"{IMAGES}, address_space_mib: 64", model=recall_model), "baseline")
    assert (found.status, "the request failed" in found.reason) == ("FAIL", True), found.reason
    assert "open_session" in found.inputs["depths"][0]["without"]["answer"]


@pytest.fixture
def smollm2() -> Path:
    """Return a model without a recurrent state, and without images."""
    try:
        return fetched_model("smollm2")
    except EngineError as error:
        pytest.skip(f"NOT_RUN: {error}")


def test_a_model_without_images_is_not_run_and_says_so(prepared: Any, outcome: Any, smollm2: Path) -> None:
    check = "kind: state_round_trip, prompt_tokens: 64, steps: 2, image_side: 4"
    found = outcome(prepared(check, model=smollm2), "baseline")
    assert found.reason == "The check was not run: a model of the architecture llama takes no images."


def test_tokens_are_taken_back_from_a_model_without_a_recurrent_state(
    prepared: Any, outcome: Any, smollm2: Path
) -> None:
    found = outcome(prepared("kind: rollback, prompt_tokens: 8, steps: 2", model=smollm2), "baseline")
    assert found.status == "PASS", found.reason


def test_the_logits_that_checks_leave_are_part_of_the_disk_that_a_campaign_needs(prepared: Any) -> None:
    made = prepared("kind: foreign_content, prompt_tokens: 8, foreign_tokens: 8, steps: 5")
    n_vocab, arms, blocks = 512, 2, 3
    assert need_of(made).check_disk_bytes == arms * blocks * 5 * n_vocab * 4
    assert need_of(prepared("kind: mapping_grid")).check_disk_bytes == 0
