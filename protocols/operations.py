"""The operations of a history: plain edits of the sequences of a session."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from protocols.vocabulary import KvType, Part

_MOST_TOKENS: Final = 8192
_MOST_SPARE_CELLS: Final = 2**20
SequenceId = Annotated[int, Field(ge=0, lt=16)]
Tokens = Annotated[int, Field(ge=1, le=_MOST_TOKENS)]
Conversation = Annotated[str, Field(pattern=r"^[A-Z]$")]
State = Annotated[str, Field(pattern=r"^[a-z]$")]
Coordinates = Literal["p", "ppp", "ppp0", "pppp"]
"""How the position p of a text token is written: alone, for the axes t, y, x, or with a fourth that means nothing."""


class SessionSettings(Part):
    """Settings of the session that a history is played in."""

    kv_type: KvType = "f32"
    """Type of the cache."""
    ubatch_tokens: Tokens = 512
    """Most tokens of one graph evaluation."""
    sequences: int = Field(default=1, ge=1, le=16)
    """Sequences of the session."""
    is_unified: bool = False
    """Whether all sequences share one pool of cells."""
    rollback_tokens: int = Field(default=0, ge=0, le=64)
    """Tokens that a recurrent state can take back."""
    is_bucket: bool = False
    """Whether blocks of sparse attention are made by position bucket and not by rank."""
    draft_tokens: int = Field(default=0, ge=0, le=6)
    """Most tokens drafted at a time; 0: no draft block."""
    draft_vocabulary: int = Field(default=0, ge=0)
    """Ids among which a draft is chosen, the first of the vocabulary; 0: all."""
    spare_cells: int = Field(default=0, ge=0, le=_MOST_SPARE_CELLS)
    """Cells of the cache that the history has no need of: for each sequence, or together where it is unified."""


class Run(Part):
    """Tokens of a conversation at the end of a sequence."""

    sequence: SequenceId
    """Sequence that goes on."""
    conversation: Conversation
    """Names the text: the id of a token follows from the case's seed, this name and the position."""
    tokens: Tokens
    """How many."""


class Evaluate(Part):
    """Evaluate runs of different sequences in one batch."""

    do: Literal["evaluate"] = "evaluate"
    """The operation."""
    runs: Annotated[tuple[Run, ...], Field(strict=False, min_length=1, max_length=16)]
    """The batch, run after run."""
    coordinates: Coordinates = "p"
    """How its positions are written."""


class Step(Part):
    """Evaluate tokens one by one; the logits of each are compared with those of the other history."""

    do: Literal["step"] = "step"
    """The operation."""
    sequence: SequenceId
    """Sequence that goes on."""
    conversation: Conversation
    """Names the text."""
    tokens: Tokens
    """How many."""
    coordinates: Coordinates = "p"
    """How its positions are written."""


class Generate(Part):
    """Evaluate a token, and choose the most likely next one again and again; those tokens are compared.

    All of them but the last are evaluated, too.
    """

    do: Literal["generate"] = "generate"
    """The operation."""
    sequence: SequenceId
    """Sequence that goes on."""
    conversation: Conversation
    """Names the text of the first token."""
    tokens: Tokens
    """How many are chosen."""
    depth: int = Field(default=0, ge=0, le=6)
    """Tokens drafted at a time; 0: none."""


class Skip(Part):
    """Leave positions out: what comes next in the sequence stands so many further."""

    do: Literal["skip"] = "skip"
    """The operation."""
    sequence: SequenceId
    """Sequence that goes on behind them."""
    positions: int = Field(ge=1, le=65536)
    """How many."""


class Image(Part):
    """Evaluate a made-up square image, or a part of it, in one batch; its cells share a position."""

    do: Literal["image"] = "image"
    """The operation."""
    sequence: SequenceId
    """Sequence that goes on."""
    conversation: Conversation
    """Names the image."""
    side: int = Field(ge=1, le=16)
    """Rows and columns."""
    first: int = Field(default=0, ge=0, lt=256)
    """Cells of the image that were evaluated before; the next operation of the sequence must go on with it."""
    cells: int | None = Field(default=None, ge=1, le=256)
    """How many are evaluated now; none: the rest of the image."""

    @property
    def places(self) -> range:
        """Return which of its cells these are, row by row."""
        whole = self.side * self.side
        return range(self.first, whole if self.cells is None else min(whole, self.first + self.cells))


class Copy(Part):
    """Copy a whole sequence to an empty one."""

    do: Literal["copy"] = "copy"
    """The operation."""
    source: SequenceId
    """Sequence that is copied."""
    target: SequenceId
    """Empty sequence that gets the copy."""


class Cut(Part):
    """Remove tokens at the end of a sequence."""

    do: Literal["cut"] = "cut"
    """The operation."""
    sequence: SequenceId
    """Sequence that becomes shorter."""
    tokens: Tokens
    """How many."""


class Drop(Part):
    """Remove a whole sequence."""

    do: Literal["drop"] = "drop"
    """The operation."""
    sequence: SequenceId
    """Sequence that becomes empty."""


class Save(Part):
    """Save the state of a sequence under a name."""

    do: Literal["save"] = "save"
    """The operation."""
    sequence: SequenceId
    """Sequence that is saved."""
    state: State
    """Name of the state."""


class Restore(Part):
    """Replace a sequence by a saved state."""

    do: Literal["restore"] = "restore"
    """The operation."""
    sequence: SequenceId
    """Sequence that is replaced."""
    state: State
    """Name of the state."""


Operation = Annotated[
    Evaluate | Step | Generate | Skip | Image | Copy | Cut | Drop | Save | Restore,
    Field(discriminator="do"),
]


class History(Part):
    """Operations in a fresh session."""

    settings: SessionSettings
    """Settings of the session."""
    operations: Annotated[tuple[Operation, ...], Field(strict=False, max_length=200)]
    """The operations, in order."""

    @property
    def generations(self) -> list[Generate]:
        """The operations that choose tokens by their logits."""
        return [one for one in self.operations if isinstance(one, Generate)]
