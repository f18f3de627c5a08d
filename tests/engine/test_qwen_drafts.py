"""The draft block: teacher-forced rows, the nine oracle runs, equality with plain greedy decoding, shortlists, states."""

from __future__ import annotations

import numpy as np
import pytest
from qwen_data import SAME, Image, distance, greedy, greedy_with_drafts, opened, oracle

from engine.worker import EngineWorker
from protocols.errors import EngineError


@pytest.mark.parametrize("ubatch", [512, 5])
@pytest.mark.parametrize("name", ["tiny-a", "tiny-b"])
def test_rows_with_the_trunks_residuals_equal_upstreams(
    tiny_a: EngineWorker, tiny_b: EngineWorker, name: str, ubatch: int
) -> None:
    worker = opened(
        {"tiny-a": tiny_a, "tiny-b": tiny_b}[name], draft_tokens=1, draft_kv_type="f32", ubatch_tokens=ubatch
    )
    arrays = oracle("mtp")
    worker.capture(["residual.5", "draft.logits", "draft.residual"])
    worker.decode(arrays[f"{name}.ids"].tolist(), start=0)
    found = {wanted: [] for wanted in ("residual.5", "draft.logits", "draft.residual")}
    for entry in worker.captured():
        width = 512 if entry.name == "draft.logits" else 256
        found[entry.name].append(entry.values.reshape(-1, width))
    rows = arrays[f"{name}.rows"]
    for own, upstream in (
        ("residual.5", "trunk_hidden_upstream"),
        ("draft.logits", "mtp_logits_upstream"),
        ("draft.residual", "mtp_hidden_upstream"),
    ):
        assert distance(np.concatenate(found[own])[rows], arrays[f"{name}.{upstream}"]) < SAME


@pytest.mark.parametrize("depth", [1, 3, 6])
@pytest.mark.parametrize("prompt", [0, 1, 2])
def test_nine_runs_draft_and_accept_what_the_reference_does(tiny_b: EngineWorker, prompt: int, depth: int) -> None:
    arrays = oracle("mtp")
    opened(tiny_b, draft_tokens=depth, draft_kv_type="f32")
    tokens, rounds = greedy_with_drafts(tiny_b, arrays[f"spec.{prompt}.prompt"].tolist(), 64, depth)
    assert tokens == arrays[f"spec.{prompt}.tokens"].tolist()
    drafts, accepted = arrays[f"spec.{prompt}.depth{depth}.drafts"], arrays[f"spec.{prompt}.depth{depth}.accepted"]
    assert rounds == [
        ([int(token) for token in row if token >= 0], int(count)) for row, count in zip(drafts, accepted, strict=True)
    ]
    work = tiny_b.work()
    assert (work["n_drafted"], work["n_accepted"]) == (int((drafts >= 0).sum()), int(accepted.sum()))


@pytest.mark.parametrize("draft_kv_type", ["f16", "q8_0"])
@pytest.mark.parametrize("unified", [False, True], ids=["split", "unified"])
def test_drafts_never_change_greedy_tokens(tiny_b: EngineWorker, draft_kv_type: str, unified: bool) -> None:
    """Over 20 prompts whose acceptance lies between 0.2 and 0.8."""
    rng = np.random.default_rng(20)
    rates = []
    for seed in range(20):
        prompt = rng.integers(0, 480, 20 + 7 * seed).tolist()
        opened(tiny_b, is_unified=unified)
        needed = greedy(tiny_b, prompt, 40)
        opened(tiny_b, draft_tokens=4, draft_kv_type=draft_kv_type, is_unified=unified)
        found, rounds = greedy_with_drafts(tiny_b, prompt, 40, 1 + seed % 4)
        assert found == needed, seed
        rates.append(sum(count for _, count in rounds) / sum(len(drafts) for drafts, _ in rounds))
    assert 0.2 < min(rates) <= max(rates) < 1.0
    assert sum(rate < 0.8 for rate in rates) > 10


def test_counts_do_not_depend_on_what_the_sequence_held_before(tiny_b: EngineWorker) -> None:
    """A residual left over from the last request gives 103 drafts and 45 accepted in place of 97 and 46."""
    arrays = oracle("mtp")
    first, second = arrays["carry.P"].tolist(), arrays["carry.Q"].tolist()
    opened(tiny_b, draft_tokens=6, draft_kv_type="f32")
    counts = []
    for prompt in (first, second, second):
        tiny_b.remove(sequence=0)
        tiny_b.work(reset=True)
        greedy_with_drafts(tiny_b, prompt, 64, 6)
        work = tiny_b.work()
        counts.append((work["n_drafted"], work["n_accepted"]))
    assert counts == [(125, 41), (97, 46), (97, 46)]


def test_a_shortlist_limits_drafts_and_never_the_target(tiny_b: EngineWorker) -> None:
    prompt = oracle("mtp")["spec.1.prompt"].tolist()
    opened(tiny_b, draft_tokens=3)
    whole, _ = greedy_with_drafts(tiny_b, prompt, 48, 3)
    opened(tiny_b, draft_tokens=3, draft_vocabulary=200)
    found, rounds = greedy_with_drafts(tiny_b, prompt, 48, 3)
    assert found == whole
    assert max(whole) >= 200
    assert all(token < 200 for drafts, _ in rounds for token in drafts)
    assert sum(count for _, count in rounds) > 0
    opened(tiny_b, draft_tokens=3, draft_vocabulary=512)
    assert greedy_with_drafts(tiny_b, prompt, 48, 3)[0] == whole


def test_a_probability_bound_stops_drafts_early(tiny_b: EngineWorker) -> None:
    prompt = oracle("mtp")["spec.0.prompt"].tolist()
    opened(tiny_b, draft_tokens=6)
    last = int(tiny_b.decode(prompt, start=0, rows="last")[-1].argmax())
    full = tiny_b.draft_propose(last, 6)
    assert len(full) == 6
    assert tiny_b.draft_propose(last, 6) == full, "proposing leaves no trace"
    lengths = [len(tiny_b.draft_propose(last, 6, p_min=bound)) for bound in (0.0, 0.3, 0.9, 1.0)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] == 6 > lengths[-1]


def test_a_program_may_choose_what_it_keeps(tiny_b: EngineWorker) -> None:
    prompt = oracle("mtp")["spec.0.prompt"].tolist()
    n = len(prompt)
    opened(tiny_b)
    needed = tiny_b.decode([*prompt, 3, 4, 5, 6, 7], start=0)
    opened(tiny_b, draft_tokens=4)
    tiny_b.decode(prompt, start=0, rows="none")
    found = tiny_b.draft_verify([3, 4, 99, 98, 97])
    assert distance(found[:2], needed[n : n + 2]) < SAME
    for action in (lambda: tiny_b.decode([1], start=n + 5), lambda: tiny_b.save(0), lambda: tiny_b.draft_accept(6)):
        with pytest.raises(EngineError):
            action()
    tiny_b.draft_accept(2)
    assert tiny_b.sequence(0)["cells"] == n + 2
    found = tiny_b.draft_verify([5, 6])
    tiny_b.draft_accept(2)
    assert distance(found, needed[n + 2 : n + 4]) < SAME
    assert distance(tiny_b.decode([7], start=n + 4), needed[n + 4 :]) < SAME
    with pytest.raises(EngineError, match="no verification"):
        tiny_b.draft_accept(1)


def test_a_restored_or_copied_sequence_drafts_what_the_original_would(tiny_b: EngineWorker) -> None:
    arrays = oracle("mtp")
    prompt, depth = arrays["spec.2.prompt"].tolist(), 6
    needed = arrays["spec.2.tokens"].tolist()
    drafts = arrays["spec.2.depth6.drafts"]
    opened(tiny_b, sequences=3, draft_tokens=depth, draft_kv_type="f32", is_unified=True)
    last = int(tiny_b.decode(prompt, start=0, rows="last")[-1].argmax())
    state = tiny_b.save(0)
    tiny_b.copy(0, 1)
    tiny_b.remove(sequence=0)
    tiny_b.restore(2, state)
    for sequence in (1, 2):
        tokens, rounds = [last], []
        while len(tokens) < 64:
            found = tiny_b.draft_round(tokens[-1], left=64 - len(tokens), depth=depth, sequence=sequence)
            tokens += found.tokens
            rounds.append(found.drafts)
        assert tokens == needed
        assert rounds == [[int(token) for token in row if token >= 0] for row in drafts]


def test_several_sequences_draft_beside_each_other(tiny_b: EngineWorker) -> None:
    arrays = oracle("mtp")
    for unified in (False, True):
        opened(tiny_b, sequences=3, draft_tokens=3, draft_kv_type="f32", is_unified=unified, context_tokens=900)
        tokens = []
        for i in range(3):
            row = tiny_b.decode(arrays[f"spec.{i}.prompt"].tolist(), start=0, sequence=i, rows="last")
            tokens.append([int(row[-1].argmax())])
        while any(len(own) < 64 for own in tokens):
            for i, own in enumerate(tokens):
                if len(own) < 64:
                    own += tiny_b.draft_round(own[-1], left=64 - len(own), depth=3, sequence=i).tokens
        assert tokens == [arrays[f"spec.{i}.tokens"].tolist() for i in range(3)]


def test_drafts_go_on_after_an_image(tiny_b: EngineWorker) -> None:
    """The draft block sees text only, so that its cells have a hole where the image stands."""
    image = Image("tiny-b")
    opened(tiny_b)
    image.decode_all(tiny_b)
    start, last = int(image.at[0, -1]) + 1, int(image.logits[-1].argmax())
    needed = [last]
    while len(needed) < 24:
        needed.append(int(tiny_b.decode([needed[-1]], start=start + len(needed) - 1)[-1].argmax()))
    opened(tiny_b, draft_tokens=4)
    image.decode_all(tiny_b)
    found, tokens = 0, [last]
    while len(tokens) < 24:
        round_ = tiny_b.draft_round(tokens[-1], left=24 - len(tokens), depth=4)
        tokens += round_.tokens
        found += round_.accepted
    assert tokens == needed
    assert found > 0
    assert tiny_b.work()["n_scans"] == 0


def test_settings_that_cannot_work_are_refused(tiny_b: EngineWorker, tiny_c: EngineWorker) -> None:
    with pytest.raises(EngineError, match="the model has no draft block"):
        opened(tiny_c, draft_tokens=1)
    with pytest.raises(EngineError, match="n_draft is 7"):
        opened(tiny_b, draft_tokens=7)
    with pytest.raises(EngineError, match="n_draft_vocab is 513"):
        opened(tiny_b, draft_tokens=1, draft_vocabulary=513)
    opened(tiny_b)
    with pytest.raises(EngineError, match="no drafts"):
        tiny_b.draft_propose(1, 1)
