"""The gate over what each reply says of itself: its events, counts, text and times must agree.

Codes of what does not add up come from the recorder; `UNSOUND` are those that no healthy server gives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Final

from protocols.canonical import JsonValue
from protocols.gate_schema import SoundRepliesGate
from protocols.gate_view import View
from protocols.gates_exact import Sample, result_of, samples_of
from protocols.measurements import ARMS, Arm, RequestMeasurement
from protocols.results import GateResult, some_of

UNSOUND: Final = (
    "ids_lost",
    "ids_doubled",
    "running_count_differs",
    "ids_after_end",
    "finals_differ",
    "id_out_of_range",
    "invalid_utf8",
    "unparsable_events",
    "unterminated_event",
    "usage_decreased",
    "counts_disagree",
    "prompt_counts_disagree",
    "count_faulty",
    "timing_faulty",
    "accepted_exceeds_drafted",
    "accepted_exceeds_generated",
    "events_after_done",
)
_PHASES: Final = (
    ("prefill", "server_prefill_ns", "client_prefill_ns"),
    ("generation", "server_generation_ns", "client_generation_ns"),
)
_LEAST_NS: Final = 200_000_000
"""What a loaded host adds to a short phase of one reply: a client that is woken late, a queue for the processor."""


def evaluate_sound_replies(gate: SoundRepliesGate, view: View) -> GateResult:
    """Every reply adds up, equal token ids have equal texts, and the engine's times are ours within the limit.

    FAIL as soon as one reply is unsound, in loads that broke off, too. Times count where every reply of an arm differs
    by more than the limit and 200 ms, so that one late wake-up of the client is no fault of the engine.
    """
    seen = [
        Sample(load=load, request=request)
        for load in view.measurements.loads
        for request in load.requests
        if request.workload == gate.workload and not request.is_warmup
    ]
    contradictions = [
        f"{one.name} ({', '.join(codes)})" for one in seen if (codes := [c for c in one.request.flags if c in UNSOUND])
    ]
    texts = list(_other_texts(seen))
    judged = samples_of(view, gate.workload)
    times = list(_other_times(gate, judged))
    limit = f"{gate.timing_limit_pct}%"
    inputs: dict[str, JsonValue] = {
        "replies": len(seen),
        "contradictions": list(contradictions),
        "texts": list(texts),
        "times": list(times),
        "codes": dict(sorted(Counter(code for one in seen for code in one.request.flags).items())),
    }
    parts = [("replies contradict themselves", contradictions), ("equal ids have other texts", texts)]
    parts.append(("the engine's times are not ours", times))
    found = [f"{what}: {some_of(items)}" for what, items in parts if items]
    if found:
        reason = "; ".join(found)
        return result_of(gate, "FAIL", f"{reason[0].upper()}{reason[1:]}.", inputs, limit)
    missing = view.missing_for(gate.workload)
    if missing is not None:
        return result_of(gate, "INCONCLUSIVE", f"Not every reply can be judged: {missing}.", inputs, limit)
    untimed = [f"{phase} of the {arm}" for arm, phase, known in _times(judged) if not known]
    said = (
        f"; no times of the engine to compare: {some_of(untimed)}" if untimed else ", and the engine's times are ours"
    )
    return result_of(gate, "PASS", f"All {len(seen)} replies add up{said}.", inputs, limit)


def _other_texts(samples: Sequence[Sample]) -> Iterator[str]:
    """Name the replies whose ids are those of an earlier reply and whose text is not."""
    first: dict[tuple[int, ...], Sample] = {}
    for sample in samples:
        ids = sample.request.token_ids
        if ids and sample.request.outcome == "ok":
            reference = first.setdefault(ids, sample)
            if reference.request.text_sha256 != sample.request.text_sha256:
                yield f"{sample.name} and {reference.name}"


def _other_times(gate: SoundRepliesGate, samples: Sequence[Sample]) -> Iterator[str]:
    for arm, phase, known in _times(samples):
        if known and all(_is_off(*pair, gate) for pair in known):
            engine, ours = known[0]
            yield f"{phase} of the {arm}, in the first reply {engine / 1e6:.0f} ms instead of {ours / 1e6:.0f} ms"


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
