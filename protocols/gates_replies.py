"""The gate over what each reply says of itself: its events, counts, text and times must agree.

Codes of what does not add up come from the recorder; `UNSOUND` are those that no healthy server gives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Final

from protocols.breaks import Break, is_the_candidates, next_step, whose
from protocols.canonical import JsonValue
from protocols.gate_schema import SoundRepliesGate
from protocols.gate_view import View
from protocols.gates_exact import Sample, answered, result_of, samples_of
from protocols.measurements import ARMS, Arm, RequestMeasurement
from protocols.results import GateResult, some_of

UNSOUND: Final = {
    "ids_lost": "fewer token ids came than the engine says that it generated",
    "ids_doubled": "more token ids came than the engine says that it generated",
    "running_count_differs": "the engine's running count of tokens is not that of the ids so far",
    "ids_after_end": "ids or text came behind the final event",
    "finals_differ": "several final events give different counts",
    "id_out_of_range": "token ids are no ids",
    "invalid_utf8": "bytes of an event are not UTF-8",
    "unparsable_events": "an event is not JSON of a known form",
    "unterminated_event": "the stream ended inside an event",
    "usage_decreased": "a later count is less than an earlier one",
    "counts_disagree": "two counts of the generated tokens differ",
    "prompt_counts_disagree": "the prompt tokens are not those evaluated plus those cached",
    "count_faulty": "a count is negative, huge or no number",
    "timing_faulty": "a time is negative, huge or no number",
    "accepted_exceeds_drafted": "more drafted tokens were accepted than made",
    "accepted_exceeds_generated": "more drafted tokens were accepted than tokens generated",
    "events_after_done": "events came behind the end of the stream",
}
"""Codes that no healthy server gives, each with what it says of a reply."""
_PHASES: Final = (
    ("prefill", "server_prefill_ns", "client_prefill_ns"),
    ("generation", "server_generation_ns", "client_generation_ns"),
)
_LEAST_NS: Final = 200_000_000
"""What a loaded host adds to a short phase of one reply: a client that is woken late, a queue for the processor."""


def evaluate_sound_replies(gate: SoundRepliesGate, view: View) -> GateResult:
    """Every reply adds up, equal token ids have equal texts, and the engine's times are ours within the limit.

    FAIL as soon as one reply of the candidate is unsound, in loads that broke off, too; NOT_COMPARABLE where the
    baseline's are unsound in the same way. Times count where every reply of an arm differs by more than the limit and
    200 ms, so that one late wake-up of the client is no fault of the engine.
    """
    seen = [
        Sample(load=load, request=request)
        for load in view.measurements.loads
        for request in load.requests
        if request.workload == gate.workload and not request.is_warmup
    ]
    unsound = [one for one in seen if _codes(one)]
    contradictions = [f"{one.name} ({', '.join(_codes(one))})" for one in unsound]
    texts = list(_other_texts(sorted(seen, key=lambda one: ARMS.index(one.load.arm))))
    judged = samples_of(view, gate.workload)
    times = list(_other_times(gate, judged))
    limit = f"{gate.timing_limit_pct}%"
    inputs: dict[str, JsonValue] = {
        "replies": len(seen),
        "contradictions": list(contradictions),
        "texts": [one.text for one in texts],
        "times": [one.text for one in times],
        "codes": dict(sorted(Counter(code for one in seen for code in one.request.flags).items())),
    }
    parts = [("replies contradict themselves", contradictions)]
    parts.append(("equal ids have other texts", [one.text for one in texts]))
    parts.append(("the engine's times are not ours", [one.text for one in times]))
    found = [f"{what}: {some_of(items)}" for what, items in parts if items]
    if found:
        codes = dict.fromkeys(code for one in unsound for code in _codes(one))
        reason = _sentence([*found, *(f"{code} means that {UNSOUND[code]}" for code in codes)])
        breaks = [*(Break(one.load.arm, code, code) for one in unsound for code in _codes(one)), *texts]
        if is_the_candidates(breaks, answered(seen)) or is_the_candidates(times, dict.fromkeys(ARMS, 1)):
            return result_of(gate, "FAIL", reason, inputs, limit)
        reason += f" This is {whose([*breaks, *times])}, which says nothing against the candidate. {_STEP}"
        return result_of(gate, "NOT_COMPARABLE", reason, {**inputs, **next_step(_STEP)}, limit)
    missing = view.missing_for(gate.workload)
    if missing is not None:
        return result_of(gate, "INCONCLUSIVE", f"Not every reply can be judged: {missing}.", inputs, limit)
    untimed = [f"{phase} of the {arm}" for arm, phase, known in _times(judged) if not known]
    said = f", and the engine's times are ours within {gate.timing_limit_pct} % or {_LEAST_NS // 1_000_000} ms"
    if untimed:
        said = f"; no times of the engine to compare: {some_of(untimed)}"
    return result_of(gate, "PASS", f"All {len(seen)} replies add up{said}.", inputs, limit)


_STEP: Final = "The baseline does it too: get a baseline whose replies add up, or write required: false at this gate."


def _codes(sample: Sample) -> list[str]:
    return [code for code in sample.request.flags if code in UNSOUND]


def _sentence(parts: Sequence[str]) -> str:
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


def _other_texts(samples: Sequence[Sample]) -> Iterator[Break]:
    """Name the replies whose ids are those of an earlier reply and whose text is not.

    What is broken is the text itself: a candidate's text is its own fault unless the baseline, which comes first, gave
    it for the same ids, beside another one.
    """
    first: dict[tuple[int, ...], Sample] = {}
    for sample in samples:
        ids = sample.request.token_ids
        if ids and sample.request.outcome == "ok":
            reference = first.setdefault(ids, sample)
            if reference.request.text_sha256 != sample.request.text_sha256:
                what = (ids, sample.request.text_sha256)
                yield Break(sample.load.arm, what, f"{sample.name} and {reference.name}")


def _other_times(gate: SoundRepliesGate, samples: Sequence[Sample]) -> Iterator[Break]:
    for arm, phase, known in _times(samples):
        if known and all(_is_off(*pair, gate) for pair in known):
            engine, ours = known[0]
            text = f"{phase} of the {arm}, in the first reply {engine / 1e6:.0f} ms instead of {ours / 1e6:.0f} ms"
            yield Break(arm, phase, text)


def _times(samples: Sequence[Sample]) -> Iterator[tuple[Arm, str, list[tuple[int, int]]]]:
    """Yield arm, phase, and the engine's time beside ours of each reply that has both."""
    for arm in ARMS:
        own = [sample.request for sample in samples if sample.load.arm == arm]
        for phase, server, client in _PHASES:
            pairs = (_ratio(request, server, client) for request in own)
            yield arm, phase, [pair for pair in pairs if pair is not None]


def _ratio(request: RequestMeasurement, server: str, client: str) -> tuple[int, int] | None:
    engine, ours = getattr(request, server), getattr(request, client)
    return None if engine is None or ours is None else (engine, ours)


def _is_off(engine_ns: int, our_ns: int, gate: SoundRepliesGate) -> bool:
    difference = abs(engine_ns - our_ns)
    return difference > _LEAST_NS and difference > Fraction(gate.timing_limit_pct) / 100 * our_ns
