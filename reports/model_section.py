"""What is known of the model, in words and tables: the file that engines were started with, or only a stated name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reports import style
from reports.facts import Facts, ModelFact

Row = tuple[object, ...]
_STATED = "(stated, not verified)"


def unknown_files(facts: Facts) -> str | None:
    """Say which arms are endpoints, behind which files may be anything; None where every arm was started here."""
    if not facts.stated_models():
        return None
    return f"Nothing is known of the files behind {_endpoints(facts)}: Assay did not start what answers."


def model_tables(facts: Facts) -> Iterator[tuple[str | None, Sequence[str], list[Row]]]:
    """Yield a sentence or None, columns and rows for each table about the model."""
    stated, model = facts.stated_models(), facts.model
    if stated:
        yield None, ("arm", f"model {_STATED}"), list(stated.items())
    if model is None:
        return
    is_served = len(stated) < len(facts.arms)
    sentence = None
    if stated:
        other = " The other arm was started with it." if is_served else ""
        sentence = f"The protocol states a model file. Whether it is behind {_endpoints(facts)} is unknown.{other}"
    title = "model" if is_served else f"model file {_STATED}"
    columns = (title, "architecture", "parameters", "size", "SHA-256", "tokenizer", "chat template")
    yield sentence, columns, [_row(model)]


def _endpoints(facts: Facts) -> str:
    names = list(facts.stated_models())
    return "the endpoints" if len(names) > 1 else f"the {names[0]}, an endpoint"


def _row(model: ModelFact) -> Row:
    return (
        model.name,
        model.architecture,
        style.count(model.parameters),
        style.size(model.bytes),
        style.short_hash(model.sha256),
        style.short_hash(model.tokenizer_sha256),
        style.short_hash(model.chat_template_sha256),
    )
