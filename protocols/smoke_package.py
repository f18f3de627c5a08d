"""Judges a build that was taken out of its package elsewhere: a smoke's rows, where its files lay, what it left.

Everything is read again from what was recorded: both starts with their exchanges, the reference as a file, and what the
process ran. A judgement over the same record is the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

from pydantic import Field, ValidationError

from protocols.canonical import JsonValue, sha256_hex
from protocols.checks.base import CheckOutcome, field, rows_of
from protocols.checks.smoke import SmokeCheck
from protocols.errors import EngineError, EvidenceError, ProtocolError
from protocols.lock import FileIdentity, ModelIdentity
from protocols.measurements import CheckObservation
from protocols.results import some_of
from protocols.smoke import SmokeRow, SmokeRun, SmokeSight, judge_smoke, smoke_status
from protocols.smoke_cases import make_cases, recorded_prompt
from protocols.smoke_exchanges import RecordedRun, recorded_run
from protocols.smoke_reference import SmokeDevice, SmokeReference, parse_smoke_reference
from protocols.vocabulary import Part, Sha256

REFERENCE: Final = "reference.json"
"""Name of the reference among the outputs of the check."""
ELSEWHERE: Final = "another host is asked by `assay smoke --reference`"
Place = Literal["package", "original", "host", "elsewhere"]
PLACES: Final[tuple[Place, ...]] = ("package", "original", "host", "elsewhere")
"""The unpacked folder; the folder that was packed; the host's own packages and drivers; any other folder."""


class MappedFile(Part):
    """A program or library that the process ran, by its own name, its bytes, and the folder that it lay in."""

    name: str
    sha256: Sha256
    place: Place


class SeenEngine(Part):
    """What an engine is, as the check found it."""

    files: tuple[FileIdentity, ...] = Field(strict=False)
    model: ModelIdentity
    device: SmokeDevice


def seen_payload(sight: SmokeSight, run: RecordedRun) -> dict[str, JsonValue]:
    """Return one start as plain JSON values: what the engine is, and what it did."""
    seen = SeenEngine(files=sight.files, model=sight.model, device=sight.device)
    return {**seen.model_dump(mode="json"), "run": run.payload()}


def judge_smoke_package(_: SmokeCheck, observation: CheckObservation) -> CheckOutcome:
    """PASS where the build made a reference and every row of the unpacked one holds."""
    facts = observation.facts
    prompts = [recorded_prompt(row) for row in rows_of(facts, "asked")]
    written = _sight(field(dict(facts), "written", dict))
    try:
        cases = make_cases(prompts, written.run or SmokeRun())
    except EngineError as error:
        return CheckOutcome("FAIL", f"{_capital(str(error))}.", {})
    if (problem := facts.get("reference_problem")) is not None:
        return CheckOutcome("FAIL", f"{_capital(str(problem))}.", {})
    if (problem := facts.get("package_problem")) is not None:
        return CheckOutcome("FAIL", f"The build does not come out of its package: {problem}.", {})
    data = observation.outputs[REFERENCE]
    reference = _reference(data)
    if (reference.files, reference.model, reference.device, reference.cases) != (
        written.files,
        written.model,
        written.device,
        cases,
    ):
        raise EvidenceError("the reference of the check is not what its engine showed")
    unpacked = field(dict(facts), "unpacked", dict)
    rows = (*judge_smoke(reference, _sight(unpacked)), *_origin(reference, unpacked), _left(facts))
    return _outcome(rows, sha256_hex(data), field(dict(facts), "package", dict))


def _outcome(rows: tuple[SmokeRow, ...], reference_sha256: str, package: Mapping[str, Any]) -> CheckOutcome:
    inputs: dict[str, JsonValue] = {
        "rows": [row.payload() for row in rows],
        "reference_sha256": reference_sha256,
        "package": dict(package),
    }
    status = smoke_status(rows)
    if status == "PASS":
        n_files, n_bytes = field(package, "files", int), field(package, "content_bytes", int)
        reason = (
            f"The package of this build ({n_files} files, {n_bytes} bytes), unpacked elsewhere, does what the build "
            f"does on this host: all {len(rows)} rows hold; {ELSEWHERE}."
        )
        return CheckOutcome("PASS", reason, inputs)
    words = {name: [_words(row) for row in rows if row.status == name] for name in ("FAIL", "NOT_RUN")}
    held = sum(row.status == "PASS" for row in rows)
    reason = f"Out of its package {held} of {len(rows)} rows hold"
    if words["FAIL"]:
        reason += f"; broken: {some_of(words['FAIL'])}"
    if words["NOT_RUN"]:
        reason += f"; not shown: {some_of(words['NOT_RUN'])}"
    return CheckOutcome(status, f"{reason}.", inputs)


def _words(row: SmokeRow) -> str:
    why = row.reason or f"{row.found} instead of {row.expected}"
    return f"{row.name} ({why})"


def _origin(reference: SmokeReference, unpacked: Mapping[str, Any]) -> Iterator[SmokeRow]:
    """Say whether the process ran the files of the package, and used none of the folder that was packed."""
    name, expected = "runs the package", "files of the package, by hash"
    mapped = [_mapped(row) for row in field(unpacked, "mapped", list)]
    used = field(unpacked, "from_original", list)
    never = None if mapped else "nothing is known of the files that the process ran"
    wanted = {(file.name, file.sha256) for file in reference.files}
    own = [one for one in mapped if one.place == "package"]
    others = [one.name for one in own if (one.name, one.sha256) not in wanted]
    if never is not None:
        yield SmokeRow(name, "NOT_RUN", expected, None, never)
    elif others or not own:
        why = f"not of the reference: {some_of(others)}" if others else "no file of the package was mapped"
        yield SmokeRow(name, "FAIL", expected, None, why)
    else:
        # A library of the host outside its packages is no part of ours: what it is stands in the rows of the files.
        outside = sorted({one.name for one in mapped if one.place == "elsewhere"})
        more = f"beside the package, from this host: {some_of(outside)}" if outside else None
        yield SmokeRow(name, "PASS", expected, f"{len(own)} files of the package, by hash", more)
    name, expected = "without its first folder", "nothing used from there"
    taken = sorted({one.name for one in mapped if one.place == "original"} | {str(one) for one in used})
    if taken:
        yield SmokeRow(
            name, "FAIL", expected, f"{len(taken)} files", f"used from where it was packed: {some_of(taken)}"
        )
    elif never is not None:
        yield SmokeRow(name, "NOT_RUN", expected, None, never)
    else:
        yield SmokeRow(name, "PASS", expected, expected)


def _left(facts: Mapping[str, Any]) -> SmokeRow:
    """Say whether the host is as it was: no process left, and no folder."""
    processes, folder = field(facts, "left_processes", int), field(facts, "is_folder_left", bool)
    expected = "no process, no folder"
    found = [f"processes: {processes}"] * bool(processes) + ["the unpacked folder"] * folder
    if found:
        return SmokeRow("left behind", "FAIL", expected, " and ".join(found))
    return SmokeRow("left behind", "PASS", expected, expected)


def _mapped(row: object) -> MappedFile:
    try:
        return MappedFile.model_validate(row)
    except ValidationError as error:
        raise EvidenceError(f"a mapped file of the check has another form: {error.errors()[0]['msg']}") from None


def _sight(value: Mapping[str, Any]) -> SmokeSight:
    try:
        seen = SeenEngine.model_validate({name: value.get(name) for name in SeenEngine.model_fields})
    except ValidationError as error:
        raise EvidenceError(f"what the check says of its engine has another form: {error.errors()[0]['msg']}") from None
    run = recorded_run(field(value, "run", dict)).read()
    return SmokeSight(files=seen.files, arguments=(), model=seen.model, device=seen.device, run=run)


def _reference(data: bytes) -> SmokeReference:
    try:
        return parse_smoke_reference(data, REFERENCE)
    except ProtocolError as error:
        raise EvidenceError(f"the reference of the check cannot be read: {error}") from None


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
