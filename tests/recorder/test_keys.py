"""Keys: forms, files, trust."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from protocols.errors import EvidenceError, HostError
from recorder.key_ring import trusted_keys
from recorder.keys import Signer, key_home, load_signer, parse_signer, parse_verifier_key

# Published with golang.org/x/mod/sumdb/note (note_test.go).
VERIFIER = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
SIGNER = "PRIVATE+KEY+PeterNeumann+c74f20a3+AYEKFALVFGyNhPJEMzD1QIDr+Y7hfZx09iUvxdXHKDFz"


def test_the_published_verifier_key_is_read_and_written_back():
    assert parse_verifier_key(VERIFIER).text() == VERIFIER


def test_the_published_signer_key_has_the_published_verifier_key():
    signer = parse_signer(SIGNER)
    assert signer.text() == SIGNER
    assert signer.public().text() == VERIFIER


def test_no_piece_of_a_verifier_key_is_one():
    for start in range(len(VERIFIER)):
        for stop in range(start + 1, len(VERIFIER) + 1):
            if (start, stop) != (0, len(VERIFIER)):
                with pytest.raises(EvidenceError):
                    parse_verifier_key(VERIFIER[start:stop])


@pytest.mark.parametrize("place", range(len(VERIFIER)))
def test_a_verifier_key_with_one_changed_character_is_refused(place: int):
    changed = VERIFIER[:place] + chr(ord(VERIFIER[place]) + 1) + VERIFIER[place + 1 :]
    with pytest.raises(EvidenceError):
        parse_verifier_key(changed)


@pytest.mark.parametrize(
    "text",
    [
        "PeterNeumann+cc469956+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TWBADKEY==",
        "PeterNeumann+173116ae+ZRpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW",
    ],
)
def test_keys_of_the_wrong_length_or_algorithm_are_refused(text: str):
    with pytest.raises(EvidenceError):
        parse_verifier_key(text)


def test_a_key_is_made_on_first_use_readable_by_its_owner_only(key_home: Path):
    signer = load_signer("bench")
    path = key_home / "bench.key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_signer("bench") == signer
    assert signer.text() in path.read_text()


def test_a_private_key_that_others_can_read_is_refused_with_the_command_to_type(key_home: Path):
    load_signer("bench")
    (key_home / "bench.key").chmod(0o640)
    with pytest.raises(HostError) as caught:
        load_signer("bench")
    assert "chmod 600" in str(caught.value.hint)


def test_a_key_name_cannot_leave_the_folder():
    with pytest.raises(HostError):
        load_signer("../elsewhere")


def test_the_secret_does_not_show_in_the_representation():
    signer = Signer(name="x", seed=bytes(range(32)))
    assert "seed" not in repr(signer)
    assert "AAEC" not in repr(signer)


def test_a_signature_holds_for_its_message_only():
    signer = Signer(name="x", seed=bytes(32))
    signature = signer.sign(b"a")
    assert signer.public().is_signature(signature, b"a")
    assert not signer.public().is_signature(signature, b"b")
    assert not signer.public().is_signature(signature[:-1], b"a")


def test_the_own_key_and_the_ring_are_trusted(key_home: Path):
    own = load_signer("default").public()
    (key_home / "trusted").mkdir()
    (key_home / "trusted" / "peter.pub").write_text(VERIFIER + "\n")
    assert {key.raw for key in trusted_keys()} == {own.raw, parse_verifier_key(VERIFIER).raw}


def test_a_broken_file_in_the_ring_is_named_and_not_left_out(key_home: Path):
    (key_home / "trusted").mkdir()
    (key_home / "trusted" / "bad.pub").write_text("no key")
    with pytest.raises(EvidenceError) as caught:
        trusted_keys()
    assert str(caught.value.where).endswith("bad.pub")


def test_the_folder_comes_from_the_environment():
    assert key_home({"ASSAY_KEY_HOME": "/a", "XDG_CONFIG_HOME": "/b"}) == Path("/a")
    assert key_home({"XDG_CONFIG_HOME": "/b"}) == Path("/b/assay/keys")
    assert key_home({}).parts[-3:] == (".config", "assay", "keys")
