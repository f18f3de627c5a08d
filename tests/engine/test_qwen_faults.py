"""Each known fault of the cache, the drafts and the norm is caught by the check that is there for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from qwen_data import SAME, Image, distance, greedy, greedy_with_drafts, opened, oracle, tiny_model
from qwen_faulty import SEPARATE

from engine.build import BuildSpec, EngineBuild, build_engine
from engine.worker import EngineWorker


@pytest.fixture(scope="module")
def faulty(bundled_build: EngineBuild) -> EngineBuild:
    del bundled_build  # shares its objects
    return build_engine(BuildSpec(name="qwen-faults", layout_salt=1, faults=SEPARATE))


@pytest.fixture(scope="module")
def workers(faulty: EngineBuild) -> Iterator[dict[str, EngineWorker]]:
    started = {name: EngineWorker(faulty.library) for name in ("tiny-a", "tiny-b")}
    for name, worker in started.items():
        worker.load(tiny_model(name))
    yield started
    for worker in started.values():
        worker.close()


def test_the_build_says_which_faults_it_has(workers: dict[str, EngineWorker]) -> None:
    assert set(workers["tiny-a"].build_info()["faults"]) == set(SEPARATE)


def test_a_split_copy_without_index_keys_is_caught(workers: dict[str, EngineWorker]) -> None:
    arrays = oracle("cache")
    worker = opened(workers["tiny-a"], sequences=2)
    worker.decode(arrays["A"].tolist(), start=0)
    worker.copy(0, 1)
    assert distance(worker.decode(arrays["Y"].tolist(), start=134, sequence=1), arrays["logits.AY"]) > 0.5
    assert distance(worker.decode(arrays["X"].tolist(), start=134, sequence=0), arrays["logits.AX"]) < SAME


def test_a_norm_that_ends_at_65535_rows_is_caught(workers: dict[str, EngineWorker], tiny_a: EngineWorker) -> None:
    for rows in (65535, 65536, 131072):
        assert tiny_a.norm_check(rows)["worst_error"] < 1e-6
    assert workers["tiny-a"].norm_check(65535)["worst_error"] < 1e-6
    assert workers["tiny-a"].norm_check(65536)["worst_error"] > 0.1


def test_a_state_that_loses_rows_and_columns_is_caught(workers: dict[str, EngineWorker]) -> None:
    image = Image("tiny-a")
    worker = opened(workers["tiny-a"], sequences=2)
    image.decode(worker, 0, image.end + 5)
    state = worker.save(0)
    worker.restore(1, state)
    assert worker.save(1) != state
    # A state without an image says nothing about it.
    opened(worker)
    worker.decode([1, 2, 3], start=0)


def test_a_draft_that_is_accepted_wrongly_is_caught(workers: dict[str, EngineWorker]) -> None:
    prompt = oracle("mtp")["spec.1.prompt"].tolist()
    needed = greedy(opened(workers["tiny-b"]), prompt, 40)
    found, _ = greedy_with_drafts(opened(workers["tiny-b"], draft_tokens=3), prompt, 40, 3)
    assert found != needed


def test_a_slot_that_keeps_what_was_removed_is_caught(workers: dict[str, EngineWorker]) -> None:
    arrays = oracle("tiny-a")
    tokens, needed = arrays["short.ids"].tolist(), arrays["short.logits_hf"]
    worker = opened(workers["tiny-a"])
    assert distance(worker.decode(tokens, start=0), needed) < SAME
    worker.remove(sequence=0)
    assert distance(worker.decode(tokens, start=0), needed) > 0.1


def test_a_target_that_knows_only_the_shortlist_is_caught(bundled_build: EngineBuild) -> None:
    del bundled_build
    build = build_engine(BuildSpec(name="qwen-shortlist", layout_salt=1, faults=("shortlist-in-target",)))
    prompt = oracle("mtp")["spec.1.prompt"].tolist()
    with EngineWorker(build.library) as worker:
        worker.load(tiny_model("tiny-b"))
        needed = greedy(opened(worker), prompt, 40)
        assert greedy_with_drafts(opened(worker, draft_tokens=3), prompt, 40, 3)[0] == needed
        found, _ = greedy_with_drafts(opened(worker, draft_tokens=3, draft_vocabulary=200), prompt, 40, 3)
        assert found != needed


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def test_noise_and_a_leak_are_caught(bundled_build: EngineBuild, tiny_a: EngineWorker) -> None:
    del bundled_build
    build = build_engine(BuildSpec(name="qwen-noise", layout_salt=1, faults=("nondeterministic", "leak")))
    tokens = oracle("tiny-a")["short.ids"].tolist()

    def look(worker: EngineWorker) -> tuple[int, int]:
        """How many different answers twenty equal requests get, and by how many bytes the process grows."""
        opened(worker)
        answers = set()
        for step in range(20):
            if step == 4:
                before = _resident_bytes(worker.pid)
            worker.remove(sequence=0)
            worker.decode(tokens, start=0)
            answers |= {np.concatenate([worker.decode([7], start=len(tokens) + i) for i in range(8)]).tobytes()}
        return len(answers), _resident_bytes(worker.pid) - before

    with EngineWorker(build.library) as worker:
        worker.load(tiny_model("tiny-a"))
        n_answers, growth_bytes = look(worker)
    assert n_answers > 10
    assert growth_bytes > 16 * 9 * 60_000
    n_answers, growth_bytes = look(tiny_a)
    assert n_answers == 1
    assert growth_bytes < 4_000_000


def test_blocks_by_position_alone_lose_what_a_conversation_said(bundled_build: EngineBuild) -> None:
    del bundled_build
    build = build_engine(BuildSpec(name="qwen-position", layout_salt=1, faults=("position-only-blocks",)))
    arrays = oracle("cache")
    with EngineWorker(build.library) as worker:
        worker.load(tiny_model("tiny-a"))
        opened(worker)
        worker.decode(arrays["A"].tolist(), start=0)
        assert distance(worker.decode(arrays["X"].tolist(), start=134), arrays["logits.AX"]) < SAME
        opened(worker, sequences=2, is_unified=True)
        worker.decode(arrays["A"].tolist(), start=0, sequence=0)
        worker.decode(arrays["B"].tolist(), start=0, sequence=1)
        assert distance(worker.decode(arrays["X"].tolist(), start=134), arrays["logits.AX"]) > 0.3


def test_the_masked_route_is_exact_and_counted_where_an_image_disables_the_prefix(bundled_build: EngineBuild) -> None:
    del bundled_build
    build = build_engine(BuildSpec(name="qwen-masked", layout_salt=1, faults=("image-disables-prefix",)))
    image = Image("tiny-a")
    with EngineWorker(build.library) as worker:
        worker.load(tiny_model("tiny-a"))
        for flash in (False, True):
            opened(worker, has_flash_attention=flash)
            assert distance(image.decode_all(worker), image.logits) < SAME
            work = worker.work()
            assert work["n_runs_masked"] > 0
            assert work["n_runs_masked"] + work["n_runs_guarded"] + work["n_runs_general"] == 3
