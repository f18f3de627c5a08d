"""Made-up images: the same on every host, and placed as an image stands between text."""

from __future__ import annotations

import numpy as np

from engine.images import made_up_image, place_image, place_text
from protocols.check_schema import split_mix


def test_an_image_follows_from_its_seed_and_is_named_by_its_hash() -> None:
    image = made_up_image(2, 3, seed=7)
    start = split_mix(7)
    expected = [(split_mix((start + place) % 2**64) >> 40) / 2**23 - 1 for place in range(12)]
    assert image.embeddings.dtype == np.float32
    assert image.embeddings.reshape(-1).tolist() == [np.float32(value) for value in expected]
    assert image.sha256 == made_up_image(2, 3, seed=7).sha256 != made_up_image(2, 3, seed=8).sha256


def test_cells_of_an_image_share_a_position_and_the_text_goes_on_behind_its_side() -> None:
    rows = place_image([5, 6], made_up_image(2, 3, seed=1), [8], start=10)
    assert rows.tokens == [5, 6, -1, -1, -1, -1, 8]
    assert rows.positions.tolist() == [
        [10, 11, 12, 12, 12, 12, 14],
        [10, 11, 12, 12, 13, 13, 14],
        [10, 11, 12, 13, 12, 13, 14],
    ]
    assert (rows.end, rows.positions.dtype) == (15, np.int32)


def test_text_alone_has_one_coordinate_thrice() -> None:
    rows = place_text([1, 2], 3)
    assert (rows.positions.tolist(), rows.embeddings, rows.end) == ([[3, 4]] * 3, None, 5)
