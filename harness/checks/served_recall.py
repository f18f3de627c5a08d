"""Asks the conversations of a check for their codes over HTTP: at once, then a follow-up each, then the next round."""

from __future__ import annotations

from functools import partial

from engine.recall_prompts import CODE_TOKENS, RecallPrompt, follow_up, recall_prompt
from harness.arm_server import ArmServer, greedy_body
from harness.checks.context import CheckContext
from harness.checks.served import arm_server
from protocols.canonical import JsonValue
from protocols.checks.answers import read_answer
from protocols.checks.served_recall import ServedRecallCheck

SECRETS = 2
FOLLOW_UP_TOKENS = 40
ROOM_TOKENS = 64
"""Cells beside both prompts of a conversation and their codes."""


def run_served_recall(context: CheckContext, check: ServedRecallCheck) -> dict[str, JsonValue]:
    """Return the conversations with what their caches may hold, and every exchange as it came."""
    prompts = [
        recall_prompt(f"{check.id} {name}", distance_tokens=check.distance_tokens, secrets=SECRETS)
        for name in check.names()
    ]
    needed = max(len(prompt.ids) for prompt in prompts) + FOLLOW_UP_TOKENS + SECRETS * CODE_TOKENS + ROOM_TOKENS
    # In unified mode the stated context is that of all slots together.
    context_tokens = needed * check.slots if check.kv_mode == "unified" else needed
    changes = {"slots": check.slots, "context_tokens": context_tokens, "kv_mode": check.kv_mode}
    exchanges: list[JsonValue] = []
    conversations: list[JsonValue] = []
    held: list[tuple[int, ...]] = [()] * check.slots
    with arm_server(context, changes=changes) as server:
        for turn in range(check.rounds):
            names = check.names()[turn * check.slots : (turn + 1) * check.slots]
            own = prompts[turn * check.slots : (turn + 1) * check.slots]
            first = _ask(server, names, own, "first", turn)
            replies = [read_answer(one).tokens or () for one in first]
            nexts = [
                follow_up(prompt, tuple(reply[:CODE_TOKENS]), asked=1, filler_tokens=FOLLOW_UP_TOKENS)
                for prompt, reply in zip(own, replies, strict=True)
            ]
            second = _ask(server, names, nexts, "follow-up", turn + 1)
            exchanges += [*first, *second]
            for slot, (name, prompt, after) in enumerate(zip(names, own, nexts, strict=True)):
                most = _shared(held[slot], prompt.ids)
                codes: list[JsonValue] = [prompt.expected_text, after.expected_text]
                cached_first: list[JsonValue] = [0, most]
                # The whole earlier prompt; the last generated token was never evaluated.
                cached_next: list[JsonValue] = [len(prompt.ids), len(prompt.ids) + CODE_TOKENS]
                conversations.append(
                    {"name": name, "codes": codes, "cached_first": cached_first, "cached_follow_up": cached_next}
                )
                held[slot] = after.ids
    return {"conversations": conversations, "exchanges": exchanges}


def _ask(
    server: ArmServer, names: list[str], prompts: list[RecallPrompt], turn: str, odd: int
) -> list[dict[str, JsonValue]]:
    """Ask every conversation of a round at the same moment, in its own slot; every second answer is streamed."""
    return server.at_once(
        [
            partial(
                server.ask,
                f"{name} {turn}",
                greedy_body(prompt.ids, CODE_TOKENS, id_slot=slot, stream=(slot + odd) % 2 == 0),
            )
            for slot, (name, prompt) in enumerate(zip(names, prompts, strict=True))
        ]
    )


def _shared(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    """Return how many tokens two histories share from their start."""
    shared = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        shared += 1
    return shared
