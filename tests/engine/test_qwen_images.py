"""Images in a history: embeddings with 2-D positions, whole and cut, and what two published engines get wrong there."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from qwen_data import SAME, Image, distance, opened, oracle

from engine.worker import EngineWorker
from protocols.errors import EngineError


@pytest.mark.parametrize("unified", [False, True], ids=["split", "unified"])
@pytest.mark.parametrize("ubatch", [512, 32, 29, 16, 8, 7, 1])
def test_an_image_larger_than_the_ubatch_gives_the_same(
    qwen: EngineWorker, qwen_name: str, ubatch: int, unified: bool
) -> None:
    """Predecessors of the n-grams go by rank: by position, the rows after a cut would be 1.5 to 6.5 off."""
    image = Image(qwen_name)
    opened(qwen, ubatch_tokens=ubatch, is_unified=unified)
    assert distance(image.decode_all(qwen), image.logits) < SAME


@pytest.mark.parametrize("cut", [31, 37, 45, 59])
def test_an_image_split_over_calls_gives_the_same(qwen: EngineWorker, qwen_name: str, cut: int) -> None:
    image = Image(qwen_name)
    opened(qwen)
    cuts = (0, image.first, cut, image.end, len(image.ids))
    found = [image.decode(qwen, a, b) for a, b in itertools.pairwise(cuts)]
    assert distance(np.concatenate(found), image.logits) < SAME


@pytest.mark.parametrize("ubatch", [512, 13])
def test_text_and_image_rows_may_share_a_batch(qwen: EngineWorker, qwen_name: str, ubatch: int) -> None:
    image = Image(qwen_name)
    opened(qwen, ubatch_tokens=ubatch)
    assert distance(image.decode(qwen, 0, len(image.ids)), image.logits) < SAME


@pytest.mark.parametrize("fourth", ["zero", "position", "noise"])
def test_the_fourth_position_row_of_text_is_never_looked_at(qwen: EngineWorker, qwen_name: str, fourth: str) -> None:
    tokens = oracle(qwen_name)["text.ids"].tolist()
    n = len(tokens)
    row = {"zero": np.zeros(n), "position": np.arange(n), "noise": np.arange(n)[::-1] * 7}[fourth]
    positions = np.vstack([np.arange(n)] * 3 + [row]).astype(np.int32)
    opened(qwen)
    found = np.concatenate(
        [qwen.decode_rows(tokens[:100], positions[:, :100]), qwen.decode_rows(tokens[100:], positions[:, 100:])]
    )
    assert distance(found, oracle(qwen_name)["text.logits_hf"]) < SAME
    assert qwen.work()["n_runs_guarded"] == 2


def test_cells_of_one_position_stand_in_the_order_of_the_image_not_of_the_cells(
    qwen: EngineWorker, qwen_name: str
) -> None:
    """The second half of the image lands before the first half; by (t, cell) rows would be off by 0.4 to 2.1."""
    image = Image(qwen_name)
    filler = oracle(qwen_name)["long.ids"].tolist()
    half = image.first + 15
    opened(qwen, context_tokens=256, sequences=3, is_unified=True)
    qwen.decode(filler[:20], start=0, sequence=1)
    found = [image.decode(qwen, 0, image.first), image.decode(qwen, image.first, half)]
    # Everything else is taken, so that the rest has only the cells of sequence 1.
    rest = 256 - 20 - half
    qwen.decode((filler * 2)[:rest], start=0, sequence=2)
    with pytest.raises(EngineError, match="free"):
        image.decode(qwen, half, image.end)
    qwen.remove(sequence=1)
    found += [image.decode(qwen, half, image.end), image.decode(qwen, image.end, image.end + 5)]
    assert distance(np.concatenate(found), image.logits[: image.end + 5]) < SAME


def test_an_image_beside_other_sequences_gives_the_same(qwen: EngineWorker, qwen_name: str) -> None:
    image = Image(qwen_name)
    filler = oracle(qwen_name)["long.ids"].tolist()
    for unified in (False, True):
        opened(qwen, sequences=2, is_unified=unified)
        qwen.decode(filler[:70], start=0, sequence=1)
        assert distance(image.decode_all(qwen), image.logits) < SAME
        needed = oracle(qwen_name)["long.logits_hf"][70:100]
        assert distance(qwen.decode(filler[70:100], start=70, sequence=1), needed) < SAME


def test_two_dimensional_positions_must_rise(qwen: EngineWorker, qwen_name: str) -> None:
    image = Image(qwen_name)
    opened(qwen)
    image.decode(qwen, 0, image.first + 6)
    before = qwen.save(0)
    with pytest.raises(EngineError, match="positions rise"):
        image.decode(qwen, image.first + 3, image.first + 9)
    with pytest.raises(EngineError, match="no token and no embedding"):
        qwen.decode_rows([-1], image.at[:, image.first + 6 : image.first + 7])
    with pytest.raises(EngineError, match="n_axes is 2"):
        qwen.decode_rows([1], np.array([[90], [90]]))
    assert qwen.save(0) == before
    assert distance(image.decode(qwen, image.first + 6, len(image.ids)), image.logits[image.first + 6 :]) < SAME
