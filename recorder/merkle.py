"""The Merkle tree of RFC 6962 over the ledger's lines: root, inclusion proof, consistency proof.

Sources: RFC 6962 section 2.1 (tree, proofs) and RFC 9162 sections 2.1.3.2 and 2.1.4.2 (how a proof is checked).
All hashes are SHA-256. A leaf is hashed with the prefix 0x00 and a node with 0x01, so that one never passes for
the other. Everything here is a pure function; `Tree` keeps the leaf hashes and the O(log n) roots of its full
subtrees, so that the root after each append costs O(log n).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

_LEAF: Final = b"\x00"
_NODE: Final = b"\x01"


def leaf_hash(data: bytes) -> bytes:
    """Return the hash of a leaf with this content."""
    return hashlib.sha256(_LEAF + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Return the hash of an inner node."""
    return hashlib.sha256(_NODE + left + right).digest()


def _split(count: int) -> int:
    """Return the largest power of two below ``count`` (``count`` is at least 2)."""
    return 1 << ((count - 1).bit_length() - 1)


def root_of(leaves: Sequence[bytes]) -> bytes:
    """Return the root of a tree with these leaf hashes; the SHA-256 of nothing for an empty tree."""
    tree = Tree()
    for leaf in leaves:
        tree.append(leaf)
    return tree.root()


class Tree:
    """A tree that grows by one leaf hash at a time."""

    def __init__(self) -> None:
        self._leaves: list[bytes] = []
        self._peaks: list[bytes] = []  # roots of the full subtrees, largest first

    def __len__(self) -> int:
        return len(self._leaves)

    def append(self, leaf: bytes) -> None:
        """Add one leaf hash."""
        carry, size = leaf, len(self._leaves)
        while size & 1:
            carry, size = node_hash(self._peaks.pop(), carry), size >> 1
        self._peaks.append(carry)
        self._leaves.append(leaf)

    def root(self) -> bytes:
        """Return the root over all leaves."""
        if not self._peaks:
            return hashlib.sha256(b"").digest()
        root = self._peaks[-1]
        for peak in reversed(self._peaks[:-1]):
            root = node_hash(peak, root)
        return root

    def leaves(self) -> tuple[bytes, ...]:
        """Return the leaf hashes in order."""
        return tuple(self._leaves)


def inclusion_proof(leaves: Sequence[bytes], index: int) -> list[bytes]:
    """Return the hashes that lead from leaf ``index`` to the root, the nearest first.

    Raises ValueError if there is no such leaf.
    """
    if not 0 <= index < len(leaves):
        raise ValueError(f"leaf {index} is not in a tree of {len(leaves)}")
    if len(leaves) == 1:
        return []
    split = _split(len(leaves))
    if index < split:
        return [*inclusion_proof(leaves[:split], index), root_of(leaves[split:])]
    return [*inclusion_proof(leaves[split:], index - split), root_of(leaves[:split])]


def consistency_proof(leaves: Sequence[bytes], old_size: int) -> list[bytes]:
    """Return the hashes that show that the tree of the first ``old_size`` leaves is a prefix of this tree.

    Raises ValueError if ``old_size`` is not in 1..len(leaves).
    """
    if not 1 <= old_size <= len(leaves):
        raise ValueError(f"size {old_size} is not in 1..{len(leaves)}")
    return _subproof(leaves, old_size, is_whole=True)


def _subproof(leaves: Sequence[bytes], old_size: int, *, is_whole: bool) -> list[bytes]:
    if old_size == len(leaves):
        return [] if is_whole else [root_of(leaves)]
    split = _split(len(leaves))
    if old_size <= split:
        return [*_subproof(leaves[:split], old_size, is_whole=is_whole), root_of(leaves[split:])]
    return [*_subproof(leaves[split:], old_size - split, is_whole=False), root_of(leaves[:split])]


def verify_inclusion(leaf: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes) -> bool:
    """Whether ``leaf`` (a leaf hash) is leaf ``index`` of the tree of ``size`` leaves with this root."""
    if not 0 <= index < size:
        return False
    position, last, found = index, size - 1, leaf
    for sibling in proof:
        if last == 0:
            return False
        if position & 1 or position == last:
            found = node_hash(sibling, found)
            while not position & 1 and position:
                position, last = position >> 1, last >> 1
        else:
            found = node_hash(found, sibling)
        position, last = position >> 1, last >> 1
    return last == 0 and found == root


def verify_consistency(old_size: int, new_size: int, proof: Sequence[bytes], old_root: bytes, new_root: bytes) -> bool:
    """Whether the tree of ``old_size`` leaves is a prefix of the tree of ``new_size`` leaves."""
    if not 1 <= old_size <= new_size:
        return False
    if old_size == new_size:
        return not proof and old_root == new_root
    path = list(proof)
    if old_size & (old_size - 1) == 0:
        path.insert(0, old_root)
    if not path:
        return False
    position, last = old_size - 1, new_size - 1
    while position & 1:
        position, last = position >> 1, last >> 1
    old_found = new_found = path[0]
    for sibling in path[1:]:
        if last == 0:
            return False
        if position & 1 or position == last:
            old_found = node_hash(sibling, old_found)
            new_found = node_hash(sibling, new_found)
            while not position & 1 and position:
                position, last = position >> 1, last >> 1
        else:
            new_found = node_hash(new_found, sibling)
        position, last = position >> 1, last >> 1
    return last == 0 and old_found == old_root and new_found == new_root
