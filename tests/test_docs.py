"""Documentation that is checked: every command has help with an example and stands in the README, and README commands exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import click
import pytest

from harness.cli import cli
from protocols.errors import ProtocolError
from protocols.load import load_protocol
from protocols.prompt import freeze_prompt

ROOT = Path(__file__).parent.parent
FOLDERS = ("protocols", "engine", "recorder", "reports", "harness")
COMMAND = re.compile(r"`(assay [^`\n]+)`|^\s*(?:\$ )?(assay .+)$", re.MULTILINE)


def walk(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from walk(command, (*path, name))
        else:
            yield " ".join(("assay", *path, name)), command


COMMANDS = dict(walk(cli))


def readmes() -> list[Path]:
    return [
        path for path in (ROOT / "README.md", *(ROOT / folder / "README.md" for folder in FOLDERS)) if path.is_file()
    ]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_and_an_example_of_itself(name: str) -> None:
    command = COMMANDS[name]
    assert command.help
    assert len(command.help) > 20
    assert command.epilog
    assert "Example:" in command.epilog
    assert name in command.epilog
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{name} {parameter.opts[0]} has no help"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_can_answer_in_json(name: str) -> None:
    options = {option for parameter in COMMANDS[name].params for option in parameter.opts}
    assert "--json" in options


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_stands_in_the_readme_of_the_harness(name: str) -> None:
    assert f"| `{name}` |" in (ROOT / "harness" / "README.md").read_text()


def written_commands() -> list[tuple[str, str]]:
    found = []
    for path in readmes():
        for match in COMMAND.finditer(path.read_text()):
            line = (match.group(1) or match.group(2)).split("  ")[0].strip()
            found.append((str(path.relative_to(ROOT)), line))
    for command in COMMANDS.values():
        lines = (command.epilog or "").splitlines()
        found += [("help", line.strip()) for line in lines if line.strip().startswith("assay ")]
    return found


@pytest.mark.parametrize(("where", "line"), sorted(set(written_commands())))
def test_every_command_that_is_written_down_exists_with_its_options(where: str, line: str) -> None:
    words = [word for word in shlex.split(line.replace("...", " "), comments=True) if word != "--debug"]
    names = [name for name in COMMANDS if f"{' '.join(words)} ".startswith(f"{name} ")]
    if not names:
        assert words[1].isupper() or words[1] in {"protocol", "engine", "model", "key"}, f"{where}: no command {line}"
        return
    command = COMMANDS[max(names, key=len)]
    known = {option for parameter in command.params for option in parameter.opts}
    passes_on = bool(command.context_settings.get("ignore_unknown_options"))
    for word in words:
        option = word.split("=")[0]
        assert not option.startswith("--") or option in known or passes_on, f"{where}: {option} in {line}"


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_folder_says_what_lives_there_what_never_does_where_to_enter_and_how_it_is_tested(folder: str) -> None:
    text = (ROOT / folder / "README.md").read_text()
    for part in ("lives here", "Never lives here", "Entry point", "Tests"):
        assert part.lower() in text.lower(), f"{folder}/README.md lacks: {part}"


def test_exit_codes_are_documented_once_and_alike() -> None:
    table = dict(re.findall(r"^\| (\d+) \| (.+) \|$", (ROOT / "harness" / "README.md").read_text(), re.MULTILINE))
    shown = dict(re.findall(r"^  (\d+) +(.+)$", cli.epilog or "", re.MULTILINE))
    assert table == shown
    assert set(table) == {"0", "1", "2", "3", "4", "5", "6", "130"}


def test_the_protocol_of_the_readme_is_sound_and_the_request_that_it_names_is_made_there(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text()
    (source,) = re.findall(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "my-pair.yaml").write_text(source)
    with pytest.raises(ProtocolError, match=r"requests/mine-512.json is neither beside the protocol"):
        load_protocol(tmp_path / "my-pair.yaml")
    prompt = (
        r"assay protocol prompt --model model.gguf --tokens 512 --generated-tokens 128 --out requests/mine-512.json"
    )
    assert prompt in text
    (tmp_path / "requests").mkdir()
    body = freeze_prompt(lambda words: list(words.encode()), 512, 1, generated_tokens=128)
    (tmp_path / "requests" / "mine-512.json").write_bytes(body)
    loaded = load_protocol(tmp_path / "my-pair.yaml")
    assert loaded.warnings == ()
    assert {arm.engine.kind for arm in (loaded.protocol.arms.baseline, loaded.protocol.arms.candidate)} == {
        "llama-server"
    }


def test_the_command_is_installed_under_its_name() -> None:
    try:
        points = metadata.distribution("assay").entry_points
    except metadata.PackageNotFoundError:
        pytest.skip("NOT_RUN: assay is not installed here")
    assert [point.value for point in points if point.name == "assay"] == ["harness.cli:main"]
