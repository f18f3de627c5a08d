"""Definitions of the metrics. Rates are tokens per second, made from integers (tokens, nanoseconds) and rounded once.

The unit of replication is one fresh load: the measured requests of a load are pooled to one number, the sum of their
tokens over the sum of their times. Conventions are those of the published test vectors
(`tests/protocols/golden/vectors.json`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from protocols.canonical import JsonValue, real_text
from protocols.measurements import LoadMeasurement, RequestMeasurement
from protocols.vocabulary import Metric

Clock = Literal["server", "client"]

NS_PER_S = 1_000_000_000
DISAGREEMENT_RATIO = Fraction(2, 100)
"""Server and client times may differ by this share of the client's time ..."""
DISAGREEMENT_NS = 20_000_000
"""... or by this many nanoseconds, whichever is larger, before they are flagged."""


@dataclass(frozen=True, kw_only=True)
class LoadRate:
    """One metric of one load on one clock. `tokens` over `ns` is the rate; both are sums over the measured requests."""

    label: str
    index: int
    arm: Literal["baseline", "candidate"]
    block: int | None
    tokens: int
    ns: int
    client_ns: int | None
    """The same sum on the client's clock, where every request has it."""
    timing_disagreement: bool
    """Whether some request's server and client times differ by more than max(2 %, 20 ms)."""

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return rate_per_s(self.tokens, self.ns)

    def payload(self) -> dict[str, JsonValue]:
        """Return the rate with what it was made from, as canonical JSON."""
        client = None if self.client_ns is None or self.client_ns <= 0 else rate_per_s(self.tokens, self.client_ns)
        return {
            "label": self.label,
            "index": self.index,
            "arm": self.arm,
            "block": self.block,
            "tokens": self.tokens,
            "ns": str(self.ns),
            "rate": real_text(self.rate),
            "client_rate": None if client is None else real_text(client),
            "timing_disagreement": self.timing_disagreement,
        }


def rate_per_s(tokens: int, ns: int) -> float:
    """Return tokens per second, exact up to one rounding. ValueError where the time is not positive."""
    if ns <= 0:
        raise ValueError("a rate needs a time above zero")
    return float(Fraction(tokens * NS_PER_S, ns))


def prefill_rate(prompt_tokens_evaluated: int, prefill_ns: int) -> float:
    """Return prompt tokens evaluated per second of prefill: from the request to the first token."""
    return rate_per_s(prompt_tokens_evaluated, prefill_ns)


def generation_rate(generated_tokens: int, generation_ns: int) -> float:
    """Return generated tokens per second, without the first one: it belongs to prefill.

    ValueError for fewer than two tokens, where the rate is not defined.
    """
    if generated_tokens < 2:
        raise ValueError("a generation rate needs two tokens or more")
    return rate_per_s(generated_tokens - 1, generation_ns)


def acceptance_ratio(drafted_tokens: int, accepted_tokens: int) -> float:
    """Return accepted over drafted tokens. ValueError where nothing was drafted."""
    if drafted_tokens <= 0:
        raise ValueError("an acceptance ratio needs drafted tokens")
    return float(Fraction(accepted_tokens, drafted_tokens))


def tpot_ns(generated_tokens: int, generation_ns: int) -> float:
    """Return nanoseconds per output token after the first. ValueError for fewer than two tokens."""
    if generated_tokens < 2:
        raise ValueError("a time per output token needs two tokens or more")
    return float(Fraction(generation_ns, generated_tokens - 1))


def timing_disagreement(server_ns: int | None, client_ns: int | None) -> bool:
    """Return whether both times are known and differ by more than max(2 % of the client's time, 20 ms)."""
    if server_ns is None or client_ns is None:
        return False
    return abs(server_ns - client_ns) > max(DISAGREEMENT_RATIO * client_ns, Fraction(DISAGREEMENT_NS))


def measured_requests(load: LoadMeasurement, workload: str) -> tuple[RequestMeasurement, ...]:
    """Return the measured requests of one workload in one load, in order of repeat; warm-ups are left out."""
    found = [request for request in load.requests if request.workload == workload and not request.is_warmup]
    return tuple(sorted(found, key=lambda request: request.repeat))


def metric_tokens(request: RequestMeasurement, metric: Metric) -> int | None:
    """Return the tokens that the metric counts in one request, or None where they are unknown or the rate undefined."""
    if metric == "prefill_rate":
        evaluated = request.prompt_tokens_evaluated
        return evaluated if evaluated is not None and evaluated > 0 else None
    generated = request.generated_tokens
    return generated - 1 if generated is not None and generated > 1 else None


def metric_ns(request: RequestMeasurement, metric: Metric, clock: Clock) -> int | None:
    """Return the time of the metric's phase on one clock, or None where it is unknown or not positive."""
    if metric == "prefill_rate":
        time_ns = request.server_prefill_ns if clock == "server" else request.client_prefill_ns
    else:
        time_ns = request.server_generation_ns if clock == "server" else request.client_generation_ns
    return time_ns if time_ns is not None and time_ns > 0 else None


def choose_clock(loads: Sequence[LoadMeasurement], workload: str, metric: Metric) -> Clock | None:
    """Return the one clock on which every load can be compared: the server's where all have it, else the client's.

    None where neither clock covers every measured request. Clocks are never mixed inside one comparison.
    """
    for clock in ("server", "client"):
        times = [metric_ns(request, metric, clock) for load in loads for request in measured_requests(load, workload)]
        if times and None not in times:
            return clock
    return None


def load_rate(load: LoadMeasurement, workload: str, metric: Metric, clock: Clock) -> LoadRate | None:
    """Return one metric of one load, or None where some measured request lacks its tokens or its time."""
    requests = measured_requests(load, workload)
    tokens = [metric_tokens(request, metric) for request in requests]
    times = [metric_ns(request, metric, clock) for request in requests]
    known_tokens = [count for count in tokens if count is not None]
    known_times = [time_ns for time_ns in times if time_ns is not None]
    if not requests or len(known_tokens) < len(requests) or len(known_times) < len(requests):
        return None
    client = [time_ns for request in requests if (time_ns := metric_ns(request, metric, "client")) is not None]
    return LoadRate(
        label=load.label,
        index=load.index,
        arm=load.arm,
        block=load.block,
        tokens=sum(known_tokens),
        ns=sum(known_times),
        client_ns=sum(client) if len(client) == len(requests) else None,
        timing_disagreement=any(
            timing_disagreement(metric_ns(request, metric, "server"), metric_ns(request, metric, "client"))
            for request in requests
        ),
    )
