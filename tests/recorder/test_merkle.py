"""The Merkle tree against the published vectors of certificate-transparency, and against its own definition."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pymerkle import InmemoryTree
from pymerkle import verify_consistency as verify_their_consistency
from pymerkle import verify_inclusion as verify_their_inclusion

from recorder.merkle import (
    Tree,
    consistency_proof,
    inclusion_proof,
    leaf_hash,
    root_of,
    verify_consistency,
    verify_inclusion,
)

# Leaves, roots and proofs of the reference tests of google/certificate-transparency (merkletree/merkle_tree_test.cc).
LEAVES = [
    bytes.fromhex(text)
    for text in ("", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f")
]
ROOTS = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]
INCLUSION = [
    (0, 1, []),
    (
        0,
        8,
        [
            "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
            "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
            "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
        ],
    ),
    (
        5,
        8,
        [
            "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
            "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
            "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
        ],
    ),
    (2, 3, ["fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125"]),
    (
        1,
        5,
        [
            "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
            "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
            "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
        ],
    ),
]
CONSISTENCY = [
    (1, 1, []),
    (
        1,
        8,
        [
            "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
            "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
            "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
        ],
    ),
    (
        6,
        8,
        [
            "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
            "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
            "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
        ],
    ),
    (
        2,
        5,
        [
            "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
            "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
        ],
    ),
]


def hashes(count: int) -> list[bytes]:
    return [leaf_hash(leaf) for leaf in LEAVES[:count]]


def by_definition(leaves: list[bytes]) -> bytes:
    """RFC 6962 section 2.1, written down as it stands there."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return leaves[0]
    split = 1
    while split * 2 < len(leaves):
        split *= 2
    return hashlib.sha256(b"\x01" + by_definition(leaves[:split]) + by_definition(leaves[split:])).digest()


def test_the_empty_tree_has_the_hash_of_nothing():
    assert root_of([]).hex() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@pytest.mark.parametrize("count", range(1, 9))
def test_roots_equal_the_published_ones(count: int):
    assert root_of(hashes(count)).hex() == ROOTS[count - 1]


@pytest.mark.parametrize(("index", "size", "proof"), INCLUSION)
def test_inclusion_proofs_equal_the_published_ones(index: int, size: int, proof: list[str]):
    assert [one.hex() for one in inclusion_proof(hashes(size), index)] == proof


@pytest.mark.parametrize(("old", "new", "proof"), CONSISTENCY)
def test_consistency_proofs_equal_the_published_ones(old: int, new: int, proof: list[str]):
    assert [one.hex() for one in consistency_proof(hashes(new), old)] == proof


sizes = st.integers(min_value=1, max_value=70)


@given(sizes)
def test_the_growing_tree_agrees_with_the_definition(size: int):
    leaves = [leaf_hash(bytes([number])) for number in range(size)]
    tree = Tree()
    for leaf in leaves:
        tree.append(leaf)
    assert tree.root() == by_definition(leaves)
    assert tree.leaves() == tuple(leaves)


@given(sizes, st.data())
def test_an_inclusion_proof_holds_for_its_leaf_and_for_no_other(size: int, data: st.DataObject):
    leaves = [leaf_hash(bytes([number])) for number in range(size)]
    index, root = data.draw(st.integers(0, size - 1)), root_of(leaves)
    proof = inclusion_proof(leaves, index)
    assert verify_inclusion(leaves[index], index, size, proof, root)
    assert not verify_inclusion(leaf_hash(b"other"), index, size, proof, root)
    assert not verify_inclusion(leaves[index], index, size, [*proof, root], root)
    assert not verify_inclusion(leaves[index], size, size, proof, root)
    for other in {0, size - 1} - {index}:
        assert not verify_inclusion(leaves[index], other, size, proof, root)
    if proof:
        assert not verify_inclusion(leaves[index], index, size, proof[:-1], root)


@given(sizes, st.data())
def test_a_consistency_proof_holds_for_its_sizes_and_for_no_other_roots(size: int, data: st.DataObject):
    leaves = [leaf_hash(bytes([number])) for number in range(size)]
    old = data.draw(st.integers(1, size))
    old_root, root, proof = root_of(leaves[:old]), root_of(leaves), consistency_proof(leaves, old)
    assert verify_consistency(old, size, proof, old_root, root)
    assert not verify_consistency(old, size, proof, leaf_hash(b"other"), root)
    assert not verify_consistency(old, size, proof, old_root, leaf_hash(b"other"))
    assert not verify_consistency(old, size, [*proof, root], old_root, root)
    assert not verify_consistency(0, size, proof, old_root, root)
    assert not verify_consistency(size + 1, size, proof, old_root, root)


def test_a_proof_of_nothing_is_refused():
    with pytest.raises(ValueError, match="leaf 3"):
        inclusion_proof(hashes(3), 3)
    with pytest.raises(ValueError, match="size 0"):
        consistency_proof(hashes(3), 0)


# --- an independent implementation ---------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=12), min_size=1, max_size=40), st.data())
def test_roots_and_proofs_are_those_of_an_independent_library(lines: list[bytes], data: st.DataObject):
    """pymerkle makes the same roots, and its verifier accepts our proofs as ours accepts its."""
    tree = InmemoryTree(algorithm="sha256")
    for line in lines:
        tree.append_entry(line)
    leaves = [leaf_hash(line) for line in lines]
    root = root_of(leaves)
    assert tree.get_root() == root
    size = data.draw(st.integers(1, len(lines)))
    theirs = tree.prove_consistency(size, len(lines))
    verify_their_consistency(tree.get_root(size), root, theirs)
    assert verify_consistency(size, len(lines), consistency_proof(leaves, size), tree.get_root(size), root)
    index = data.draw(st.integers(0, len(lines) - 1))
    proof = tree.prove_inclusion(index + 1, len(lines))
    verify_their_inclusion(leaves[index], root, proof)
    # Their path holds the leaf as well, and stands in another order.
    path = [bytes.fromhex(one) for one in proof.serialize()["path"]]
    assert sorted(path) == sorted([leaves[index], *inclusion_proof(leaves, index)])
