"""Two other programs, asked about lists of rates through their own code (extra `verdicts` of pyproject.toml).

inference-doctor reads folders of repeated results and gives PASS, FAIL or INCONCLUSIVE from Welch's interval; it gets
every load of a campaign, without their order. metria verifies only runs that it makes itself, one reference and then
one candidate; its policy, the part that says PASS or FAIL about a speed, gets the ratio of the first load of each arm,
as its own measurement would compute it from such a pair.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Judge = Callable[[list[float], list[float], float, Path], str]


def inference_doctor(baseline: list[float], candidate: list[float], margin: float, folder: Path) -> str:
    from inference_doctor.quality import QualityThresholds, load_and_compare_directories

    for name, rates in (("baseline", baseline), ("candidate", candidate)):
        side = folder / name
        side.mkdir(exist_ok=True)
        for number, rate in enumerate(rates):
            (side / f"repetition-{number}.json").write_text(json.dumps(_result(rate)))
    report = load_and_compare_directories(
        folder / "baseline",
        folder / "candidate",
        metric="output_token_throughput",
        thresholds=QualityThresholds(regression_percent=100 * margin),
        format="normalized",
    )
    return str(report["result"])


def _result(rate: float) -> dict[str, Any]:
    return {
        "schema_version": "1",
        "environment": {"gpu": "none", "model": "made-up", "vllm_version": None, "image": None},
        "benchmark_parameters": {"prompt_tokens": 512, "generated_tokens": 128},
        "metrics": {"output_token_throughput": rate, "requests": {"successful": 1, "failed": 0}},
    }


def metria(baseline: list[float], candidate: list[float], margin: float, folder: Path) -> str:
    from metria.measurements import serving_schema
    from metria.models import MetricSummary
    from metria.policies import evaluate_policy, policy_from_data
    from metria.protocols import MeasurementResult
    from metria.study_execution import PairwiseAnalysisStatus, StudyPairAnalysis

    name = "output_tokens_per_second_ratio"
    definition = serving_schema.DEFINITIONS[name]
    summary = MetricSummary(definition, candidate[0] / baseline[0], aggregation="derived", coverage=1.0)
    evidence = {
        "schema": serving_schema.SCHEMA,
        "method": serving_schema.NAME,
        "method_version": serving_schema.VERSION,
    }
    analysis = StudyPairAnalysis(
        serving_schema.NAME,
        serving_schema.VERSION,
        PairwiseAnalysisStatus.COMPLETED,
        MeasurementResult(metrics={name: summary}, evidence=evidence),
    )
    policy = policy_from_data(
        {
            "schema": "metria.verification_policy.v1",
            "criteria": [{"target": f"serving.{name}", "version": serving_schema.VERSION, "min": 1 - margin}],
        }
    )
    return str(evaluate_policy(policy, [analysis], verification_status="VERIFIED").status.value)


PEERS: tuple[tuple[str, str, Judge], ...] = (
    ("inference-doctor 0.4.1", "2 blocks", inference_doctor),
    ("inference-doctor 0.4.1", "AAAACCCC", inference_doctor),
    ("metria 0.1.2, its policy", "AC", metria),
)
