"""A second evaluator of qwen4exp, in NumPy: text only, several sequences in one shared cache, fast at depth.

Written from the specification, independent of the engine and of the program that makes the weights. A row of the last
trunk layer that nobody asks for is not computed, which changes no other row: a prompt of 13,062 tokens takes seconds.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np


def sigmoid(v):
    return 1.0 / (1.0 + np.exp(-np.clip(v, -80, 80)))


def silu(v):
    return v * sigmoid(v)


@dataclass
class Sequence:
    """What belongs to one conversation: its cells in order, its ids, and the states of the recurrent layers."""

    cells: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    states: dict[Any, np.ndarray] = field(default_factory=dict)
    draft: list[int] = field(default_factory=list)  # cells of the draft's own cache


@dataclass
class Rows:
    """Growing arrays, one row a cell: position, key, value, raw index key."""

    used: int = 0
    arrays: dict[str, np.ndarray] = field(default_factory=dict)

    def append(self, **rows: np.ndarray) -> list[int]:
        count = len(next(iter(rows.values())))
        for name, values in rows.items():
            held = self.arrays.get(name, np.zeros((64, *values.shape[1:]), values.dtype))
            while len(held) < self.used + count:
                held = np.concatenate([held, np.zeros_like(held)])
            held[self.used : self.used + count] = values
            self.arrays[name] = held
        self.used += count
        return list(range(self.used - count, self.used))


class Reference:
    """One model and one unified cache. `policy` is "rank", or "position-only": the defect of blocks without an owner."""

    def __init__(self, path: Path, *, policy: str = "rank") -> None:
        reader = gguf.GGUFReader(str(path))
        self.weights = {
            t.name: np.asarray(t.data, np.float32).reshape([int(d) for d in reversed(t.shape)]) for t in reader.tensors
        }
        prefix = "qwen4exp."
        self.meta = {
            name[len(prefix) :]: one.contents() for name, one in reader.fields.items() if name.startswith(prefix)
        }
        self.policy = policy
        self.trunk = self.meta["block_count"] - self.meta.get("nextn_predict_layers", 0)
        self.streams = self.meta["hyper_connection.count"]
        self.eps = np.float32(self.meta["attention.layer_norm_rms_epsilon"])
        self.ratio = max(self.meta["attention.compress_ratios"])
        self.rotated = self.meta["rope.dimension_count"]
        pairs = np.arange(self.rotated // 2)
        self.frequency = (1.0 / self.meta["rope.freq_base"] ** (2.0 * pairs / self.rotated)).astype(np.float32)
        self.clear()

    def clear(self) -> None:
        """Forget every conversation."""
        self.caches: dict[int, Rows] = {}
        self.sequences: dict[int, Sequence] = {}
        self.margin = np.inf

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Try something, and forget it: afterwards conversations and caches are what they were."""
        sequences, used = copy.deepcopy(self.sequences), {layer: rows.used for layer, rows in self.caches.items()}
        yield
        self.sequences = sequences
        for layer, rows in self.caches.items():
            rows.used = used.get(layer, 0)

    def conversation(self, name: int) -> Sequence:
        return self.sequences.setdefault(name, Sequence())

    def rms(self, v, name=None):
        out = v / np.sqrt(np.mean(v * v, axis=-1, keepdims=True) + self.eps)
        return out if name is None else out * self.weights[name].reshape(*([1] * (v.ndim - 2)), -1, v.shape[-1])

    def rope(self, v, positions):
        """Rotate [rows, heads, size]: text, so that all three axes are the position."""
        angle = (np.asarray(positions, np.float32)[:, None] * self.frequency)[:, None]
        cos, sin, m = np.cos(angle), np.sin(angle), self.rotated // 2
        a, b = v[..., :m], v[..., m : 2 * m]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin, v[..., 2 * m :]], axis=-1)

    def mix(self, residual, name, *, inject=True):
        x = self.rms(residual, f"{name}_norm.weight")
        flat = x.reshape(len(x), -1)
        low = silu(flat @ self.weights[f"{name}_down.weight"].T / self.streams)
        gate = sigmoid(low @ self.weights[f"{name}_up.weight"].T).reshape(x.shape)
        mixed = (x * gate).mean(axis=1)
        if not inject:
            return mixed, None
        return mixed, 2.0 * sigmoid(flat @ self.weights[f"{name}_inject.weight"].T / self.streams)

    def experts(self, x, b):
        w, chosen = self.weights, self.meta["expert_used_count"]
        logits = x @ w[f"{b}ffn_gate_inp.weight"].T
        p = np.exp(logits - logits.max(axis=-1, keepdims=True))
        p /= p.sum(axis=-1, keepdims=True)
        top = np.argsort(-p, axis=-1, kind="stable")[:, :chosen]
        total = np.take_along_axis(p, top, -1).sum(axis=-1)
        shared = silu(x @ w[f"{b}ffn_gate_shexp.weight"].T) * (x @ w[f"{b}ffn_up_shexp.weight"].T)
        y = sigmoid(x @ w[f"{b}ffn_gate_inp_shexp.weight"].reshape(-1))[:, None] * (
            shared @ w[f"{b}ffn_down_shexp.weight"].T
        )
        for e in range(self.meta["expert_count"]):
            rows = np.nonzero((top == e).any(axis=-1))[0]
            hidden = silu(x[rows] @ w[f"{b}ffn_gate_exps.weight"][e].T) * (x[rows] @ w[f"{b}ffn_up_exps.weight"][e].T)
            y[rows] += (p[rows, e] / total[rows])[:, None] * (hidden @ w[f"{b}ffn_down_exps.weight"][e].T)
        return y

    def delta_net(self, x, seq, layer):
        w, b = self.weights, f"blk.{layer}."
        d, kh, vh = (self.meta[f"ssm.{k}"] for k in ("state_size", "group_count", "time_step_rank"))
        taps = w[f"{b}ssm_conv1d.weight"]
        history = seq.states.get(("conv", layer), np.zeros((taps.shape[1] - 1, taps.shape[0]), np.float32))
        window = np.concatenate([history, x @ w[f"{b}attn_qkv.weight"].T])
        seq.states["conv", layer] = window[len(x) :]
        y = silu(sum(window[j : j + len(x)] * taps[:, j] for j in range(taps.shape[1])))
        q, k, v = np.split(y, [kh * d, 2 * kh * d], axis=1)
        q, k, v = q.reshape(-1, kh, d), k.reshape(-1, kh, d), v.reshape(-1, vh, d)
        unit = lambda a: a / np.sqrt((a * a).sum(axis=-1, keepdims=True) + self.eps)  # noqa: E731
        head = np.arange(vh) % kh
        q, k = unit(q)[:, head] / np.sqrt(np.float32(d)), unit(k)[:, head]
        beta = sigmoid(x @ w[f"{b}ssm_beta.weight"].T)
        rate = x @ w[f"{b}ssm_alpha.weight"].T + w[f"{b}ssm_dt.bias"]
        keep = np.exp(np.where(rate > 20, rate, np.log1p(np.exp(np.minimum(rate, 20)))) * w[f"{b}ssm_a"])
        state = seq.states.get(("delta", layer), np.zeros((vh, d, d), np.float32)).copy()
        out = np.zeros((len(x), vh, 1, d), np.float32)
        for i in range(len(x)):
            state *= keep[i, :, None, None]
            row = k[i, :, None, :]
            state += k[i, :, :, None] * (beta[i, :, None, None] * (v[i, :, None, :] - row @ state))
            out[i] = q[i, :, None, :] @ state
        seq.states["delta", layer] = state
        o = self.rms(out[:, :, 0]) * w[f"{b}ssm_norm.weight"]
        o = o.reshape(len(x), -1) * sigmoid(x @ w[f"{b}attn_gate.weight"].T)
        return o @ w[f"{b}ssm_out.weight"].T

    def blocks(self, cells, positions, position):
        """Return the members of the competing blocks, their positions, and the cells that are always kept."""
        r = self.ratio
        if self.policy == "rank":
            whole = len(cells) // r * r
            return cells[:whole].reshape(-1, r), positions[cells[:whole:r]], cells[whole:]
        last = np.full(int(positions.max()) + 1, -1)
        last[positions] = np.arange(len(positions))  # whoever wrote last, of whatever conversation
        start = (position + 1) // r * r
        members = last[:start].reshape(-1, r)
        full = (members >= 0).all(axis=1)
        tail = np.nonzero((positions >= start) & (positions <= position))[0]
        return members[full], np.arange(0, start, r)[full], tail

    def attention(self, x, cells, positions, layer, needed):
        """Store the rows of x at `cells`, and return the outputs of the rows `needed`; `cells` ends with those of x."""
        w, b, m = self.weights, f"blk.{layer}.", self.meta
        n, heads, kv, hd = len(x), m["attention.head_count"], m["attention.head_count_kv"], m["attention.key_length"]
        di, ih = m["attention.indexer.key_length"], m["attention.indexer.head_count"]
        key = self.rms((x @ w[f"{b}attn_k.weight"].T).reshape(n, kv, hd), f"{b}attn_k_norm.weight")
        cache = self.caches.setdefault(layer, Rows())
        cells += cache.append(
            position=np.asarray(positions),
            key=self.rope(key, positions),
            value=(x @ w[f"{b}attn_v.weight"].T).reshape(n, kv, hd),
            index=x @ w[f"{b}indexer.k_proj.weight"].T,
        )
        held = {name: values[: cache.used] for name, values in cache.arrays.items()}
        own = np.asarray(cells)
        x, at = x[needed], np.asarray(positions)[needed]
        both = (x @ w[f"{b}attn_q.weight"].T).reshape(len(x), heads, 2, hd)
        query = self.rope(self.rms(both[:, :, 0], f"{b}attn_q_norm.weight"), at)
        asks = (x @ w[f"{b}indexer.q_proj.weight"].T).reshape(len(x), ih, di)
        asks = self.rope(self.rms(asks, f"{b}indexer.q_norm.weight"), at)
        out = np.zeros((len(x), heads, hd), np.float32)
        for i, row in enumerate(needed):
            visible = own[: len(own) - n + row + 1]
            members, starts, kept = self.blocks(visible, held["position"], int(at[i]))
            if len(members):
                pooled = self.rms(held["index"][members].mean(axis=1)[:, None], f"{b}indexer.k_norm.weight")
                scores = np.maximum(self.rope(pooled, starts)[:, 0] @ asks[i].T, 0).sum(axis=1)
                best = np.argsort(-scores, kind="stable")[: m["attention.indexer.top_k"] // self.ratio]
                kept = np.concatenate([members[np.sort(best)].reshape(-1), kept])
            kept = kept[np.isin(kept, visible)]
            kept = kept if len(kept) else visible[-1:]  # the defect may select foreign cells only
            for h in range(heads):
                s = held["key"][kept, h * kv // heads] @ query[i, h] / np.sqrt(np.float32(hd))
                p = np.exp(s - s.max())
                out[i, h] = (p / p.sum()) @ held["value"][kept, h * kv // heads]
        out = out * sigmoid(both[:, :, 1])
        return out.reshape(len(x), heads * hd) @ w[f"{b}attn_output.weight"].T

    def ngrams(self, residual, seq, ids, layer):
        w, b, m = self.weights, f"blk.{layer}.", self.meta
        size, end, dilation = m["ple.ngram_size"], m["ple.eos_token_id"], m["ple.ngram_size"]
        tokens = np.asarray([*[end] * (size - 1), *seq.ids, *ids])[-(len(ids) + size - 1) :].astype(np.uint64)
        history = [tokens[size - 1 - s : len(tokens) - s].copy() for s in range(size)]
        cut = np.zeros(len(ids), bool)
        for s in range(1, size):
            cut |= history[s] == end
            history[s][cut] = end
        columns, mixed = [], history[0] * np.uint64(m["ple.layer_multipliers"][0])
        for g in range(1, size):
            mixed = mixed ^ (history[g] * np.uint64(m["ple.layer_multipliers"][g]))
            columns += [
                mixed % np.uint64(m["ple.head_vocab_sizes"][j]) + np.uint64(m["ple.head_offsets"][j])
                for j in range((g - 1) * m["ple.heads_per_ngram"], g * m["ple.heads_per_ngram"])
            ]
        e = w["per_layer_token_embd.weight"][np.stack(columns, axis=1)].reshape(len(ids), -1)
        key = self.rms((e @ w[f"{b}ple_key.weight"].T).reshape(residual.shape), f"{b}ple_norm_key.weight")
        dots = (key * self.rms(residual, f"{b}ple_norm_query.weight")).sum(axis=-1) / np.sqrt(
            np.float32(residual.shape[-1])
        )
        dots = np.sign(dots) * np.sqrt(np.maximum(np.abs(dots), 1e-6))
        gated = sigmoid(dots)[:, :, None] * (e @ w[f"{b}ple_value.weight"].T)[:, None]
        u = self.rms(gated, f"{b}ple_norm_conv.weight").reshape(len(ids), -1)
        taps = w[f"{b}ple_conv1d.weight"]
        reach = (taps.shape[1] - 1) * dilation
        window = np.concatenate([seq.states.get("ple", np.zeros((reach, u.shape[1]), np.float32)), u])
        seq.states["ple"] = window[len(u) :]
        conv = sum(window[j * dilation : j * dilation + len(u)] * taps[:, j] for j in range(taps.shape[1]))
        return residual + gated + silu(conv).reshape(residual.shape)

    def decode(self, ids, *, sequence=0, rows=None, chunk=512):
        """Append `ids` to a conversation; return the residual of the rows asked for (default: the last)."""
        seq = self.conversation(sequence)
        wanted = [len(ids) - 1] if rows is None else list(rows)
        results = []
        for first in range(0, len(ids), chunk):
            part = list(ids[first : first + chunk])
            needed = [i - first for i in wanted if first <= i < first + chunk]
            results.append(self._chunk(seq, part, needed))
        return np.concatenate(results)

    def _chunk(self, seq, ids, needed):
        residual = np.repeat(self.weights["token_embd.weight"][ids][:, None], self.streams, axis=1)
        positions = list(range(len(seq.ids), len(seq.ids) + len(ids)))
        for layer in range(self.trunk):
            if layer in self.meta.get("ple.layers", []):
                residual = self.ngrams(residual, seq, ids, layer)
            if self.meta["attention.recurrent_layers"][layer]:
                mixed, scatter = self.mix(residual, f"blk.{layer}.hc_attn")
                residual = residual + scatter[:, :, None] * self.delta_net(mixed, seq, layer)[:, None]
                residual = self._expert_step(residual, layer)
            else:
                rows = needed if layer == self.trunk - 1 else list(range(len(ids)))
                cells = seq.states.setdefault(("cells", layer), [])
                residual = self._attention_step(residual, cells, positions, layer, rows)
        seq.ids += ids
        return residual

    def _attention_step(self, residual, cells, positions, layer, rows):
        mixed, scatter = self.mix(residual, f"blk.{layer}.hc_attn")
        out = self.attention(mixed, cells, positions, layer, rows)
        if not rows:
            return residual[:0]
        return self._expert_step(residual[rows] + scatter[rows][:, :, None] * out[:, None], layer)

    def _expert_step(self, residual, layer):
        mixed, scatter = self.mix(residual, f"blk.{layer}.hc_ffn")
        return residual + scatter[:, :, None] * self.experts(mixed, f"blk.{layer}.")[:, None]

    def logits(self, residual, head="output_hc"):
        """Return the logits of residual rows over the full vocabulary."""
        mixed, _ = self.mix(residual, head, inject=False)
        return mixed @ self.weights["output.weight"].T

    def _choose(self, residual):
        """Return the greedy token after a residual row, and remember the smallest lead over the second."""
        logits = self.logits(residual[-1:])[0]
        second, first = np.partition(logits, -2)[-2:]
        self.margin = min(self.margin, float(first - second))
        return int(logits.argmax())

    def reply(self, ids, count, *, sequence=0):
        """Return `count` greedy tokens after `ids`; the last one is not decoded."""
        tokens = [self._choose(self.decode(ids, sequence=sequence))]
        while len(tokens) < count:
            tokens.append(self._choose(self.decode(tokens[-1:], sequence=sequence)))
        return tokens

    def draft_step(self, seq, ids, first, hidden):
        """Return the draft block's residual of ids at positions first, ..., each with the residual of the one before."""
        layer = self.trunk
        b = f"blk.{layer}.nextn."
        e = self.rms(self.weights["token_embd.weight"][ids], f"{b}enorm.weight")
        h = self.rms(hidden, f"{b}hnorm.weight")
        joined = np.concatenate([np.repeat(e[:, None], self.streams, axis=1), h], axis=-1)
        residual = joined @ self.weights[f"{b}eh_proj.weight"].T
        positions = list(range(first, first + len(ids)))
        return self._attention_step(residual, seq.draft, positions, layer, list(range(len(ids))))

    def reply_with_drafts(self, ids, count, depth, *, sequence=0):
        """Return `count` greedy tokens by drafting and verifying, and how many were drafted and accepted."""
        seq = self.conversation(sequence)
        trunk = self.decode(ids, sequence=sequence, rows=range(len(ids)))
        hidden = np.concatenate([np.zeros_like(trunk[:1]), trunk[:-1]])
        self.draft_step(seq, list(ids), 0, hidden)
        pending, out = trunk[-1:], [self._choose(trunk)]
        drafted = accepted = 0
        while len(out) < count:
            position, kept = len(seq.ids), len(seq.draft)
            token, h, drafts = out[-1], pending, []
            for k in range(min(depth, count - len(out) - 1)):
                h = self.draft_step(seq, [token], position + k, h)
                token = int(self.logits(h, f"blk.{self.trunk}.nextn.hc_head").argmax())
                drafts.append(token)
            del seq.draft[kept:]
            # Verify one row at a time: what is decoded is then exactly what is kept, and nothing has to be rolled back.
            batch, rows, agreed = [out[-1], *drafts], [], 0
            while True:
                rows.append(self.decode(batch[agreed : agreed + 1], sequence=sequence))
                out.append(self._choose(rows[-1]))
                if agreed == len(drafts) or out[-1] != drafts[agreed]:
                    break
                agreed += 1
            drafted, accepted = drafted + len(drafts), accepted + agreed
            self.draft_step(seq, batch[: agreed + 1], position, np.concatenate([pending, *rows[:-1]]))
            pending = rows[-1]
        return out[:count], drafted, accepted
