"""Gates that noise cannot touch: completeness, token ids, token counts, work counters, cached tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from protocols.breaks import Break, is_the_candidates, next_step, whose
from protocols.canonical import JsonValue, token_digest
from protocols.gate_schema import (
    ColdCacheGate,
    CompletenessGate,
    EqualCountersGate,
    EqualWorkGate,
    ExactTokensGate,
    SoundRepliesGate,
)
from protocols.gate_view import View
from protocols.measurements import ARMS, Arm, LoadMeasurement, RequestMeasurement
from protocols.metrics import measured_requests
from protocols.results import GateResult, GateStatus, some_of
from protocols.schema import Workload

ExactGate = CompletenessGate | ExactTokensGate | EqualWorkGate | EqualCountersGate | ColdCacheGate | SoundRepliesGate


def result_of(
    gate: ExactGate, status: GateStatus, reason: str, inputs: Mapping[str, JsonValue], threshold: str | None = None
) -> GateResult:
    """Build the result of an exact gate."""
    return GateResult(
        id=gate.id,
        kind=gate.kind,
        status=status,
        required=gate.required,
        reason=reason,
        inputs=inputs,
        threshold=threshold,
    )


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One measured request with its place."""

    load: LoadMeasurement
    request: RequestMeasurement

    @property
    def name(self) -> str:
        """Place of the request, for people."""
        return f"{self.load.label} request {self.request.repeat}"


def samples_of(view: View, workload: str) -> list[Sample]:
    """Return the measured requests of a workload, load by load."""
    return [
        Sample(load=load, request=request)
        for load in view.measured_loads()
        for request in measured_requests(load, workload)
    ]


def evaluate_completeness(gate: CompletenessGate, view: View) -> GateResult:
    """Every scheduled load is COMPLETE, every request was answered, and every token count is the stated one.

    INCONCLUSIVE where something is missing, FAIL where a known count of the candidate differs, NOT_COMPARABLE where the
    baseline's differ alike, NOT_RUN where an engine states no counts.
    """
    missing = list(view.missing_loads)
    wrong: list[Break] = []
    unknown: list[str] = []
    samples = [sample for workload in view.protocol.workloads for sample in samples_of(view, workload.id)]
    for workload in view.protocol.workloads:
        missing.extend(view.missing_requests(workload))
        for sample in samples_of(view, workload.id):
            _check_counts(sample, workload, wrong, unknown)
    inputs: dict[str, JsonValue] = {
        "loads_expected": len(view.positions),
        "loads_complete": len(view.loads),
        "missing": list(missing),
        "invalid_loads": list(view.invalid_loads),
        "wrong_counts": [one.text for one in wrong],
        "unknown_counts": list(unknown),
    }
    if missing:
        return result_of(gate, "INCONCLUSIVE", f"The campaign is not complete: {some_of(missing)}.", inputs)
    if wrong:
        step = None if is_the_candidates(wrong, answered(samples)) else _counts_step(view)
        return broken(gate, "Token counts are not the stated ones", wrong, inputs, step)
    if unknown:
        return result_of(gate, "NOT_RUN", f"An engine does not state its token counts: {some_of(unknown)}.", inputs)
    requests = sum(workload.repeats for workload in view.protocol.workloads)
    reason = (
        f"All {len(view.positions)} loads are complete, and each measured load answered its {requests} "
        f"{'request' if requests == 1 else 'requests'} with the stated token counts."
    )
    return result_of(gate, "PASS", reason, inputs)


def answered(samples: Sequence[Sample]) -> dict[Arm, int]:
    """Return how many requests each arm answered."""
    return {arm: sum(sample.load.arm == arm for sample in samples) for arm in ARMS}


def broken(
    gate: ExactGate,
    words: str,
    breaks: Sequence[Break],
    inputs: Mapping[str, JsonValue],
    step: str | None,
    threshold: str | None = None,
) -> GateResult:
    """Return FAIL; NOT_COMPARABLE with its next step where `step` says that the breaks are not the candidate's."""
    found = some_of([one.text for one in breaks])
    if step is None:
        return result_of(gate, "FAIL", f"{words}: {found}.", inputs, threshold)
    reason = f"{words}, {whose(breaks)}: {found}. This says nothing against the candidate. {step}"
    return result_of(gate, "NOT_COMPARABLE", reason, {**inputs, **next_step(step)}, threshold)


def _counts_step(view: View) -> str:
    """Name the numbers to state where all requests of a workload have the same other ones, else say where to look."""
    steps: list[str] = []
    for workload in view.protocol.workloads:
        samples = samples_of(view, workload.id)
        for member in ("prompt_tokens", "generated_tokens"):
            found = {getattr(sample.request, member) for sample in samples}
            if found == {getattr(workload, member)}:
                continue
            if len(found) > 1:
                return "The baseline does it too: make its counts the stated ones first."
            steps.append(f"{member}: {found.pop()} in workload {workload.id}")
    return f"If that is what the request means, write {some_of(steps)}, and run a new campaign."


def _check_counts(sample: Sample, workload: Workload, wrong: list[Break], unknown: list[str]) -> None:
    for member, what in (("prompt_tokens", "prompt"), ("generated_tokens", "generated")):
        count, stated = getattr(sample.request, member), getattr(workload, member)
        if count is None:
            unknown.append(f"{sample.name} of {workload.id} has no count of {what} tokens")
        elif count != stated:
            text = f"{sample.name} of {workload.id} has {count} {what} tokens, stated are {stated}"
            wrong.append(Break(sample.load.arm, (workload.id, sample.request.repeat, member, count), text))


def evaluate_exact_tokens(gate: ExactTokensGate, view: View) -> GateResult:
    """Request n of every load generates the same token ids as request n of the first baseline load.

    The first difference is named with its place and both ids. Whether each arm agrees with itself is said beside it.
    """
    missing = view.missing_for(gate.workload)
    if missing is not None:
        return result_of(gate, "INCONCLUSIVE", f"Token ids cannot be compared: {missing}.", {})
    samples = samples_of(view, gate.workload)
    without = [sample.name for sample in samples if sample.request.token_ids is None]
    if without:
        return result_of(gate, "NOT_RUN", f"No token ids were returned in {some_of(without)}.", {})
    reference = next((sample.load for sample in samples if sample.load.arm == "baseline"), samples[0].load)
    differences = _token_differences(samples, reference)
    deterministic = {
        arm: not _token_differences(own, own[0].load)
        for arm in ARMS
        if (own := [sample for sample in samples if sample.load.arm == arm])
    }
    inputs: dict[str, JsonValue] = {
        "reference_load": reference.label,
        "digests": {sample.name: token_digest(sample.request.token_ids or ()) for sample in samples},
        "tokens": sum(len(sample.request.token_ids or ()) for sample in samples),
        "deterministic": {str(arm): steady for arm, steady in deterministic.items()},
        "differences": list(differences),
    }
    unsteady = [f"the {arm} differs from itself" for arm, steady in deterministic.items() if not steady]
    if differences:
        first = differences[0]
        reason = (
            f"{first['load']} request {first['request']} differs from {reference.label} at token {first['token']}: "
            f"id {_shown(first['found'])} instead of {_shown(first['expected'])}; {len(differences)} of {len(samples)} "
            f"outputs differ."
        )
        if unsteady:
            reason += f" Between its own loads, {some_of(unsteady)}."
        return result_of(gate, "FAIL", reason, inputs)
    length = len(samples[0].request.token_ids or ())
    reason = f"All {len(samples)} outputs are the same token ids ({length} each), in both arms and in every load."
    return result_of(gate, "PASS", reason, inputs)


def _shown(token: JsonValue) -> str:
    return "nothing" if token is None else str(token)


def _token_differences(samples: Sequence[Sample], reference: LoadMeasurement) -> list[dict[str, JsonValue]]:
    """Return, for each request that is not the reference load's, its first difference (token place from 0)."""
    expected = {sample.request.repeat: sample.request.token_ids or () for sample in samples if sample.load is reference}
    found: list[dict[str, JsonValue]] = []
    for sample in samples:
        wanted, ids = expected.get(sample.request.repeat, ()), sample.request.token_ids or ()
        if ids == wanted:
            continue
        shorter = min(len(ids), len(wanted))
        place = next((i for i in range(shorter) if ids[i] != wanted[i]), shorter)
        found.append(
            {
                "load": sample.load.label,
                "request": sample.request.repeat,
                "token": place,
                "expected": wanted[place] if place < len(wanted) else None,
                "found": ids[place] if place < len(ids) else None,
            }
        )
    return found


def evaluate_equal_work(gate: EqualWorkGate, view: View) -> GateResult:
    """Request n of every load has the same token counts as request n of the first baseline load."""
    return _equal_counts(gate, view, gate.workload, _work_reader(gate.fields), "token counts")


def evaluate_equal_counters(gate: EqualCountersGate, view: View) -> GateResult:
    """Request n of every load has the same engine work counters as request n of the first baseline load."""
    missing = view.missing_for(gate.workload)
    if missing is not None:
        return result_of(gate, "INCONCLUSIVE", f"Work counters cannot be compared: {missing}.", {})
    samples = samples_of(view, gate.workload)
    silent = [arm for arm in ARMS if any(s.load.arm == arm and not s.request.work for s in samples)]
    if silent:
        return result_of(gate, "NOT_RUN", f"The engine of the {' and the '.join(silent)} reports no work counters.", {})
    names = gate.counters
    if names is None:
        names = tuple(sorted({name for sample in samples for name in sample.request.work or {}}))
    return _equal_counts(gate, view, gate.workload, _counter_reader(names), "work counters")


_Reader = Callable[[RequestMeasurement], dict[str, int | None]]


def _work_reader(fields: Sequence[str]) -> _Reader:
    def read(request: RequestMeasurement) -> dict[str, int | None]:
        return {name: getattr(request, name) for name in fields}

    return read


def _counter_reader(names: Sequence[str]) -> _Reader:
    def read(request: RequestMeasurement) -> dict[str, int | None]:
        work = request.work or {}
        return {name: work.get(name) for name in names}

    return read


def _equal_counts(
    gate: EqualWorkGate | EqualCountersGate, view: View, workload: str, read: _Reader, what: str
) -> GateResult:
    missing = view.missing_for(workload)
    if missing is not None:
        return result_of(gate, "INCONCLUSIVE", f"The {what} cannot be compared: {missing}.", {})
    samples = samples_of(view, workload)
    reference = next((sample.load for sample in samples if sample.load.arm == "baseline"), samples[0].load)
    expected = {sample.request.repeat: read(sample.request) for sample in samples if sample.load is reference}
    absent: list[str] = []
    differences: list[str] = []
    for sample in samples:
        wanted = expected.get(sample.request.repeat, {})
        for name, count in read(sample.request).items():
            if count is None:
                absent.append(f"{name} in {sample.name}")
            elif wanted.get(name) is not None and count != wanted[name]:
                differences.append(f"{name} is {count} in {sample.name} and {wanted[name]} in {reference.label}")
    inputs: dict[str, JsonValue] = {
        "reference_load": reference.label,
        "counts": {str(repeat): {k: _stored(v) for k, v in counts.items()} for repeat, counts in expected.items()},
        "absent": list(absent),
        "differences": list(differences),
    }
    if differences:
        return result_of(gate, "FAIL", f"The {what} differ: {some_of(differences)}.", inputs)
    if absent:
        return result_of(gate, "NOT_RUN", f"An engine does not report {some_of(absent)}.", inputs)
    names = some_of(list(read(samples[0].request)))
    return result_of(gate, "PASS", f"The {what} are the same in all {len(samples)} requests: {names}.", inputs)


def _stored(count: int | None) -> JsonValue:
    """Counters of long requests pass 2^53, so every count is stored as text."""
    return None if count is None else str(count)


_CACHED_STEP = (
    "Write the cached_tokens that are meant, or keep the prompt out of the caches of both engines "
    "(cache_prompt: false in the request), and run a new campaign."
)


def evaluate_cold_cache(gate: ColdCacheGate, view: View) -> GateResult:
    """Every measured request took exactly the stated number of prompt tokens from a cache."""
    stated = str(gate.cached_tokens)
    missing = view.missing_for(gate.workload)
    if missing is not None:
        return result_of(gate, "INCONCLUSIVE", f"Cached tokens cannot be judged: {missing}.", {}, stated)
    samples = samples_of(view, gate.workload)
    absent = [sample.name for sample in samples if sample.request.cached_tokens is None]
    wrong = [
        Break(
            sample.load.arm,
            (sample.request.repeat, sample.request.cached_tokens),
            f"{sample.name} took {sample.request.cached_tokens}",
        )
        for sample in samples
        if sample.request.cached_tokens not in {None, gate.cached_tokens}
    ]
    inputs: dict[str, JsonValue] = {
        "absent": list(absent),
        "wrong": [one.text for one in wrong],
        "requests": len(samples),
    }
    if wrong:
        step = None if is_the_candidates(wrong, answered(samples)) else _CACHED_STEP
        words = f"Prompt tokens from the cache are not the stated {stated}"
        return broken(gate, words, wrong, inputs, step, stated)
    if absent:
        reason = f"The engine does not report cached tokens in {some_of(absent)}."
        return result_of(gate, "NOT_RUN", reason, inputs, stated)
    reason = f"All {len(samples)} requests took exactly {stated} prompt tokens from a cache."
    return result_of(gate, "PASS", reason, inputs, stated)
