from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.schedule import coin, expand_schedule, seed_commitment
from protocols.schema import BlocksSchedule, ExplicitSchedule


def blocks(**changes: object) -> BlocksSchedule:
    return BlocksSchedule.model_validate({"kind": "blocks", "blocks": 2, **changes})


def labels(schedule: BlocksSchedule | ExplicitSchedule) -> list[str]:
    return [position.label for position in expand_schedule(schedule)]


def test_two_mirrored_blocks_follow_one_burn_in_load() -> None:
    assert labels(blocks(order="abba")) == ["B0", "A1", "C1", "C2", "A2", "A3", "C3", "C4", "A4"]
    assert labels(blocks(order="baab", burn_in=False)) == ["C1", "A1", "A2", "C2", "C3", "A3", "A4", "C4"]


def test_the_burn_in_load_is_a_baseline_load_at_place_zero_outside_every_block() -> None:
    first = expand_schedule(blocks())[0]
    assert (first.index, first.arm, first.block, first.is_burn_in) == (0, "baseline", None, True)


def test_a_written_order_is_kept_and_its_blocks_are_recognised() -> None:
    mirrored = ExplicitSchedule(kind="explicit", order=("A1", "C1", "C2", "A2"))
    assert [position.block for position in expand_schedule(mirrored)] == [1, 1, 1, 1]
    other = ExplicitSchedule(kind="explicit", order=("A1", "C1", "A2", "C2"), burn_in=True)
    assert [position.block for position in expand_schedule(other)] == [None] * 5
    assert labels(other) == ["B0", "A1", "C1", "A2", "C2"]


def test_coins_are_the_documented_bits_of_a_hash() -> None:
    for block in range(1, 9):
        digest = hashlib.sha256(b"assay.coin.v1\x00" + b"20261129" + b"\x00" + str(block).encode()).digest()
        assert coin(20261129, block) == bool(digest[0] % 2)


def test_the_commitment_hides_nothing_but_the_seed_and_exists_only_with_coins() -> None:
    assert seed_commitment(blocks(seed=7)) == hashlib.sha256(b"assay.seed.v1\x007").hexdigest()
    assert seed_commitment(blocks(seed=7)) != seed_commitment(blocks(seed=8))
    assert seed_commitment(blocks(order="abba")) is None
    assert seed_commitment(ExplicitSchedule(kind="explicit", order=("A1", "C1"))) is None


def test_coins_fall_on_both_sides() -> None:
    heads = sum(coin(seed, block) for seed in range(100) for block in range(1, 11))
    assert 400 < heads < 600


@given(st.integers(1, 64), st.integers(0, 2**53 - 1), st.sampled_from(["coin", "abba", "baab"]), st.booleans())
def test_every_schedule_of_blocks_is_balanced(count: int, seed: int, order: str, burn_in: bool) -> None:
    positions = expand_schedule(blocks(blocks=count, seed=seed, order=order, burn_in=burn_in))
    measured = [position for position in positions if not position.is_burn_in]
    assert [position.index for position in positions] == list(range(len(positions)))
    assert len({position.label for position in positions}) == len(positions)
    for block in range(1, count + 1):
        arms = [position.arm for position in measured if position.block == block]
        assert arms in (
            ["baseline", "candidate", "candidate", "baseline"],
            ["candidate", "baseline", "baseline", "candidate"],
        )
    # A steady drift cancels: both arms stand at the same mean place.
    places = {arm: [p.index for p in measured if p.arm == arm] for arm in ("baseline", "candidate")}
    assert sum(places["baseline"]) == sum(places["candidate"])


@pytest.mark.parametrize("seed", [0, 1, 20261129])
def test_the_same_seed_always_gives_the_same_schedule(seed: int) -> None:
    assert expand_schedule(blocks(blocks=9, seed=seed)) == expand_schedule(blocks(blocks=9, seed=seed))
