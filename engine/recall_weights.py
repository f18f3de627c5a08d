"""The weights of the recall model: an induction head built by hand, in a model whose every other part computes too.

Each stream of the residual is 256 wide:

==========  ==================================================================================================
OWN         code word of the token itself (-1 and 1), from the embedding
PREVIOUS    code word of the token before, written by the delta net of layer 0 (streams 0 to 2);
            in stream 3: code word of the predicted token, written by the QSA of layer 2
BEFORE      code word of the token two before, written by the delta net of layer 1, which shifts PREVIOUS
BIAS        a constant, which gives gates and mixers their working points
NOISE       everything that is not built: hashed values from every part of the model, which all of them read
==========  ==================================================================================================

A delta net shifts by one token: a convolution tap delays the code word, and a key that never changes, with a write
strength of 1, makes the delta rule replace what it held. QSA asks with (own, previous) for a cell that keeps
(previous, before), and copies what that cell's own token is; its indexer asks the same with the same parts. The mean of
four keys still holds half of each, which is eight standard deviations of what other blocks reach by chance.

The MTP block reads the pair (own, previous) from its token and from the trunk residual of the token before, and matches
likewise. It cannot see the tokens of one class, a hashed part of the vocabulary, and drafts something else there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import sqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray

from engine.integer_hash import draws, uniform
from engine.recall_vocabulary import CODE_BITS, CONTROL_TOKENS, END_TOKEN, VOCABULARY_TOKENS, code_words

Array = NDArray[np.float32]

WIDTH: Final = 256
STREAMS: Final = 4
MIXER_RANK: Final = 32
LAYER_IS_RECURRENT: Final = (True, True, False)
STATE_SIZE: Final = 64
KEY_HEADS: Final = 2
VALUE_HEADS: Final = 4
CONVOLUTION: Final = 4
HEADS: Final = 2
HEAD_SIZE: Final = 128
ROTATED: Final = 16
INDEX_HEADS: Final = 2
EXPERTS: Final = 8
EXPERT_WIDTH: Final = 32
NGRAM: Final = 3
NGRAM_HEADS: Final = 4
NGRAM_LAYER: Final = 1
NGRAM_CONVOLUTION: Final = 4
NGRAM_ROW: Final = WIDTH // NGRAM_HEADS
NGRAM_PRIMES: Final = (8009, 8011, 8017, 8039)

OWN: Final = slice(0, 64)
PREVIOUS: Final = slice(64, 128)
BEFORE: Final = slice(128, 192)
BIAS: Final = slice(192, 196)
CLASS_BIAS: Final = slice(192, 193)  # the part of BIAS that only the draft's head shows to the output rows
SHOWN_BIAS: Final = slice(193, 196)
NOISE: Final = slice(196, 256)
NOISE_WIDTH: Final = 60
SECOND_BITS: Final = 48  # how much of the second code word of a pair fits into a head
UNSEEN_SHARE: Final = 0.3125

_QUERIED: Final = slice(ROTATED, ROTATED + CODE_BITS)
_QUERIED_SECOND: Final = slice(ROTATED + CODE_BITS, HEAD_SIZE)
_MATCHED: Final = (0, 1, 2)  # the streams that keep token identities
_PREDICTING: Final = 3
_OPEN: Final = 6.0
_CLOSED: Final = -12.0


@dataclass(kw_only=True)
class Weights:
    """Tensors by name, in file order; arrays are [out, in], the reverse of GGUF's dimensions."""

    tensors: dict[str, NDArray[np.float32] | NDArray[np.float16]] = field(default_factory=dict)

    def put(self, name: str, values: Array) -> None:
        """Add a float32 tensor."""
        self.tensors[name] = np.ascontiguousarray(values, dtype=np.float32)

    def put_half(self, name: str, values: Array) -> None:
        """Add a tensor that the file holds in half precision."""
        self.tensors[name] = np.ascontiguousarray(values.astype(np.float16))


def make_weights() -> Weights:
    """Return every tensor of the model: about 25 million elements, equal to the byte on every host."""
    w = Weights()
    codes = code_words()
    w.put_half("token_embd.weight", _embedding(codes))
    w.put_half("output.weight", _output(codes))
    _mixer(w, "output_hc", _head_gates(CLASS_BIAS, _CLOSED), None)
    w.put_half("per_layer_token_embd.weight", uniform("ngram table", ngram_rows(), NGRAM_ROW))
    for layer, is_recurrent in enumerate(LAYER_IS_RECURRENT):
        prefix = f"blk.{layer}."
        _mixer(w, f"{prefix}hc_attn", _layer_gates(), _scatter(_MATCHED if is_recurrent else (_PREDICTING,)))
        if is_recurrent:
            _shift(w, prefix, (OWN, PREVIOUS)[layer], (PREVIOUS, BEFORE)[layer])
        else:
            _induction(w, prefix)
        if layer == NGRAM_LAYER:
            _ngrams(w, prefix)
        _experts(w, prefix)
    draft = f"blk.{len(LAYER_IS_RECURRENT)}."
    _mixer(w, f"{draft}hc_attn", _layer_gates(), _scatter((_PREDICTING,)))
    _induction(w, draft)
    _experts(w, draft)
    _draft_input(w, draft)
    _mixer(w, f"{draft}nextn.hc_head", _head_gates(CLASS_BIAS, _OPEN), None)
    return w


def is_unseen_by_draft() -> NDArray[np.bool_]:
    """Say of every token id whether the draft's output rows hide it: UNSEEN_SHARE, by hash. [VOCABULARY_TOKENS]."""
    return uniform("draft class", VOCABULARY_TOKENS) < np.float32(2 * UNSEEN_SHARE - 1)


def ngram_rows() -> int:
    """Return the rows of the n-gram table: the heads' primes together, padded to a multiple of 128."""
    return -(-sum(NGRAM_PRIMES) // 128) * 128


def ngram_multipliers() -> list[int]:
    """Return the odd hash multipliers, so small that a product with a token id stays below 2^63."""
    bound = ((1 << 63) - 1) // VOCABULARY_TOKENS // 2
    stream = draws("ngram multipliers")
    return [2 * (next(stream) % bound) + 1 for _ in range(NGRAM)]


def _hashed(name: str, outputs: int, inputs: int, *, rms: float, reads: tuple[slice, ...] = (NOISE,)) -> Array:
    """Return [outputs, inputs], zero outside `reads`; an input of unit entries gives outputs of about `rms`."""
    values = np.zeros((outputs, inputs), dtype=np.float32)
    width = sum(part.stop - part.start for part in reads)
    scale = np.float32(rms * sqrt(3.0 / width))
    for part in reads:
        values[:, part] = uniform(f"{name} {part.start}", outputs, part.stop - part.start) * scale
    return values


def _into_noise(name: str, inputs: slice, total: int, *, rms: float) -> Array:
    """Return [WIDTH, total] that takes `inputs` to the noise places only."""
    values = np.zeros((WIDTH, total), dtype=np.float32)
    values[NOISE] = _hashed(name, NOISE_WIDTH, total, rms=rms, reads=(inputs,))
    return values


def _place(rows: Array, at: slice, source: slice, value: float) -> None:
    """Let output k of `at` be `value` times input k of `source`."""
    count = at.stop - at.start
    rows[np.arange(at.start, at.stop), np.arange(source.start, source.start + count)] = value


def _embedding(codes: Array) -> Array:
    values = np.zeros((VOCABULARY_TOKENS, WIDTH), dtype=np.float32)
    values[:, OWN] = codes
    values[:, BIAS] = 2.0
    values[:, NOISE] = uniform("embedding", VOCABULARY_TOKENS, NOISE_WIDTH) * np.float32(0.5)
    return values


def _output(codes: Array) -> Array:
    values = np.zeros((VOCABULARY_TOKENS, WIDTH), dtype=np.float32)
    values[:, PREVIOUS] = codes * np.float32(0.8)
    values[:, NOISE] = uniform("output", VOCABULARY_TOKENS, NOISE_WIDTH)
    values[is_unseen_by_draft(), CLASS_BIAS] = -160.0
    values[END_TOKEN : END_TOKEN + len(CONTROL_TOKENS), SHOWN_BIAS] = -11.0  # only a copy may say a control token
    return values


def _layer_gates() -> Array:
    """Return the working point of each stream and place before a block: identities from the streams that keep them."""
    gates = np.full((STREAMS, WIDTH), _OPEN, dtype=np.float32)
    gates[_PREDICTING, PREVIOUS] = _CLOSED
    gates[:, NOISE] = 0.0
    return gates


def _head_gates(places: slice, value: float) -> Array:
    """Return the working point before the output rows: the prediction, noise, and `places` at `value`."""
    gates = np.full((STREAMS, WIDTH), _CLOSED, dtype=np.float32)
    gates[_PREDICTING, PREVIOUS] = _OPEN
    gates[_PREDICTING, SHOWN_BIAS] = _OPEN
    gates[_PREDICTING, places] = value
    gates[:, NOISE] = 0.0
    return gates


def _scatter(streams: tuple[int, ...]) -> Array:
    return np.array([_OPEN if s in streams else _CLOSED for s in range(STREAMS)], dtype=np.float32)


def _mixer(w: Weights, name: str, gates: Array, scatter: Array | None) -> None:
    """Add a hyper-connection mixer: unit 0 carries the bias to the working points, the others move them by noise."""
    total = STREAMS * WIDTH
    norm = np.ones(total, dtype=np.float32)
    reads = tuple(slice(s * WIDTH + NOISE.start, s * WIDTH + NOISE.stop) for s in range(STREAMS))
    biases = np.concatenate([np.arange(s * WIDTH + BIAS.start, s * WIDTH + BIAS.stop) for s in range(STREAMS)])
    down = _hashed(f"{name} down", MIXER_RANK, total, rms=8.0, reads=reads)
    down[0] = 0.0
    down[0, biases] = 0.5
    up = uniform(f"{name} up", total, MIXER_RANK) * np.float32(0.125)
    up[:, 0] = gates.reshape(-1) * np.float32(0.25)
    w.put(f"{name}_norm.weight", norm)
    w.put(f"{name}_down.weight", down)
    w.put(f"{name}_up.weight", up)
    if scatter is not None:
        inject = _hashed(f"{name} inject", STREAMS, total, rms=0.5, reads=reads)
        inject[:, biases] = scatter[:, None] * np.float32(0.25)
        w.put(f"{name}_inject.weight", inject)


def _shift(w: Weights, prefix: str, source: slice, target: slice) -> None:
    """Add a delta net that writes to `target` what stood at `source` one token before."""
    d, width = STATE_SIZE, STATE_SIZE * (2 * KEY_HEADS + VALUE_HEADS)
    rows = _hashed(f"{prefix}qkv", width, WIDTH, rms=1.0, reads=(OWN, NOISE))
    taps = uniform(f"{prefix}taps", width, CONVOLUTION)
    for constant in (0, KEY_HEADS * d):  # query and key of key head 0: always the first direction
        rows[constant : constant + d] = 0.0
        rows[constant, BIAS] = 1.0
        taps[constant : constant + d] = (0.0, 0.0, 0.0, 1.0)
    out = np.zeros((WIDTH, VALUE_HEADS * d), dtype=np.float32)
    half = d // 2
    for part in range(2):  # value heads 0 and 2 use key head 0; silu(x) - silu(-x) = x
        head = part * KEY_HEADS
        first = 2 * KEY_HEADS * d + head * d
        rows[first : first + d] = 0.0
        taps[first : first + d] = (0.0, 0.0, 1.0, 0.0)
        for bit in range(half):
            rows[first + 2 * bit, source.start + part * half + bit] = 6.0
            rows[first + 2 * bit + 1, source.start + part * half + bit] = -6.0
            place = target.start + part * half + bit
            # Two entries of sqrt(2) after the norm, and a scatter weight of 2.
            out[place, head * d + 2 * bit] = 0.5 * sqrt(0.5)
            out[place, head * d + 2 * bit + 1] = -0.5 * sqrt(0.5)
        other = slice((head + 1) * d, (head + 2) * d)
        out += _into_noise(f"{prefix}out {head}", other, VALUE_HEADS * d, rms=0.15)
    gate = _hashed(f"{prefix}z", VALUE_HEADS * d, WIDTH, rms=1.0)
    beta = _hashed(f"{prefix}beta", VALUE_HEADS, WIDTH, rms=1.0)
    for head in (0, KEY_HEADS):
        gate[head * d : (head + 1) * d] = 0.0
        gate[head * d : (head + 1) * d, BIAS] = 2.0
        beta[head] = 0.0
        beta[head, BIAS] = 3.0
    w.put(f"{prefix}attn_qkv.weight", rows)
    w.put(f"{prefix}attn_gate.weight", gate)
    w.put(f"{prefix}ssm_conv1d.weight", taps)
    w.put(f"{prefix}ssm_beta.weight", beta)
    w.put(f"{prefix}ssm_alpha.weight", _hashed(f"{prefix}alpha", VALUE_HEADS, WIDTH, rms=0.5))
    w.put(f"{prefix}ssm_dt.bias", uniform(f"{prefix}dt", VALUE_HEADS) - np.float32(1.5))
    w.put(f"{prefix}ssm_a", -np.array([1.0, 0.0625, 0.5, 0.25], dtype=np.float32))
    w.put(f"{prefix}ssm_norm.weight", np.ones(d, dtype=np.float32))
    w.put(f"{prefix}ssm_out.weight", out)


def _induction(w: Weights, prefix: str) -> None:
    """Add QSA: head 0 matches and copies; head 1 looks around by hash, so that the selection shows in the logits."""
    query = np.zeros((2 * HEAD_SIZE * HEADS, WIDTH), dtype=np.float32)
    _place(query, _QUERIED, OWN, 1.0)
    _place(query, _QUERIED_SECOND, PREVIOUS, 1.0)
    query[HEAD_SIZE : 2 * HEAD_SIZE, BIAS] = 2.0
    query[2 * HEAD_SIZE :] = _hashed(f"{prefix}q", 2 * HEAD_SIZE, WIDTH, rms=1.0, reads=(OWN, NOISE))
    key = np.zeros((HEAD_SIZE, WIDTH), dtype=np.float32)
    _place(key, _QUERIED, PREVIOUS, 1.0)
    _place(key, _QUERIED_SECOND, BEFORE, 1.0)
    key += _hashed(f"{prefix}k", HEAD_SIZE, WIDTH, rms=0.0625)
    key[:ROTATED] = _hashed(f"{prefix}k rotated", ROTATED, WIDTH, rms=0.5)
    value = np.zeros((HEAD_SIZE, WIDTH), dtype=np.float32)
    _place(value, slice(0, CODE_BITS), OWN, 1.0)
    value[CODE_BITS:] = _hashed(f"{prefix}v", HEAD_SIZE - CODE_BITS, WIDTH, rms=1.0, reads=(OWN, NOISE))
    out = _into_noise(f"{prefix}out", slice(HEAD_SIZE, 2 * HEAD_SIZE), HEADS * HEAD_SIZE, rms=0.5)
    _place(out, PREVIOUS, slice(0, CODE_BITS), 1.25)
    # At a full match the score is sqrt(128) * 5.5 = 62; whoever shares one token of the pair stays 25 below it.
    sharpness = np.full(HEAD_SIZE, 5.5, dtype=np.float32)
    sharpness[:ROTATED] = 1.0
    index_query = np.zeros((HEAD_SIZE * INDEX_HEADS, WIDTH), dtype=np.float32)
    index_query[_QUERIED] = query[_QUERIED]
    index_query[HEAD_SIZE + ROTATED + CODE_BITS :] = query[_QUERIED_SECOND]
    for head in range(INDEX_HEADS):
        rotated = slice(head * HEAD_SIZE, head * HEAD_SIZE + ROTATED)
        index_query[rotated] = _hashed(f"{prefix}index q {head}", ROTATED, WIDTH, rms=0.25)
    w.put(f"{prefix}attn_q.weight", query)
    w.put(f"{prefix}attn_k.weight", key)
    w.put(f"{prefix}attn_v.weight", value)
    w.put(f"{prefix}attn_output.weight", out)
    w.put(f"{prefix}attn_q_norm.weight", sharpness)
    w.put(f"{prefix}attn_k_norm.weight", np.ones(HEAD_SIZE, dtype=np.float32))
    w.put(f"{prefix}indexer.q_proj.weight", index_query)
    w.put(f"{prefix}indexer.k_proj.weight", key)
    w.put(f"{prefix}indexer.q_norm.weight", np.ones(HEAD_SIZE, dtype=np.float32))
    w.put(f"{prefix}indexer.k_norm.weight", np.ones(HEAD_SIZE, dtype=np.float32))


def _ngrams(w: Weights, prefix: str) -> None:
    """Add the n-gram embedding: what the table says of the last tokens becomes noise."""
    total = STREAMS * WIDTH
    everything = (slice(0, WIDTH),)
    value = np.zeros((WIDTH, WIDTH), dtype=np.float32)
    value[NOISE] = _hashed(f"{prefix}ple value", NOISE_WIDTH, WIDTH, rms=0.75, reads=everything)
    taps = np.zeros((total, NGRAM_CONVOLUTION), dtype=np.float32)
    for stream in range(STREAMS):
        places = slice(stream * WIDTH + NOISE.start, stream * WIDTH + NOISE.stop)
        taps[places] = uniform(f"{prefix}ple taps {stream}", NOISE_WIDTH, NGRAM_CONVOLUTION) * np.float32(0.25)
    w.put(f"{prefix}ple_key.weight", _hashed(f"{prefix}ple key", total, WIDTH, rms=1.0, reads=everything))
    w.put(f"{prefix}ple_value.weight", value)
    for norm in ("key", "query", "conv"):
        w.put(f"{prefix}ple_norm_{norm}.weight", np.ones(total, dtype=np.float32))
    w.put(f"{prefix}ple_conv1d.weight", taps)


def _experts(w: Weights, prefix: str) -> None:
    """Add the experts: hashed, reading everything that varies, writing noise."""
    reads = (OWN, NOISE)
    _mixer(w, f"{prefix}hc_ffn", _layer_gates(), np.zeros(STREAMS, dtype=np.float32))
    shape = (EXPERTS, EXPERT_WIDTH, WIDTH)
    gates, ups = (
        _hashed(f"{prefix}{part}", EXPERTS * EXPERT_WIDTH, WIDTH, rms=1.0, reads=reads).reshape(shape)
        for part in ("gate", "up")
    )
    down = [
        _into_noise(f"{prefix}down {expert}", slice(0, EXPERT_WIDTH), EXPERT_WIDTH, rms=0.25)
        for expert in range(EXPERTS + 1)
    ]
    w.put(f"{prefix}ffn_gate_inp.weight", _hashed(f"{prefix}router", EXPERTS, WIDTH, rms=1.5, reads=reads))
    w.put(f"{prefix}ffn_gate_exps.weight", gates)
    w.put(f"{prefix}ffn_up_exps.weight", ups)
    w.put(f"{prefix}ffn_down_exps.weight", np.stack(down[:EXPERTS]))
    w.put(f"{prefix}ffn_gate_inp_shexp.weight", _hashed(f"{prefix}shared", 1, WIDTH, rms=1.0, reads=reads))
    for part in ("gate", "up"):
        name = f"{prefix}ffn_{part}_shexp.weight"
        w.put(name, _hashed(name, EXPERT_WIDTH, WIDTH, rms=1.0, reads=reads))
    w.put(f"{prefix}ffn_down_shexp.weight", down[EXPERTS])


def _draft_input(w: Weights, prefix: str) -> None:
    """Add what makes a residual of the draft's token and of the trunk residual one token before."""
    join = np.zeros((WIDTH, 2 * WIDTH), dtype=np.float32)
    for part in (OWN, BIAS, NOISE):
        _place(join, part, part, 0.5625)  # the embedding's root mean square, taken out by its norm
    hidden = slice(WIDTH, WIDTH + CODE_BITS)
    _place(join, PREVIOUS, hidden, 0.9)
    _place(join, BEFORE, slice(WIDTH + PREVIOUS.start, WIDTH + PREVIOUS.stop), 0.9)
    places = slice(WIDTH + NOISE.start, WIDTH + NOISE.stop)
    join[NOISE] += _hashed(f"{prefix}join", NOISE_WIDTH, 2 * WIDTH, rms=0.25, reads=(places,))
    w.put(f"{prefix}nextn.eh_proj.weight", join)
    w.put(f"{prefix}nextn.enorm.weight", np.ones(WIDTH, dtype=np.float32))
    w.put(f"{prefix}nextn.hnorm.weight", np.ones(STREAMS * WIDTH, dtype=np.float32))
