"""Runs a campaign: lock, preflight, loads in schedule order, gates, verdict, report. Resuming takes the same way.

A load that does not end as COMPLETE stops the campaign: its block cannot be completed now, and an engine that broke
once is not worth an hour of loads. What was recorded stays, the gates are reported as they stand, and no verdict is
recorded: `assay resume` tries that position again.
"""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from engine.cache import cache_folder
from engine.gguf_header import load_header
from harness.api_key import secret_values
from harness.calibrations import with_calibrations
from harness.checks import carry_out, wanted_checks
from harness.exits import EXIT_EXECUTION, EXIT_INTERRUPTED
from harness.host_guard import HostGuard, hold_host
from harness.judging import record_judgement, record_report, wanted_blocks
from harness.load import INTERRUPTED, MAPPED_AT_START, LoadContext, run_load
from harness.looks_budget import LooksBudget
from harness.made_up_gpu import MadeUpGpu
from harness.preflight import Need, check_disk, disk_need_bytes, inspect_host, refuse_or_warn
from harness.preparation import Prepared, lock_differences, prepare
from harness.profilers.diagnostics import RECEIPT, run_diagnostics
from harness.progress import Progress
from harness.signals import term_as_interrupt, uninterrupted
from protocols.check_rules import block_rows
from protocols.errors import HostError
from protocols.load import LoadedProtocol, load_protocol, parse_protocol
from protocols.looks import look_blocks
from protocols.measurements import ARMS
from protocols.results import in_short
from protocols.schedule import Position
from recorder.campaign import CampaignRecorder
from recorder.store import Store
from reports.facts import Facts

NS_PER_S: Final = 1_000_000_000
BYTES_OF_LOGIT: Final = 4


@dataclass(frozen=True, kw_only=True)
class CampaignEnd:
    """How a campaign ended for now. `facts` are those of its report; `exit_code` is that of the command."""

    campaign_id: str
    facts: Facts
    exit_code: int
    stopped_by: str | None
    """Why loads are missing, or None where all positions are complete."""


def run_campaign(path: Path, store_root: Path, *, progress: Progress) -> CampaignEnd:
    """Run the protocol in a file from its first load to its report.

    Raises ProtocolError, EngineError or HostError where nothing could be started.
    """
    loaded = load_protocol(path)
    for warning in loaded.warnings:
        progress.warn(warning.line())
    return run_loaded(loaded, path.absolute().parent, store_root, progress=progress)


def run_loaded(
    loaded: LoadedProtocol, base: Path, store_root: Path, *, progress: Progress, gpu: MadeUpGpu | None = None
) -> CampaignEnd:
    """Run a protocol that was read already; `base` is the folder that its relative paths start at.

    `gpu` is a made-up one for controls of the telemetry.
    """
    with hold_host(store_root.absolute()) as guard, term_as_interrupt():
        _warn_of_stale_holder(guard, progress)
        prepared = prepare(loaded, base=base, cache=cache_folder(), log=progress.say)
        prepared = with_calibrations(prepared, store_root)
        with Store.open(store_root, create=True, secrets=secret_values()) as store:
            findings = inspect_host(need_of(prepared), store_root)
            for text in refuse_or_warn(findings):
                progress.warn(text)
            recorder = store.begin_campaign(
                lock=prepared.lock.lock_bytes(),
                protocol=loaded.source,
                requests=loaded.requests,
                texts=prepared.texts,
            )
            guard.name_campaign(recorder.campaign_id)
            recorder.record_preflight([finding.payload() for finding in findings])
            return _Campaign(store, recorder, prepared, progress, gpu).go_on()


def resume_campaign(name: str, store_root: Path, *, progress: Progress) -> CampaignEnd:
    """Seal what a killed runner left, check that everything is as locked, and run what is missing.

    Raises HostError with every difference where the lock no longer holds; nothing is run then.
    """
    with hold_host(store_root.absolute()) as guard, term_as_interrupt():
        _warn_of_stale_holder(guard, progress)
        with Store.open(store_root, secrets=secret_values()) as store:
            campaign_id = store.resolve_campaign(name)
            prepared = _prepare_again(store, campaign_id, progress)
            differences = lock_differences(store.lock_of(campaign_id), prepared.lock)
            if differences:
                raise HostError(
                    "the campaign cannot go on, because something is not as it was locked:\n  "
                    + "\n  ".join(differences),
                    where=f"campaign {campaign_id}",
                    hint="restore it, or start a new campaign with `assay run`; what was recorded stays",
                )
            recorder = store.resume_campaign(campaign_id)
            guard.name_campaign(campaign_id)
            for load_id in recorder.seal_abandoned():
                progress.say(f"sealed what was left of {load_id} as PARTIAL")
            findings = inspect_host(need_of(prepared), store_root)
            recorder.record_preflight([finding.payload() for finding in findings])
            for text in refuse_or_warn(findings):
                progress.warn(text)
            return _Campaign(store, recorder, prepared, progress).go_on()


def _warn_of_stale_holder(guard: HostGuard, progress: Progress) -> None:
    stale = guard.stale_holder
    if stale is not None:
        campaign = stale.campaign or "a campaign that was just starting"
        progress.warn(f"process {stale.pid} held this host for {campaign} and died; `assay resume` can complete it")


def _prepare_again(store: Store, campaign_id: str, progress: Progress) -> Prepared:
    """Prepare a campaign from its own record: the locked protocol and requests, at the folder it was started from."""
    texts = store.texts_of(campaign_id)
    paths = json.loads(texts["paths"])
    with tempfile.TemporaryDirectory(prefix="assay-resume-") as folder:
        copy = Path(folder) / "protocol.yaml"
        for reference, body in store.requests_of(campaign_id).items():
            file = Path(folder) / reference
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(body)
        parsed = parse_protocol(store.protocol_of(campaign_id), copy)
    loaded = LoadedProtocol(
        protocol=parsed.protocol, source=parsed.source, path=Path(paths["protocol"]), requests=parsed.requests
    )
    prepared = prepare(loaded, base=Path(paths["folder"]), cache=cache_folder(), log=progress.say)
    calibrations = store.lock_of(campaign_id).calibrations  # those of the lock, whatever was calibrated since
    return replace(prepared, lock=prepared.lock.model_copy(update={"calibrations": calibrations}))


def _known_system_files(store: Store, campaign_id: str) -> dict[str, str]:
    """Return path and hash of each file outside the lock that earlier loads of a campaign mapped."""
    lock = store.lock_of(campaign_id)
    locked = {file.name for arm in lock.arms.values() for file in arm.files}
    known: dict[str, str] = {}
    for entry in store.entries():
        if entry.kind != "load.sealed" or entry.payload.get("campaign") != campaign_id:
            continue
        for blob in entry.blobs():
            if blob["name"] == f"attachment/{MAPPED_AT_START}":
                for file in json.loads(store.blobs.read(str(blob["sha256"]))):
                    if Path(file["name"]).name not in locked:
                        known.setdefault(file["name"], file["sha256"])
    return known


def need_of(prepared: Prepared) -> Need:
    """Return what a prepared campaign will ask of the host."""
    return Need(
        threads=max(prepared.protocol.settings_of(arm).threads for arm in ARMS),
        model_bytes=prepared.lock.model.model.bytes if prepared.lock.model else 0,
        load_disk_bytes=_load_disk_bytes(prepared),
        check_disk_bytes=_check_disk_bytes(prepared),
    )


def _check_disk_bytes(prepared: Prepared) -> int:
    """Return the bytes of logits that the wanted checks leave in blobs."""
    rows = sum(block_rows(check) for check, _ in wanted_checks(prepared))
    if not rows:
        return 0
    tokens = load_header(prepared.model_path).metadata.get("tokenizer.ggml.tokens", ())
    return rows * BYTES_OF_LOGIT * (len(tokens) if isinstance(tokens, tuple) else 0)


def _load_disk_bytes(prepared: Prepared) -> int:
    protocol = prepared.protocol
    requests = [(w.request, w.generated_tokens, w.repeats) for w in protocol.workloads]
    warmups = [(w.warmup.request, w.generated_tokens, w.warmup.repeats) for w in protocol.workloads if w.warmup]
    every = requests + warmups
    return disk_need_bytes(
        generated_tokens=sum(tokens * repeats for _, tokens, repeats in every),
        request_bytes=sum(len(prepared.loaded.requests[reference]) * repeats for reference, _, repeats in every),
        load_s=sum(repeats for *_, repeats in every) * protocol.limits.request_s,
        sample_period_ms=protocol.telemetry.period_ms,
    )


class _Campaign:
    """The loads that are missing, and what follows them."""

    def __init__(
        self,
        store: Store,
        recorder: CampaignRecorder,
        prepared: Prepared,
        progress: Progress,
        gpu: MadeUpGpu | None = None,
    ) -> None:
        self._gpu = gpu
        self._store = store
        self._recorder = recorder
        self._prepared = prepared
        self._progress = progress

    def go_on(self) -> CampaignEnd:
        """Run what is missing, then judge and report."""
        try:
            stopped_by = self._run_missing()
            if stopped_by is None:
                self._look()
        except KeyboardInterrupt:
            return self._interrupted()
        finally:
            self._progress.end()
        if stopped_by is not None:
            return self._stopped(stopped_by, EXIT_EXECUTION)
        with uninterrupted():
            judgement = record_judgement(self._store, self._recorder, self._prepared.protocol)
            facts = record_report(self._store, self._recorder)
        return CampaignEnd(
            campaign_id=self._recorder.campaign_id,
            facts=facts,
            exit_code=judgement.verdict.exit_code,
            stopped_by=None,
        )

    def _look(self) -> None:
        """Run the diagnostics of the protocol, once in a campaign: the timing is over, and they change no verdict."""
        campaign = self._recorder.campaign_id
        is_done = any(
            entry.kind == "receipt.recorded"
            and entry.payload.get("campaign") == campaign
            and entry.text("receipt").startswith(f"{RECEIPT}.")
            for entry in self._store.entries()
        )
        if self._prepared.protocol.diagnostics and not is_done:
            closed_ns = time.monotonic_ns()
            run_diagnostics(self._prepared, self._recorder, self._progress, timing_closed_at_ns=closed_ns)

    def _interrupted(self) -> CampaignEnd:
        with uninterrupted():
            self._recorder.seal_abandoned()  # a load that was opened, and not begun
            return self._stopped(INTERRUPTED, EXIT_INTERRUPTED)

    def _stopped(self, reason: str, exit_code: int) -> CampaignEnd:
        """Record why loads are missing, and report the campaign as it stands, without a verdict."""
        self._recorder.record_interruption(reason)
        facts = record_report(self._store, self._recorder)
        return CampaignEnd(campaign_id=self._recorder.campaign_id, facts=facts, exit_code=exit_code, stopped_by=reason)

    def _run_missing(self) -> str | None:
        """Run every position that has no COMPLETE load; return why it stopped early, or None."""
        positions, done = self._prepared.positions, self._recorder.completed_positions()
        limit_s = self._prepared.protocol.limits.campaign_min * 60
        context = LoadContext(
            prepared=self._prepared,
            progress=self._progress,
            system_files=_known_system_files(self._store, self._recorder.campaign_id),
            deadline_s=time.monotonic() + limit_s,
            gpu=self._gpu,
        )
        self._progress.begin(campaign_id=self._recorder.campaign_id, n_positions=len(positions), n_done=len(done))
        self._run_checks()
        looks = look_blocks(self._prepared.protocol.schedule)
        budget = LooksBudget(limits=self._prepared.protocol.limits)
        if len(looks) > 1:
            self._progress.say(f"judged after {', '.join(map(str, looks))} blocks: the first look that decides ends it")
        wanted: int | None = 0
        for position in positions:
            if position.index in done:
                continue
            if looks and wanted is not None and (position.block or 0) > wanted:
                wanted = wanted_blocks(self._store, self._recorder.campaign_id, self._prepared.protocol)
                if wanted is not None and wanted > looks[0]:
                    places = (place for place in positions if place.index >= position.index and place.index not in done)
                    no_time = budget.refusal(sum((place.block or 0) <= wanted for place in places))
                    if no_time is not None:
                        self._progress.say(f"not decided yet, and {no_time}")
                        return None
            if wanted is None:
                self._progress.say("decided at a look: the blocks that are left are not needed")
                return None
            reason = self._refusal(context)
            if reason is None:
                reason = budget.timed(partial(self._run_one, context, position))
            if reason is not None:
                return reason
        return None

    def _run_checks(self) -> None:
        """Carry out every check that is not recorded. Whatever it finds, the loads follow: the gates judge."""
        done = self._recorder.recorded_checks()
        missing = [one for one in wanted_checks(self._prepared) if (one[0].id, one[1]) not in done]
        for number, (check, arm) in enumerate(missing, 1):
            self._progress.say(f"check {number} of {len(missing)}: {check.id} ({check.kind}), {arm}")
            observation, blocks = carry_out(self._prepared, check, arm)
            with uninterrupted():
                self._recorder.record_check(observation, blocks)
            if observation.state != "COMPLETE":
                self._progress.warn(f"check {check.id} of the {arm} is {observation.state}: {observation.reason}")

    def _refusal(self, context: LoadContext) -> str | None:
        """Say why the next load must not start, or None."""
        if time.monotonic() >= context.deadline_s:
            return f"the campaign's time of {self._prepared.protocol.limits.campaign_min} minutes is over"
        most = self._prepared.protocol.limits.loads
        if most is not None and self._recorder.started_loads() >= most:
            return f"the campaign's {most} loads are used up"
        disk = check_disk(self._store.root, _load_disk_bytes(self._prepared))
        if disk.effect == "refuse":
            return f"{disk.message}: found {disk.found}, needs {disk.expected}"
        return None

    def _run_one(self, context: LoadContext, position: Position) -> str | None:
        self._progress.position(number=position.index + 1, label=position.label, arm=position.arm)
        with uninterrupted():
            load = self._recorder.open_load(position)
        try:
            end = run_load(context, position, load)
        except KeyboardInterrupt:
            self._progress.load_done(state="PARTIAL", reason=INTERRUPTED)
            raise
        self._progress.load_done(state=end.state, reason=end.reason)
        if end.state == "COMPLETE":
            return None
        return f"load {position.label} is {end.state}: {in_short(end.reason or '')}"
