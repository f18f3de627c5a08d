"""The worker against a library with the real interface whose every answer can be computed, and that fails on demand."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from engine.build import EngineBuild
from engine.identity import mapped_files
from engine.interface import WORK_FIELDS
from engine.worker import EngineWorker, Session
from protocols.errors import EngineError

HERE = Path(__file__).resolve().parent
HEADER = HERE.parents[1] / "engine" / "include"


def compile_library(folder: Path, *flags: str, name: str = "libassay-engine.so") -> Path:
    library = folder / name
    argv = ["c++", "-std=c++20", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-I", HEADER, *flags]
    subprocess.run([*argv, HERE / "fake_library.cpp", "-o", library], check=True)
    return library


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_library(tmp_path_factory.mktemp("library"))


@pytest.fixture
def worker(library: Path) -> Iterator[EngineWorker]:
    with EngineWorker(library, timeout_s=20) as started:
        yield started


@pytest.fixture
def loaded(worker: EngineWorker, tmp_path: Path) -> EngineWorker:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    worker.load(tmp_path / "model.gguf")
    return worker


def test_the_library_says_what_it_is(worker: EngineWorker) -> None:
    assert worker.build_info() == {"abi": 1, "version": "fake", "faults": ""}


def test_a_model_is_loaded_with_the_settings_given(worker: EngineWorker, tmp_path: Path) -> None:
    path = tmp_path / "mödel.gguf"
    path.write_bytes(b"GGUF")
    assert worker.load(path, use_mmap=False, gpu_layers=7) == {"use_mmap": False, "n_gpu_layers": 7, "struct_size": 16}
    with pytest.raises(EngineError, match="loaded a model already"):
        worker.load(path)


def test_a_missing_model_is_the_librarys_own_error_and_the_worker_lives_on(
    worker: EngineWorker, tmp_path: Path
) -> None:
    with pytest.raises(EngineError, match="load: no such file"):
        worker.load(tmp_path / "missing.gguf")
    assert worker.build_info()["version"] == "fake"


def test_text_becomes_ids_and_ids_become_bytes(loaded: EngineWorker) -> None:
    assert loaded.tokenize("ab") == [1000, 1001, *[97] * 3, *[98] * 3]
    assert loaded.tokenize(b"\xff\x00", add_special=False, parse_special=False) == [*[255] * 3, *[0] * 3]
    assert loaded.tokenize("", add_special=False, parse_special=False) == []
    assert loaded.detokenize([104, 255, 0, 1000]) == b"h\xff\x00"
    assert loaded.detokenize([1000, 105], render_special=True) == b"<s>i"
    assert loaded.detokenize([]) == b""
    with pytest.raises(EngineError, match="5000 is no token of this model"):
        loaded.detokenize([1, 5000])


def test_a_text_that_needs_more_ids_than_guessed_is_asked_for_again(loaded: EngineWorker) -> None:
    assert loaded.tokenize("x" * 1000, add_special=False, parse_special=False) == [120] * 3000


def test_logits_come_for_every_position_across_blocks(loaded: EngineWorker) -> None:
    tokens = list(range(1, 11))
    logits = loaded.logits(tokens, kv_type="q8_0", ubatch_tokens=3)
    assert (logits.shape, logits.dtype) == ((10, 70), np.float32)
    assert logits[:, 0].tolist() == [1000 * token + 10 * index + 8 for index, token in enumerate(tokens)]
    assert logits[:, 2].tolist() == list(range(1, 11))
    assert loaded.logits([5], kv_type="f32")[0, 0] == 5000
    with pytest.raises(EngineError, match="no tokens"):
        loaded.logits([])


def test_a_session_has_the_settings_given(loaded: EngineWorker) -> None:
    sizes = loaded.open_session(Session(context_tokens=32, sequences=3, ubatch_tokens=8, threads=5, is_unified=True))
    assert sizes == {"cache_bytes": 96, "compute_bytes": 8 + 5_000 + 5_000_000 + 500}
    with pytest.raises(EngineError, match="not enough memory"):
        loaded.open_session(Session(context_tokens=200_000))
    with pytest.raises(EngineError, match="'f8' is no cache type"):
        loaded.open_session(Session(context_tokens=1, kv_type="f8"))


def test_only_the_rows_asked_for_come_back(loaded: EngineWorker) -> None:
    loaded.open_session(Session(context_tokens=32, sequences=3))
    assert loaded.decode([1, 2, 3], start=0, sequence=2, rows="last")[:, :3].tolist() == [[3021.0, 2.0, 3.0]]
    assert loaded.decode([4], start=3, sequence=2, rows="none").shape == (0, 70)
    assert loaded.decode([5, 6], start=4, sequence=2)[:, 2].tolist() == [5.0, 6.0]


def test_cells_are_filled_and_removed(loaded: EngineWorker) -> None:
    loaded.open_session(Session(context_tokens=32))
    loaded.fill_zero(20)
    assert loaded.decode([1], start=20)[0, 2] == 21
    loaded.remove(sequence=0)
    assert loaded.decode([1], start=0)[0, 2] == 1
    with pytest.raises(EngineError, match="more cells"):
        loaded.fill_zero(33)


def test_sequences_are_copied_and_kept(loaded: EngineWorker) -> None:
    loaded.open_session(Session(context_tokens=32, sequences=3))
    loaded.fill_zero(20)
    loaded.copy(0, 2)
    loaded.copy(0, 1, start=4, end=12)
    assert [int(loaded.decode([1], start=20, sequence=seq)[0, 2]) for seq in range(3)] == [21, 9, 21]
    loaded.keep(1)
    assert [int(loaded.decode([1], start=30, sequence=seq)[0, 2]) for seq in range(3)] == [1, 10, 1]
    with pytest.raises(EngineError, match="copy: a copy needs two sequences"):
        loaded.copy(1, 1)


def test_a_state_is_the_bytes_that_the_library_wrote_and_comes_back_whole(loaded: EngineWorker) -> None:
    loaded.open_session(Session(context_tokens=32, sequences=2))
    loaded.fill_zero(7)
    state = loaded.save(0)
    assert state == b"\x07\0\0\0\0"
    loaded.restore(1, state)
    assert loaded.decode([1], start=7, sequence=1)[0, 2] == 8
    with pytest.raises(EngineError, match="restore: the state is truncated"):
        loaded.restore(1, state[:-1])


def test_work_counters_are_whole_numbers_of_any_size_and_can_be_reset(loaded: EngineWorker) -> None:
    loaded.open_session(Session(context_tokens=32))
    loaded.decode([1, 2], start=0)
    work = loaded.work(reset=True)
    assert tuple(work) == WORK_FIELDS
    assert (work["n_tokens_evaluated"], work["n_flops"], work["n_decode_calls"]) == (2, 2**60, 8 + 8 * len(WORK_FIELDS))
    assert loaded.work()["n_tokens_evaluated"] == 0


def test_a_refused_batch_is_the_librarys_own_error_and_the_worker_lives_on(loaded: EngineWorker) -> None:
    with pytest.raises(EngineError, match="decode: the cache has no room"):
        loaded.logits([1, 68])
    assert loaded.logits([1]).shape == (1, 70)


@pytest.mark.parametrize(("token", "words"), [(66, "signal SIGABRT"), (69, "exit code 9")])
def test_a_library_that_dies_names_the_operation_and_the_signal(loaded: EngineWorker, token: int, words: str) -> None:
    with pytest.raises(EngineError, match=rf"died during decode \({words}\)") as caught:
        loaded.logits([token])
    if token == 66:
        assert "about to abort" in str(caught.value)
    with pytest.raises(EngineError):
        loaded.build_info()


def test_a_library_that_hangs_is_ended_at_the_limit(library: Path, tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with EngineWorker(library, timeout_s=1) as worker:
        worker.load(tmp_path / "model.gguf")
        with pytest.raises(EngineError, match="did not finish decode in time"):
            worker.logits([67])
        assert not Path(f"/proc/{worker.pid}/exe").exists()


def test_operations_out_of_order_are_refused(worker: EngineWorker, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="no model is loaded"):
        worker.tokenize("x")
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    worker.load(tmp_path / "model.gguf")
    with pytest.raises(EngineError, match="no session is open"):
        worker.decode([1], start=0)


@pytest.mark.parametrize("tokens", [[2**31], [1.5], ["x"], [None]])
def test_what_is_no_token_id_is_refused(loaded: EngineWorker, tokens: list[int]) -> None:
    with pytest.raises(EngineError, match="32-bit"):
        loaded.logits(tokens)


def test_another_interface_version_is_refused(tmp_path: Path) -> None:
    library = compile_library(tmp_path, "-DFAKE_ABI=2")
    with pytest.raises(EngineError, match="speaks interface version 2, this worker 1"):
        EngineWorker(library)


def test_what_is_no_engine_library_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="no such engine library"):
        EngineWorker(tmp_path / "missing.so")
    text = tmp_path / "text.so"
    text.write_text("no library")
    with pytest.raises(EngineError, match=r"cannot use text\.so"):
        EngineWorker(text)
    (tmp_path / "other.c").write_text("int other(void) { return 1; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", tmp_path / "other.c", "-o", tmp_path / "other.so"], check=True)
    with pytest.raises(EngineError, match="assay_build_info"):
        EngineWorker(tmp_path / "other.so")


def test_each_worker_maps_only_its_own_library(library: Path, tmp_path: Path) -> None:
    other = compile_library(tmp_path, "-DOTHER")
    with EngineWorker(library) as first, EngineWorker(other) as second:
        maps = [{file.name for file in mapped_files(worker.pid)} for worker in (first, second)]
        assert str(library) in maps[0] - maps[1]
        assert str(other) in maps[1] - maps[0]
        assert str(library) not in {file.name for file in mapped_files(os.getpid())}


def test_a_closed_worker_is_gone_and_says_so(library: Path) -> None:
    worker = EngineWorker(library)
    worker.close()
    worker.close()
    assert not Path(f"/proc/{worker.pid}/exe").exists()
    with pytest.raises(EngineError, match="closed"):
        worker.build_info()


def test_a_killed_worker_is_an_error_at_the_next_operation(loaded: EngineWorker) -> None:
    os.kill(loaded.pid, signal.SIGKILL)
    with pytest.raises(EngineError, match="SIGKILL"):
        loaded.tokenize("x" * 200_000)


def test_the_bundled_library_answers_over_the_same_interface(bundled_build: EngineBuild, smollm2: Path) -> None:
    with EngineWorker(bundled_build.library) as worker:
        worker.load(smollm2)
        tokens = worker.tokenize("The capital of France is")
        assert tokens == [504, 3575, 282, 4649, 314]
        assert worker.detokenize(tokens) == b"The capital of France is"
        whole = worker.logits(tokens)
        assert worker.detokenize([int(whole[-1].argmax())]) == b" Paris"
        assert np.isfinite(whole).all()
        worker.open_session(Session(context_tokens=64))
        worker.fill_zero(40)
        assert worker.decode(tokens, start=40, rows="last").shape == (1, whole.shape[1])
        assert worker.work()["n_tokens_evaluated"] == len(tokens)
        with pytest.raises(EngineError):
            worker.decode(tokens * 10, start=45)
