from __future__ import annotations

from pathlib import Path

from protocols.reference import BEGIN, END, field_reference
from protocols.schema import json_schema

README = Path(__file__).parents[2] / "protocols" / "README.md"


def test_the_readme_holds_the_reference_of_the_schema_as_it_is() -> None:
    text = README.read_text()
    written = text[text.index(BEGIN) + len(BEGIN) : text.index(END)].strip()
    assert written == field_reference(), "write it again with: python -m protocols.reference protocols/README.md"


def test_every_key_of_every_part_stands_in_the_reference() -> None:
    reference = field_reference()
    schema = json_schema()
    for part in (schema, *schema["$defs"].values()):
        for key in part.get("properties", {}):
            assert f"| `{key}` |" in reference
