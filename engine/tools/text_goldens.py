"""Recompute the golden files of the text tests with the reference implementations.

The inputs (texts, vocabularies, templates, messages) stand in the golden files themselves; this script replaces what is
expected of them and says what changed. References: the package `tokenizers` for pre-token splits and for ids of the
tiny vocabulary, a llama.cpp server with the SmolLM2 model for `tokenizer_smollm2.json`, and Jinja2, set up as Hugging
Face's tokenizers do, for chat templates.

Usage: python engine/tools/text_goldens.py tests/engine/golden [--server http://127.0.0.1:8080]

Needs `pip install tokenizers jinja2`. Without --server the ids of SmolLM2 are left as they are.
"""

from __future__ import annotations

import argparse
import json
import sys
import urllib.request
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers

Case = dict[str, Any]

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def splitters() -> dict[str, Any]:
    """Return the published pre-tokenizer of every rule, by the name in `tokenizer.ggml.pre`."""

    def split(pattern: str) -> Any:
        return pre_tokenizers.Split(Regex(pattern), "isolated")

    digits = pre_tokenizers.Digits(individual_digits=True)
    return {
        "smollm": pre_tokenizers.Sequence([digits, split(GPT2)]),
        "gpt-2": split(GPT2),
        "qwen2": split(CL100K % r"\p{N}"),
        "llama-bpe": split(CL100K % r"\p{N}{1,3}"),
    }


def recompute_splits(golden: Case) -> None:
    """Word lengths in bytes of each text under each rule."""
    for case in golden["cases"]:
        for rule, splitter in splitters().items():
            words = splitter.pre_tokenize_str(case["text"])
            case[rule] = [len(word.encode()) for word, _ in words]


def recompute_tiny(golden: Case) -> None:
    """Ids under the tiny vocabulary, for each rule."""
    merges = [tuple(line.split(" ")) for line in golden["merges"]]
    ordinary = {
        text: i for i, (text, kind) in enumerate(zip(golden["tokens"], golden["types"], strict=True)) if kind == 1
    }
    for rule, splitter in splitters().items():
        tokenizer = Tokenizer(models.BPE(vocab=ordinary, merges=merges, ignore_merges=rule == "llama-bpe"))
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([splitter, byte_level])
        ids: dict[int, int] = {}
        for token, (text, kind) in enumerate(zip(golden["tokens"], golden["types"], strict=True)):
            if kind != 1:
                tokenizer.add_tokens([AddedToken(text, special=kind == 3, normalized=False)])
                ids[tokenizer.token_to_id(text)] = token
        for case in golden["cases"]:
            tokenizer.encode_special_tokens = not case["parse_special"]
            encoded = tokenizer.encode(case["text"], add_special_tokens=False).ids
            case[rule] = [ids.get(token, token) for token in encoded]


def recompute_smollm2(golden: Case, server: str) -> None:
    """Ids of a llama.cpp server that has the SmolLM2 model loaded."""
    for case in golden["cases"]:
        body = {"content": case["text"], "add_special": False, "parse_special": case["parse_special"]}
        request = urllib.request.Request(  # noqa: S310 - the address is the caller's own
            f"{server}/tokenize", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310
            case["ids"] = json.load(response)["tokens"]


def template_environment() -> ImmutableSandboxedEnvironment:
    """Return Jinja2 as Hugging Face's tokenizers set it up."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )

    def raise_exception(text: str) -> None:
        raise jinja2.TemplateError(text)

    def tojson(value: object, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    environment.globals["raise_exception"] = raise_exception
    environment.filters["tojson"] = tojson
    return environment


def recompute_chat(golden: Case) -> None:
    """Rendered text of each case; for a template that raises, its text if it came from raise_exception."""
    environment = template_environment()
    for case in golden["cases"]:
        for key in ("output", "raises", "fails"):
            case.pop(key, None)
        try:
            case["output"] = environment.from_string(
                golden["templates"].get(case["template"], case["template"])
            ).render(
                messages=golden["conversations"][case["conversation"]],
                add_generation_prompt=case["add_generation_prompt"],
                bos_token="<s>",  # noqa: S106 - a marker, no secret
                eos_token="</s>",  # noqa: S106
                tools=None,
                documents=None,
            )
        except (jinja2.UndefinedError, jinja2.TemplateSyntaxError, TypeError, ZeroDivisionError):
            case["fails"] = True
        except jinja2.TemplateError as error:
            case["raises"] = str(error)


def main() -> int:
    """Rewrite the golden files in the folder and print which changed; 0 when none did."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--server", help="llama.cpp server with the SmolLM2 model")
    options = parser.parse_args()
    has_changed = False
    for name in ("pretokenizer_splits", "tokenizer_tiny", "tokenizer_smollm2", "chat_template_cases"):
        path = options.folder / f"{name}.json"
        before = path.read_text(encoding="utf-8")
        golden = json.loads(before)
        if name == "pretokenizer_splits":
            recompute_splits(golden)
        elif name == "tokenizer_tiny":
            recompute_tiny(golden)
        elif name == "chat_template_cases":
            recompute_chat(golden)
        elif options.server:
            recompute_smollm2(golden, options.server)
        # One case a line, so that a change reads well in a diff.
        lines = [json.dumps(case, ensure_ascii=False, separators=(",", ":")) for case in golden.pop("cases")]
        head = json.dumps(golden, ensure_ascii=False, separators=(",", ":"))[:-1]
        after = head + ',\n"cases":[\n' + ",\n".join(lines) + "\n]}\n"
        if after != before:
            has_changed = True
            print(f"{path.name}: changed")
            path.write_text(after, encoding="utf-8")
        else:
            print(f"{path.name}: as before")
    return int(has_changed)


if __name__ == "__main__":
    sys.exit(main())
