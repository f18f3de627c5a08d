"""Words of the protocol format: scalar types, enumerations and the base of every model."""

from __future__ import annotations

import re
import unicodedata
from decimal import Decimal
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    StringConstraints,
    WithJsonSchema,
    model_serializer,
)

from protocols.canonical import decimal_text

_DECIMAL = re.compile(r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,18})?")


def _read_decimal(value: object) -> object:
    """Turn an integer or a quoted plain decimal into an exact Decimal; leave everything else for pydantic to refuse."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return Decimal(value)
    if isinstance(value, str) and _DECIMAL.fullmatch(value):
        return Decimal(value)
    return value


PlainDecimal = Annotated[
    Decimal,
    BeforeValidator(_read_decimal),
    PlainSerializer(decimal_text, return_type=str),
    WithJsonSchema({"anyOf": [{"type": "string", "pattern": f"^{_DECIMAL.pattern}$"}, {"type": "number"}]}),
]
"""An exact decimal: written as 10, 2.5 or "2.5"; hashed as text without needless zeros."""

IDENTIFIER_PATTERN = r"^[a-z][a-z0-9]*([-_.][a-z0-9]+)*$"
Identifier = Annotated[str, StringConstraints(pattern=IDENTIFIER_PATTERN, max_length=64)]


def _refuse_invisible(text: str) -> str:
    """Refuse what would act on a terminal or forge the look of a report: controls, direction marks, odd line ends."""
    for character in text:
        if character != "\n" and unicodedata.category(character) in {"Cc", "Cf", "Zl", "Zp"}:
            raise ValueError(f"the text holds the invisible character U+{ord(character):04X}")
    return text


def _refuse_lines(text: str) -> str:
    if "\n" in text:
        raise ValueError("the text has more than one line")
    return text


Text = Annotated[str, StringConstraints(min_length=1, max_length=4000), AfterValidator(_refuse_invisible)]
Line = Annotated[
    str,
    StringConstraints(min_length=1, max_length=200),
    AfterValidator(_refuse_invisible),
    AfterValidator(_refuse_lines),
]
FileName = Annotated[str, StringConstraints(min_length=1, max_length=1024)]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]

MOST_THREADS = 512
"""Most threads that ggml, and so every engine on it, takes (GGML_MAX_N_THREADS)."""

KvType = Literal["f32", "f16", "q8_0"]
KvMode = Literal["split", "unified"]
Route = Literal["/completion", "/v1/completions", "/v1/chat/completions"]
Metric = Literal["prefill_rate", "generation_rate"]
WorkField = Literal[
    "prompt_tokens",
    "prompt_tokens_evaluated",
    "cached_tokens",
    "generated_tokens",
    "drafted_tokens",
    "accepted_tokens",
]
HostReading = Literal[
    "engine_major_faults",
    "swap_in_pages",
    "swap_out_pages",
    "cpu_pressure_permille",
    "memory_pressure_permille",
    "io_pressure_permille",
    "governor_changes",
    "cpus_off_performance_governor",
    "profile_changes",
    "clock_collapses",
    "throttle_events",
    "power_throttle_events",
    "thermal_throttle_events",
    "foreign_gpu_processes",
    "memory_used_permille",
    "engine_runq_wait_permille",
    "oom_kills",
    "longest_sample_gap_ms",
]
ProfilerTool = Literal["perf-stat", "rocprofv3-attach", "rocprofv3-launch", "nsys"]
VerdictStatus = Literal["PASS", "FAIL", "INVALID", "NOT_COMPARABLE", "NOT_RUN", "INCONCLUSIVE", "SCREEN_ONLY"]


class Part(BaseModel):
    """Base of every model: frozen, strict, and closed to unknown keys.

    `LATER` names the keys that came after the format was first published. At their default they are left out of the
    canonical form, so that the hash of an older protocol or lock stays what it was.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)
    LATER: ClassVar[frozenset[str]] = frozenset()

    @model_serializer(mode="wrap")
    def _leave_out_later(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        value: dict[str, Any] = serialize(self)
        for name in self.LATER:
            if getattr(self, name) == type(self).model_fields[name].default:
                del value[name]
        return value
