"""Private codes in process: conversations in the sequences of one session, each asked for what it was told."""

from __future__ import annotations

from typing import Final

from engine.recall_prompts import CODE_TOKENS, KEY_TOKENS, follow_up, recall_prompt
from engine.worker import EngineWorker
from harness.checks.context import CheckContext
from protocols.canonical import JsonValue
from protocols.check_schema import RecallCheck

FOLLOW_UP_TOKENS: Final = 40


def run_recall(context: CheckContext, check: RecallCheck) -> dict[str, JsonValue]:
    """Ask every conversation for its first code, then in turns for the others; return all replies."""
    prompts = [
        recall_prompt(f"{check.id} {number}", distance_tokens=check.distance_tokens, secrets=check.secrets)
        for number in range(check.conversations)
    ]
    turn_tokens = FOLLOW_UP_TOKENS + KEY_TOKENS + CODE_TOKENS
    longest = max(len(prompt.ids) for prompt in prompts) + CODE_TOKENS + check.secrets * turn_tokens
    evaluated = [0] * check.conversations
    replies: list[JsonValue] = []
    with context.worker() as worker:
        context.open_session(worker, check, sequences=check.conversations, tokens=longest, mode=check.kv_mode)
        for asked in range(check.secrets):
            for number, prompt in enumerate(prompts):
                reply = greedy_reply(worker, list(prompt.ids[evaluated[number] :]), evaluated[number], number)
                evaluated[number] = len(prompt.ids) + CODE_TOKENS - 1
                expected: list[JsonValue] = [*prompt.expected_ids]
                found: list[JsonValue] = [*reply]
                replies.append({"conversation": number, "asked": asked, "expected": expected, "found": found})
                if asked + 1 < check.secrets:
                    prompts[number] = follow_up(prompt, tuple(reply), asked=asked + 1, filler_tokens=FOLLOW_UP_TOKENS)
    return {"replies": replies}


def greedy_reply(
    worker: EngineWorker, tokens: list[int], start: int, sequence: int, *, length: int = CODE_TOKENS
) -> list[int]:
    """Evaluate tokens and go on greedily for as many tokens as a code has."""
    reply: list[int] = []
    for _ in range(length):
        row = worker.decode(tokens, start=start, sequence=sequence, rows="last")[0]
        start += len(tokens)
        tokens = [int(row.argmax())]
        reply += tokens
    return reply
