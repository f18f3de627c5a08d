"""What a check left of an arm: a receipt of the kind `check`, its blocks of logits as blobs.

The detail is ``{"check","arm","state","reason","facts","blocks":{name:[rows,columns]}}``; each block is an attachment
``NAME.f32``: little-endian float32, row by row. What a program wrote, and what a check made for others to take, is an
attachment ``NAME.output``. A check of an arm has one receipt, never a second one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, cast

from protocols.errors import EvidenceError
from protocols.measurements import ARMS, Arm, Block, CheckObservation, CheckState
from recorder.campaign_state import CampaignState
from recorder.ledger import Entry
from recorder.row_values import read_object

CHECK_RECEIPT: Final = "check"
STATES: Final[tuple[CheckState, ...]] = ("COMPLETE", "NOT_RUN", "FAILED")
_SUFFIX: Final = ".f32"
_OUTPUT: Final = ".output"
ReadBlob = Callable[[str], bytes]


def check_receipt(
    observation: CheckObservation, blocks: Mapping[str, Block]
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the payload and the attachments of an observation's receipt."""
    payload = {
        "check": observation.check,
        "arm": observation.arm,
        "state": observation.state,
        "reason": observation.reason,
        "facts": dict(observation.facts),
        "blocks": {name: [block.rows, block.columns] for name, block in blocks.items()},
    }
    attachments = {f"{name}{_SUFFIX}": block.data for name, block in blocks.items()}
    attachments |= {f"{name}{_OUTPUT}": content for name, content in observation.outputs.items()}
    return payload, attachments


def read_checks(state: CampaignState, read_blob: ReadBlob) -> tuple[CheckObservation, ...]:
    """Return what the checks of a campaign left, in the order in which they were recorded.

    Raises EvidenceError where a receipt is not what `check_receipt` makes, or a check of an arm is there twice.
    """
    found: list[CheckObservation] = []
    for entry in state.others:
        if entry.kind == "receipt.recorded" and entry.text("receipt") == CHECK_RECEIPT:
            one = _read(entry, read_blob)
            if any((one.check, one.arm) == (other.check, other.arm) for other in found):
                raise EvidenceError(f"the check {one.check} of the {one.arm} is recorded twice", where=_where(entry))
            found.append(one)
    return tuple(found)


def _where(entry: Entry) -> str:
    return f"ledger entry {entry.seq} ({entry.kind})"


def _read(entry: Entry, read_blob: ReadBlob) -> CheckObservation:
    detail = read_object(read_blob(entry.blob("detail")), f"detail of {_where(entry)}")
    check, arm, state, reason = (detail.get(name) for name in ("check", "arm", "state", "reason"))
    facts, shapes = detail.get("facts"), detail.get("blocks")
    is_sound = isinstance(check, str) and arm in ARMS and state in STATES and isinstance(reason, str | None)
    if not is_sound or not isinstance(facts, dict) or not isinstance(shapes, dict):
        raise EvidenceError("this is no record of a check", where=_where(entry))
    blobs = {str(item["name"]): str(item["sha256"]) for item in entry.blobs() if item.get("role") == "attachment"}

    def read_block(name: str) -> Block:
        shape, sha256 = shapes.get(name), blobs.get(f"{name}{_SUFFIX}")
        if (
            sha256 is None
            or not isinstance(shape, list)
            or len(shape) != 2
            or any(type(one) is not int for one in shape)
        ):
            raise EvidenceError(f"the check left no block {name}", where=_where(entry))
        return Block(shape[0], shape[1], read_blob(sha256))

    return CheckObservation(
        check=str(check),
        arm=cast("Arm", arm),
        state=cast("CheckState", state),
        reason=reason,
        facts=facts,
        read_block=read_block,
        outputs=_Outputs(
            {name.removesuffix(_OUTPUT): sha256 for name, sha256 in blobs.items() if name.endswith(_OUTPUT)}, read_blob
        ),
    )


class _Outputs(Mapping[str, bytes]):
    """What programs wrote, read when it is asked for: a bundle may hold none of it."""

    def __init__(self, hashes: Mapping[str, str], read_blob: ReadBlob) -> None:
        self._hashes = hashes
        self._read_blob = read_blob

    def __getitem__(self, name: str) -> bytes:
        return self._read_blob(self._hashes[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._hashes)

    def __len__(self) -> int:
        return len(self._hashes)
