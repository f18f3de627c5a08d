"""Judges a smoke on another host: the files by their hashes, then what the running engine shows, row by row.

A row is PASS where the host shows what the reference says, FAIL where it shows something else, and NOT_RUN with why
where nothing could be shown. Nothing here starts or asks anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from protocols.canonical import JsonValue, token_digest
from protocols.checks.answers import Answer
from protocols.lock import FileIdentity, ModelIdentity
from protocols.smoke_reference import SmokeCase, SmokeDevice, SmokeReference

Status = Literal["PASS", "FAIL", "NOT_RUN"]
EXIT_FAIL: Final = 1
EXIT_NOT_RUN: Final = 3
EXIT_ENGINE: Final = 5
_YES: Final = {True: "yes", False: "no"}
_OTHER_MODEL: Final = "not started: the model is another one"


class SmokeRow(NamedTuple):
    """One thing that was compared. `expected` and `found` are None where there is nothing to show."""

    name: str
    status: Status
    expected: str | None
    found: str | None
    reason: str | None = None
    is_required: bool = True

    def payload(self) -> dict[str, JsonValue]:
        """Return the row as plain JSON values."""
        return self._asdict()


class PromptIds(NamedTuple):
    """The ids that the engine makes of a text; `problem` where it made none."""

    ids: tuple[int, ...]
    problem: str | None = None


@dataclass(frozen=True, kw_only=True)
class SmokeRun:
    """What a running engine showed. Counts are None where the engine states none."""

    ready_ms: int | None = None
    """Milliseconds until it was ready; None where it never was."""
    start_problem: str | None = None
    """Why it never was ready."""
    mapping_problems: tuple[str, ...] = ()
    """How the files that it mapped differ from those that were identified."""
    context_tokens: int | None = None
    slots: int | None = None
    is_on_gpu: bool | None = None
    prompts: Mapping[str, PromptIds] = field(default_factory=dict)
    answers: Mapping[str, Answer] = field(default_factory=dict)
    own_end: str | None = None
    """How it ended by itself, None where it ran until it was asked to end."""
    stop_problem: str | None = None
    """How it did not end as it was asked to."""


@dataclass(frozen=True, kw_only=True)
class SmokeSight:
    """What a host shows: engine, model, device, and the run; `run` is None where the engine was not started."""

    files: tuple[FileIdentity, ...]
    arguments: tuple[str, ...]
    model: ModelIdentity
    device: SmokeDevice
    run: SmokeRun | None


def judge_smoke(reference: SmokeReference, sight: SmokeSight, *, any_device: bool = False) -> tuple[SmokeRow, ...]:
    """Return every row, in a fixed order. With `any_device` another device is shown and not judged."""
    return (
        *_files(reference.files, sight.files),
        *_arguments(reference, sight),
        _equal("model", reference.model.sha256, sight.model.sha256),
        _device(reference, sight, any_device=any_device),
        *_run(reference, sight.run or SmokeRun(start_problem=_OTHER_MODEL), was_started=sight.run is not None),
    )


def smoke_status(rows: Sequence[SmokeRow]) -> Status:
    """Return the status of the whole: FAIL before NOT_RUN before PASS, over the required rows."""
    found = {row.status for row in rows if row.is_required}
    return "FAIL" if "FAIL" in found else "NOT_RUN" if "NOT_RUN" in found else "PASS"


def smoke_exit_code(rows: Sequence[SmokeRow], run: SmokeRun | None) -> int:
    """Return the exit code: 5 where the engine did not start or ended by itself, else 1, 3 or 0 by the status."""
    if run is not None and (run.start_problem is not None or run.own_end is not None):
        return EXIT_ENGINE
    return {"FAIL": EXIT_FAIL, "NOT_RUN": EXIT_NOT_RUN, "PASS": 0}[smoke_status(rows)]


def _equal(name: str, expected: str, found: str) -> SmokeRow:
    return SmokeRow(name, "PASS" if expected == found else "FAIL", expected, found)


def _files(expected: Sequence[FileIdentity], found: Sequence[FileIdentity]) -> Iterator[SmokeRow]:
    wanted, here = _hashes(expected), _hashes(found)
    for name in sorted(wanted.keys() | here.keys()):
        if name not in here:
            yield SmokeRow(f"file {name}", "FAIL", wanted[name], None, "the engine here has no such file")
        elif name not in wanted:
            yield SmokeRow(f"file {name}", "FAIL", None, here[name], "the reference has no such file")
        else:
            yield _equal(f"file {name}", wanted[name], here[name])


def _hashes(files: Sequence[FileIdentity]) -> dict[str, str]:
    """Return every hash that files of one name have: two folders may hold a library of the same name."""
    found: dict[str, set[str]] = {}
    for file in files:
        found.setdefault(file.name, set()).add(file.sha256)
    return {name: " or ".join(sorted(hashes)) for name, hashes in found.items()}


def _arguments(reference: SmokeReference, sight: SmokeSight) -> Iterator[SmokeRow]:
    if reference.arguments or sight.arguments:
        expected, found = (" ".join(words) or "none" for words in (reference.arguments, sight.arguments))
        is_equal = reference.arguments == sight.arguments
        reason = None if is_equal else "name each with --argument"
        yield SmokeRow("arguments", "PASS" if is_equal else "FAIL", expected, found, reason)


def _device(reference: SmokeReference, sight: SmokeSight, *, any_device: bool) -> SmokeRow:
    """Compare the GPUs where layers lie on one, else the processor."""
    on_gpu = reference.settings.gpu_layers > 0
    expected, found = (_device_text(device, on_gpu=on_gpu) for device in (reference.device, sight.device))
    if expected is not None and expected == found:
        return SmokeRow("device", "PASS", expected, found)
    if any_device:
        return SmokeRow("device", "NOT_RUN", expected, found, "not asked for: --any-device", is_required=False)
    if expected is None or found is None:
        host = "the reference host" if expected is None else "this host"
        return SmokeRow("device", "NOT_RUN", expected, found, f"{host} does not name its device")
    return SmokeRow("device", "FAIL", expected, found, "another device; --any-device asks for the rest alone")


def _device_text(device: SmokeDevice, *, on_gpu: bool) -> str | None:
    return (", ".join(device.gpus) or None) if on_gpu else device.processor


def _run(reference: SmokeReference, run: SmokeRun, *, was_started: bool) -> Iterator[SmokeRow]:
    ready = f"ready within {reference.load_s} s"
    if run.start_problem is not None:
        yield SmokeRow("start", "FAIL" if was_started else "NOT_RUN", ready, None, run.start_problem)
    else:
        yield SmokeRow("start", "PASS", ready, f"ready after {run.ready_ms} ms")
    names = "the files above"
    why = "the engine never ran" if was_started else _OTHER_MODEL
    is_up = run.start_problem is None
    if not is_up:
        yield SmokeRow("mapped files", "NOT_RUN", names, None, why)
    else:
        other = "; ".join(run.mapping_problems) or None
        yield SmokeRow("mapped files", "FAIL" if other else "PASS", names, "others" if other else names, other)
    settings = reference.settings
    yield _stated("context", settings.context_tokens, run.context_tokens, None if is_up else why)
    yield _stated("slots", settings.slots, run.slots, None if is_up else why)
    if (expected := reference.device.is_engine_on_gpu) is not None:
        found = None if run.is_on_gpu is None else _YES[run.is_on_gpu]
        yield _stated("engine on a GPU", _YES[expected], found, None if is_up else why)
    for case in reference.cases:
        yield from _case(case, run, None if is_up else why)
    if not is_up:
        yield SmokeRow("end", "NOT_RUN", "when asked", None, why)
    elif run.own_end is not None:
        yield SmokeRow("end", "FAIL", "when asked", f"by itself: {run.own_end}")
    else:
        yield SmokeRow("end", "FAIL" if run.stop_problem else "PASS", "when asked", run.stop_problem or "when asked")


def _stated(name: str, expected: int | str, found: int | str | None, why_not: str | None) -> SmokeRow:
    if why_not is not None or found is None:
        return SmokeRow(name, "NOT_RUN", str(expected), None, why_not or "the engine does not say")
    return _equal(name, str(expected), str(found))


def _case(case: SmokeCase, run: SmokeRun, why_not: str | None) -> Iterator[SmokeRow]:
    if case.prompt is not None:
        prompt = run.prompts.get(case.id, PromptIds((), "the engine was not asked"))
        yield _ids(f"{case.id}: prompt ids", case.prompt_tokens, prompt.ids, prompt.problem, why_not)
    answer = run.answers.get(case.id)
    problem = "the engine was not asked" if answer is None else answer.problem
    if answer is not None and problem is None and answer.tokens is None:
        yield SmokeRow(f"{case.id}: reply ids", "NOT_RUN", _ids_text(case.reply_tokens), None, "no token ids came")
    else:
        tokens = () if answer is None or answer.tokens is None else answer.tokens
        yield _ids(f"{case.id}: reply ids", case.reply_tokens, tokens, problem, why_not)
    if case.drafted_tokens is None:
        return
    name, expected = f"{case.id}: drafts", _drafts_text(case.drafted_tokens, case.accepted_tokens)
    if why_not is not None or answer is None or answer.problem is not None:
        yield SmokeRow(name, "NOT_RUN", expected, None, why_not or "there is no reply")
    elif answer.drafted is None or answer.accepted is None:
        yield SmokeRow(name, "NOT_RUN", expected, None, "the engine does not say")
    else:
        yield _equal(name, expected, _drafts_text(answer.drafted, answer.accepted))


def _drafts_text(drafted: int, accepted: int | None) -> str:
    return f"{drafted} drafted, {accepted} accepted"


def _ids_text(ids: Sequence[int]) -> str:
    return f"{len(ids)} ids, {token_digest(ids)}"


def _ids(
    name: str, expected: Sequence[int], found: Sequence[int], problem: str | None, why_not: str | None
) -> SmokeRow:
    """Compare two lists of ids, whole; the first difference is the reason."""
    if why_not is not None:
        return SmokeRow(name, "NOT_RUN", _ids_text(expected), None, why_not)
    if problem is not None:
        return SmokeRow(name, "FAIL", _ids_text(expected), None, problem)
    if (place := first_difference(expected, found)) is None:
        return SmokeRow(name, "PASS", _ids_text(expected), _ids_text(found))
    here, there = (str(ids[place]) if place < len(ids) else "nothing" for ids in (found, expected))
    reason = f"id {place} is {here}, and the reference has {there}"
    return SmokeRow(name, "FAIL", _ids_text(expected), _ids_text(found), reason)


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Return the first place at which two lists differ, None where they are equal."""
    shared = min(len(one), len(other))
    return next((n for n in range(shared) if one[n] != other[n]), None if len(one) == len(other) else shared)
