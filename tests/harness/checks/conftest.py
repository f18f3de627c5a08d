"""Checks carried out on real builds and small models, without a campaign around them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from qwen_faulty import built

from engine.build import EngineBuild
from engine.models import make_model
from harness.checks import carry_out
from harness.preparation import Prepared, prepare
from protocols.check_rules import judge_check
from protocols.checks.base import CheckOutcome
from protocols.load import load_protocol

TINY = Path(__file__).parents[2] / "engine" / "models" / "tiny-a.gguf"
PROTOCOL = """assay: 1
id: one-check
title: One check
claim: screen
purpose: To see one check at work.
model: {{path: '{model}'}}
settings: {{context_tokens: {context}, threads: 1}}
arms:
  baseline: {{engine: {{kind: folder, path: '{baseline}'}}, environment: {{GOMP_SPINCOUNT: "0"}}}}
  candidate: {{engine: {candidate}, environment: {{GOMP_SPINCOUNT: "0"{more}}}}}
schedule: {{kind: explicit, order: [A1, C1], burn_in: false}}
workloads:
  - {{id: cold, route: /completion, request: cold.json, prompt_tokens: 32, generated_tokens: 24}}
checks:
  - {check}
limits: {{load_s: 20, request_s: 60, idle_s: 60, campaign_min: 5}}
gates:
  - {{id: complete, kind: completeness}}
  - {{id: baseline, kind: check, check: c, arm: baseline, required: false}}
  - {{id: candidate, kind: check, check: c, required: false}}
"""


@pytest.fixture(scope="session")
def recall_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the model that answers from its prompt."""
    return make_model("qwen4exp-recall", cache=tmp_path_factory.mktemp("recall-cache"))


@pytest.fixture
def prepared(world: Any) -> Callable[..., Prepared]:
    """Prepare a protocol with one check `c`; the baseline is sound, the candidate may have faults or be another engine."""

    def make(
        check: str,
        *,
        model: Path = TINY,
        faulty: EngineBuild | None = None,
        candidate: str = "",
        context: int = 256,
        environment: str = "",
    ) -> Prepared:
        sound = built("tests")
        engine = candidate or f"{{kind: folder, path: '{(faulty or sound).folder}'}}"
        text = PROTOCOL.format(
            model=model,
            baseline=sound.folder,
            candidate=engine,
            check=f"{{id: c, {check}}}",
            context=context,
            more=f", {environment}" if environment else "",
        )
        path = world.root / "one-check.yaml"
        path.write_text(text)
        return prepare(load_protocol(path), base=world.root, cache=world.root / "cache", log=lambda _: None)

    return make


@pytest.fixture
def outcome() -> Callable[..., CheckOutcome]:
    """Carry the check out for an arm and judge what it left."""

    def find(prepared: Prepared, arm: Any = "candidate") -> CheckOutcome:
        (check,) = prepared.protocol.checks
        observation, blocks = carry_out(prepared, check, arm)
        return judge_check(check, replace(observation, read_block=lambda name: blocks[name]))

    return find
