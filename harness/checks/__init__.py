"""Carries out checks: one fresh process for each check and arm, in which the arm's own library or server runs.

A step that the engine refuses, or that ends it, is what the check found: the observation is FAILED and says why. What
the process mapped is compared with the lock, as for a load.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from harness.checks.capacity import run_capacity
from harness.checks.context import Blocks, CheckContext, Unmet
from harness.checks.images_in_history import run_images_in_history
from harness.checks.mapping_grid import run_mapping_grid
from harness.checks.memory_growth import run_memory_growth
from harness.checks.operation_cost import run_operation_cost
from harness.checks.operator_boundaries import run_operator_boundaries
from harness.checks.recall import run_recall
from harness.checks.requirements import run_requirements
from harness.checks.restart import run_restart
from harness.checks.served_recall import run_served_recall
from harness.checks.smoke import run_smoke
from harness.checks.steps import (
    run_determinism,
    run_foreign_content,
    run_rollback,
    run_sequence_copy,
    run_sequence_reuse,
    run_state_round_trip,
)
from harness.checks.stored_reference import run_stored_reference
from harness.preparation import Prepared
from protocols.canonical import JsonValue
from protocols.check_schema import (
    Check,
    DeterminismCheck,
    ForeignContentCheck,
    RecallCheck,
    RollbackCheck,
    SequenceCopyCheck,
    SequenceReuseCheck,
    StateRoundTripCheck,
)
from protocols.checks.base import CheckBase, unmet_need
from protocols.checks.capacity import CapacityCheck
from protocols.checks.images_in_history import ImagesInHistoryCheck
from protocols.checks.mapping_grid import MappingGridCheck
from protocols.checks.memory_growth import MemoryGrowthCheck
from protocols.checks.operation_cost import OperationCostCheck
from protocols.checks.operator_boundaries import OperatorBoundariesCheck
from protocols.checks.requirements import RequirementsCheck
from protocols.checks.restart import RestartCheck
from protocols.checks.served_recall import ServedRecallCheck
from protocols.checks.smoke import SmokeCheck
from protocols.checks.stored_reference import StoredReferenceCheck
from protocols.errors import EngineError
from protocols.gate_schema import CheckGate
from protocols.measurements import ARMS, Arm, CheckObservation

__all__ = ["Blocks", "carry_out", "wanted_checks"]

_RUNS: Final[Mapping[type[CheckBase], Callable[[CheckContext, Any], dict[str, JsonValue]]]] = {
    DeterminismCheck: run_determinism,
    StateRoundTripCheck: run_state_round_trip,
    SequenceCopyCheck: run_sequence_copy,
    SequenceReuseCheck: run_sequence_reuse,
    RollbackCheck: run_rollback,
    ForeignContentCheck: run_foreign_content,
    MemoryGrowthCheck: run_memory_growth,
    RecallCheck: run_recall,
    OperatorBoundariesCheck: run_operator_boundaries,
    MappingGridCheck: run_mapping_grid,
    ImagesInHistoryCheck: run_images_in_history,
    OperationCostCheck: run_operation_cost,
    ServedRecallCheck: run_served_recall,
    RestartCheck: run_restart,
    CapacityCheck: run_capacity,
    SmokeCheck: run_smoke,
    StoredReferenceCheck: run_stored_reference,
    RequirementsCheck: run_requirements,
}


def wanted_checks(prepared: Prepared) -> list[tuple[Check, Arm]]:
    """Return each check with each arm that a gate judges, in the order of the protocol."""
    judged = {(gate.check, gate.arm) for gate in prepared.protocol.gates if isinstance(gate, CheckGate)}
    return [(check, arm) for check in prepared.protocol.checks for arm in ARMS if (check.id, arm) in judged]


def carry_out(prepared: Prepared, check: Check, arm: Arm) -> tuple[CheckObservation, Blocks]:
    """Carry out one check of one arm. Engine errors end in the observation."""
    reason = unmet_need(check, prepared.protocol.arm(arm).engine.kind)
    if reason is not None:
        return CheckObservation(check=check.id, arm=arm, state="NOT_RUN", reason=reason), {}
    context = CheckContext(prepared, check, arm)
    try:
        facts = _RUNS[type(check)](context, check)
    except Unmet as unmet:
        return CheckObservation(check=check.id, arm=arm, state="NOT_RUN", reason=str(unmet)), {}
    except EngineError as error:
        return CheckObservation(check=check.id, arm=arm, state="FAILED", reason=str(error)), {}
    if context.vocabulary:
        facts["vocabulary"] = context.vocabulary
    observation = CheckObservation(check=check.id, arm=arm, state="COMPLETE", facts=facts, outputs=context.outputs)
    return observation, context.blocks
