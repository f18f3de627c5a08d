"""Signed notes and checkpoints, against the published vectors of C2SP and sumdb/note."""

from __future__ import annotations

import base64
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.errors import EvidenceError
from recorder.checkpoint import Checkpoint, parse_checkpoint, parse_note, sign_checkpoint, sign_note
from recorder.keys import Signer, parse_signer, parse_verifier_key

VERIFIER = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
SIGNER = "PRIVATE+KEY+PeterNeumann+c74f20a3+AYEKFALVFGyNhPJEMzD1QIDr+Y7hfZx09iUvxdXHKDFz"
TEXT = "If you think cryptography is the answer to your problem,\nthen you don't know what your problem is.\n"
SIGNATURE = (
    "\u2014 PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n"
)
NOTE = f"{TEXT}\n{SIGNATURE}".encode()

# The worked example of C2SP tlog-checkpoint.
CHECKPOINT = (
    "example.com/behind-the-sofa\n20852163\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n\n"
    "\u2014 example.com/behind-the-sofa "
    "Az3grlgtzPICa5OS8npVmf1Myq/5IZniMp+ZJurmRDeOoRDe4URYN7u5/Zhcyv2q1gGzGku9nTo+zyWE+xeMcTOAYQ8=\n"
).encode()


def test_signing_gives_the_published_note_byte_for_byte():
    assert sign_note(TEXT, [("PeterNeumann", parse_signer(SIGNER))]) == NOTE


def test_the_published_note_verifies():
    note = parse_note(NOTE)
    assert note.text == TEXT
    assert note.is_signed_by(parse_verifier_key(VERIFIER))


def test_a_changed_text_is_not_signed():
    assert not parse_note(NOTE.replace(b"answer", b"Answer")).is_signed_by(parse_verifier_key(VERIFIER))


def test_every_line_of_a_known_key_must_hold():
    forged = SIGNATURE.replace("x08go/ZJ", "x08go/ZK")
    assert not parse_note(NOTE + forged.encode()).is_signed_by(parse_verifier_key(VERIFIER))


def test_lines_of_unknown_keys_are_passed_over():
    other = sign_note(TEXT, [("Other", Signer(name="Other", seed=bytes(32)))]).decode().rpartition("\n\n")[2]
    assert parse_note(NOTE + other.encode()).is_signed_by(parse_verifier_key(VERIFIER))


def test_the_example_of_the_specification_is_read():
    note = parse_note(CHECKPOINT)
    found = parse_checkpoint(note.text)
    assert (found.origin, found.size) == ("example.com/behind-the-sofa", 20852163)
    assert base64.b64encode(found.root).decode() == "CsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I="
    assert found.text() == note.text


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"text\n",
        b"text\n\n",
        NOTE[:-1],
        NOTE + b"\n",
        NOTE.replace("\u2014 ".encode(), b"- "),
        NOTE.replace(b"PeterNeumann x08", b"Peter Neumann x08"),
        NOTE.replace(b"PeterNeumann x08", b"Peter+Neumann x08"),
        NOTE.replace(b"JnAM=", b"JnAN="),
        NOTE.replace(b"JnAM=", b"JnAM"),
        b"\x01" + NOTE,
        b"\xff" + NOTE,
        TEXT.encode() + b"\n" + SIGNATURE.encode() * 101,
    ],
)
def test_malformed_notes_are_refused(data: bytes):
    with pytest.raises(EvidenceError):
        parse_note(data)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a\n1\n",
        "\n1\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n",
        "a\n01\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n",
        "a\n-1\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n",
        "a\n1\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2J=\n",
        "a\n1\nAAAA\n",
        "a\n1\n!\n",
        "a\n1\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\nextension\n",
    ],
)
def test_malformed_checkpoints_are_refused(text: str):
    with pytest.raises(EvidenceError):
        parse_checkpoint(text)


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_a_note_or_refused(data: bytes):
    with contextlib.suppress(EvidenceError):
        parse_note(data)


@given(st.integers(0, 2**53), st.binary(min_size=32, max_size=32))
def test_a_checkpoint_survives_signing_and_reading(size: int, root: bytes):
    signer = Signer(name="bench", seed=bytes(range(32)))
    checkpoint = Checkpoint(origin="assay/0123456789abcdef", size=size, root=root)
    note = parse_note(sign_checkpoint(checkpoint, signer))
    assert parse_checkpoint(note.text) == checkpoint
    assert note.is_signed_by(signer.public("assay/0123456789abcdef"))
    assert not note.is_signed_by(signer.public("assay/another"))
