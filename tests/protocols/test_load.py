from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protocols.errors import ProtocolError
from protocols.load import (
    LIBRARY,
    LoadedProtocol,
    find_protocol,
    find_request,
    library_names,
    library_protocol,
    load_protocol,
    parse_protocol,
)
from protocols.schema import Protocol, json_schema

GENERATION_LOSS = "  - id: generation-loss\n    kind: loss\n    workload: cold-512\n    metric: generation_rate\n"
ALPHA = '    alpha: "0.05"\n    after: [complete, tokens, work]\n'


def refusal(text: str) -> list[str]:
    """Return the lines of the refusal of a protocol text, without the file name."""
    with pytest.raises(ProtocolError) as caught:
        parse_protocol(text.encode(), LIBRARY / "p.yaml")
    prefix = f"{LIBRARY / 'p.yaml'}:"
    assert all(line.startswith(prefix) for line in caught.value.lines())
    return [line.removeprefix(prefix) for line in caught.value.lines()]


@pytest.mark.parametrize("name", library_names())
def test_every_bundled_protocol_loads_without_a_warning(name: str) -> None:
    loaded = load_protocol(library_protocol(name))
    assert loaded.protocol.id == name
    assert loaded.warnings == ()
    assert set(loaded.requests) == set(loaded.protocol.request_references())


def test_the_slow_control_states_its_fault_and_the_verdict_that_it_must_get() -> None:
    control = load_protocol(library_protocol("served-slow-control")).protocol
    engine = control.arms.candidate.engine
    assert engine.kind == "bundled"
    assert engine.faults == ("slow-decode=30",)
    assert control.expect == "FAIL"
    pair = load_protocol(library_protocol("served-pair")).protocol
    assert control.workloads == pair.workloads
    assert control.gates == pair.gates


def test_the_bundled_requests_hold_exactly_the_stated_number_of_token_ids(served_pair: LoadedProtocol) -> None:
    body = json.loads(served_pair.requests["requests/cold-512.json"])
    assert len(body["prompt"]) == 512
    assert all(type(token) is int and 0 <= token < 49152 for token in body["prompt"])
    del body["prompt"]
    assert body == {
        "n_predict": 128,
        "temperature": 0,
        "seed": 1,
        "ignore_eos": True,
        "cache_prompt": False,
        "return_tokens": True,
        "stream": True,
    }
    assert len(json.loads(served_pair.requests["requests/warmup-16.json"])["prompt"]) == 16


# Each case: what is replaced in the bundled served-pair.yaml, by what, and the refusal that must come out.
REFUSALS = json.loads((Path(__file__).parent / "golden" / "refusals.json").read_text())


@pytest.mark.parametrize("case", REFUSALS, ids=[f"{place}-{case['by'][:40]!r}" for place, case in enumerate(REFUSALS)])
def test_each_mistake_is_refused_with_file_line_key_and_what_to_write(
    served_pair_text: str, case: dict[str, Any]
) -> None:
    assert case["replace"] in served_pair_text
    assert refusal(served_pair_text.replace(case["replace"], case["by"])) == case["refusal"]


def test_every_problem_of_a_file_is_named_at_once(golden: Path) -> None:
    source = (golden / "many-problems.yaml").read_bytes()
    with pytest.raises(ProtocolError) as caught:
        parse_protocol(source, Path("many-problems.yaml"))
    expected = (golden / "many-problems.txt").read_text().splitlines()
    assert list(caught.value.lines()) == expected
    assert str(caught.value).startswith(f"many-problems.yaml has {len(expected)} problems; the first one is ")
    assert caught.value.exit_code == 2


def test_gates_that_wait_for_each_other_are_refused(served_pair_text: str) -> None:
    text = served_pair_text.replace(ALPHA, ALPHA.replace("work]", "work, generation-loss]"), 1)
    head, tail = text.split(GENERATION_LOSS)
    text = head + GENERATION_LOSS + tail.replace("work]", "work, prefill-loss]")
    assert refusal(text) == [
        "60: gates[4].after: found gates that wait for each other: generation-loss, prefill-loss; remove one of the names"
    ]


def test_a_missing_margin_reason_is_refused(served_pair_text: str) -> None:
    text = served_pair_text[: served_pair_text.index("margin_reason")]
    assert refusal(text) == [
        "3: margin_reason: the key is missing, and a loss gate needs it: how was its margin chosen?; add it"
    ]


def test_equal_arms_and_hidden_faults_are_warnings(edited: Callable[..., LoadedProtocol]) -> None:
    same = edited(("layout_salt: 2", "layout_salt: 1"))
    assert [problem.line().split(": ", 1)[1] for problem in same.warnings] == [
        "arms.candidate: the candidate is the same as the baseline: this compares an engine with itself (A/A)"
    ]
    faulty = edited(("layout_salt: 2, faults: []", "layout_salt: 2, faults: [slow-decode=30]"))
    assert [problem.hint for problem in faulty.warnings] == ["write expect: FAIL"]


def test_settings_of_one_arm_differ_only_where_it_says_so(edited: Callable[..., LoadedProtocol]) -> None:
    loaded = edited(("layout_salt: 2, faults: []}", "layout_salt: 2, faults: []}, settings: {threads: 1, mmap: false}"))
    baseline, candidate = loaded.protocol.settings_of("baseline"), loaded.protocol.settings_of("candidate")
    assert (candidate.threads, candidate.mmap) == (1, False)
    assert candidate.model_copy(update={"threads": 2, "mmap": True}) == baseline


def test_drafts_need_one_slot_and_an_engine_that_knows_them(
    served_pair_text: str, edited: Callable[..., LoadedProtocol]
) -> None:
    arm = "layout_salt: 2, faults: []}"
    loaded = edited((arm, "layout_salt: 2, path: general-only}, settings: {drafts: 3, ple_cache_mib: 8}"))
    settings = loaded.protocol.settings_of("candidate")
    assert (settings.drafts, settings.ple_cache_mib, settings.draft_kv_type) == (3, 8, "f16")
    assert loaded.protocol.arms.candidate.engine.path == "general-only"
    # What an older protocol does not name is not in its canonical form either.
    assert "drafts" not in edited().protocol.settings.model_dump()
    assert [
        line.partition("found ")[2]
        for line in refusal(served_pair_text.replace(arm, f"{arm}, settings: {{drafts: 3, slots: 2}}"))
    ] == ["3 drafts with 2 slots for the candidate, expected one slot; write slots: 1, or drafts: 0"]
    other = "{engine: {kind: llama-server, path: llama-server}, settings: {drafts: 3}"
    text = re.sub(r"candidate: \{engine: \{[^}]*\}", lambda _: "candidate: " + other, served_pair_text)
    assert "the candidate is a llama-server, which does not know this setting" in "".join(refusal(text))


def test_requests_beside_the_protocol_come_before_the_bundled_ones(tmp_path: Path, served_pair_text: str) -> None:
    bundled = find_request("requests/cold-512.json", tmp_path)
    assert bundled is not None
    own = tmp_path / "requests" / "cold-512.json"
    own.parent.mkdir()
    own.write_bytes(bundled.read_bytes().replace(b'"seed":1', b'"seed":2'))
    protocol = tmp_path / "own.yaml"
    protocol.write_text(served_pair_text)
    loaded = load_protocol(protocol)
    assert loaded.requests["requests/cold-512.json"] == own.read_bytes()
    assert loaded.source == protocol.read_bytes()


def test_a_name_or_a_path_finds_a_protocol_and_a_wrong_name_is_answered_with_the_nearest(tmp_path: Path) -> None:
    assert find_protocol("served-pair") == LIBRARY / "served-pair.yaml"
    file = tmp_path / "x.yaml"
    file.write_text("assay: 1\n")
    assert find_protocol(str(file)) == file
    with pytest.raises(ProtocolError) as caught:
        find_protocol("served-pear")
    assert caught.value.hint == "write served-pair"
    with pytest.raises(ProtocolError, match="does not exist"):
        find_protocol("./nowhere.yaml")
    with pytest.raises(ProtocolError, match="cannot be read"):
        load_protocol(tmp_path)


def test_a_name_that_no_file_can_have_is_a_file_that_is_not_there(edited: Callable[..., LoadedProtocol]) -> None:
    long = "x" * 300
    with pytest.raises(ProtocolError, match="neither beside the protocol nor among the bundled requests"):
        edited(("request: requests/cold-512.json", f"request: {long}"))
    with pytest.raises(ProtocolError, match="the protocol file does not exist"):
        find_protocol(f"./{long}.yaml")


def shuffled(value: Any, order: random.Random) -> Any:
    if isinstance(value, dict):
        keys = list(value)
        order.shuffle(keys)
        return {key: shuffled(value[key], order) for key in keys}
    return [shuffled(item, order) for item in value] if isinstance(value, list) else value


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32))
def test_the_order_of_keys_changes_no_hash(served_pair: LoadedProtocol, seed: int) -> None:
    plain = json.loads(served_pair.protocol.canonical())
    text = yaml.safe_dump(shuffled(plain, random.Random(seed)), sort_keys=False, allow_unicode=True)
    again = parse_protocol(text.encode(), LIBRARY / "shuffled.yaml")
    assert again.protocol.sha256() == served_pair.protocol.sha256()


def test_the_canonical_form_reads_back_as_the_same_protocol(served_pair: LoadedProtocol) -> None:
    again = Protocol.model_validate(json.loads(served_pair.protocol.canonical()))
    assert again == served_pair.protocol
    assert again.canonical() == served_pair.protocol.canonical()


def test_one_margin_has_one_hash_however_it_is_written(
    edited: Callable[..., LoadedProtocol], served_pair: LoadedProtocol
) -> None:
    for written in ("10", "10.0", '"10.00"'):
        assert edited(('margin_pct: "10"', f"margin_pct: {written}")).protocol.sha256() == served_pair.protocol.sha256()
    assert edited(('margin_pct: "10"', "margin_pct: 9.99")).protocol.sha256() != served_pair.protocol.sha256()


def test_a_changed_value_changes_the_hash(edited: Callable[..., LoadedProtocol], served_pair: LoadedProtocol) -> None:
    for change in (
        ("seed: 20261129", "seed: 20261130"),
        ("threads: 2", "threads: 1"),
        ('limit_pp: "3"', "limit_pp: 4"),
    ):
        assert edited(change).protocol.sha256() != served_pair.protocol.sha256()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_damaged_protocol_is_loaded_or_refused_but_never_crashes(served_pair_text: str, data: st.DataObject) -> None:
    source = bytearray(served_pair_text.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(source) - 1))
        source[place : place + data.draw(st.integers(0, 12))] = data.draw(st.binary(max_size=6))
    try:
        parse_protocol(bytes(source), LIBRARY / "damaged.yaml")
    except ProtocolError as error:
        lines = error.lines()
    else:
        lines = ("loaded",)
    assert lines


def test_the_json_schema_names_every_key_with_its_meaning() -> None:
    schema = json_schema()
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["additionalProperties"] is False
    assert set(schema["required"]) == {"assay", "id", "title", "claim", "purpose", "settings", "arms"} | {
        "schedule",
        "workloads",
        "gates",
    }
    parts = [schema, *schema["$defs"].values()]
    for part in parts:
        for key, value in part.get("properties", {}).items():
            assert value.get("description"), key
    json.dumps(schema)


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ('"-fa on"', 'write ["-fa", "on"]'),
        ('"--jinja"', 'write ["--jinja"]'),
        ("cold", "write [cold]"),
        ("7", "write [7]"),
        ("\"--alias 'my model'\"", 'write ["--alias", "my model"]'),
        ('"it\'s on"', 'write ["it\'s", "on"]'),
    ],
)
def test_a_text_in_place_of_a_list_is_written_as_the_items_that_it_means(
    served_pair_text: str, value: str, hint: str
) -> None:
    old = "candidate: {engine: {kind: bundled, layout_salt: "
    assert old in served_pair_text
    engine = "candidate: {engine: {kind: llama-server, path: /x, arguments: VALUE}} #".replace("VALUE", value)
    (line,) = (line for line in refusal(served_pair_text.replace(old, engine)) if "arguments" in line)
    assert line.endswith(f"expected a list; {hint}")
