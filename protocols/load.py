"""From a YAML file to a protocol that can be carried out, or to every problem that the file has.

Each problem reads `file:line: key.path: what was found, what is expected; what to write`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from protocols.canonical import sha256_hex
from protocols.errors import Problem, ProtocolError
from protocols.findings import Finding, nearest
from protocols.origins import BUNDLED_MODEL, MAX_BYTES, SUFFIX, check_origins, holds_ids, parse_origin
from protocols.paths import is_file, read_given
from protocols.problems import schema_problems
from protocols.request_checks import MAX_BODY_BYTES, check_requests
from protocols.schema import Protocol
from protocols.semantics import check_protocol
from protocols.yaml_tree import PathPart, Tree, line_of, parse_yaml, place, plain_value

PACKAGE = Path(__file__).resolve().parent
LIBRARY = PACKAGE / "library"


@dataclass(frozen=True, kw_only=True)
class LoadedProtocol:
    """A protocol with everything that it names among the requests.

    `source` are the bytes of the YAML file, `requests` the bytes of each body by the name that the protocol uses, and
    `warnings` what can be carried out but says less than it may seem.
    """

    protocol: Protocol
    source: bytes
    path: Path
    requests: Mapping[str, bytes]
    warnings: tuple[Problem, ...] = ()

    def request_hashes(self) -> dict[str, str]:
        """Return the SHA-256 of each request body, as it stands in a lock."""
        return {reference: sha256_hex(body) for reference, body in sorted(self.requests.items())}


def load_protocol(path: Path) -> LoadedProtocol:
    """Read and check a protocol file and its requests. ProtocolError carries every problem that was found."""
    try:
        source = read_given(path)
    except OSError as error:
        raise ProtocolError(f"the protocol cannot be read: {error.strerror or error}", where=str(path)) from error
    return parse_protocol(source, path)


def parse_protocol(source: bytes, path: Path) -> LoadedProtocol:
    """Check the bytes of a protocol; `path` is where its files are looked for, and what problems are named by."""
    tree = parse_yaml(source, str(path))
    protocol, problems = _validated(tree)
    if protocol is None or problems:
        raise ProtocolError.from_problems(str(path), _in_order(problems, str(path)))
    findings = list(check_protocol(protocol))
    origins: dict[str, str] = {}
    requests = dict(_read_requests(protocol, path.parent, findings, origins))
    bundled = frozenset(name for name in requests if _is_bundled(find_request(name, path.parent)))
    findings += check_requests(protocol, requests, bundled=bundled)
    findings += check_origins(protocol, _named_requests(protocol), origins)
    refusals = [_problem(finding, tree) for finding in findings if not finding.is_warning]
    if refusals:
        raise ProtocolError.from_problems(str(path), _in_order(refusals, str(path)))
    warnings = [_problem(finding, tree) for finding in findings if finding.is_warning]
    in_order = tuple(_in_order(warnings, str(path)))
    return LoadedProtocol(protocol=protocol, source=source, path=path, requests=requests, warnings=in_order)


def _validated(tree: Tree) -> tuple[Protocol | None, list[Problem]]:
    try:
        return Protocol.model_validate(plain_value(tree.root)), list(tree.problems)
    except ValidationError as error:
        return None, [*tree.problems, *schema_problems(error, tree)]


def refuse(loaded: LoadedProtocol, findings: Iterable[Finding]) -> None:
    """Raise ProtocolError with every refusal among the findings, each at its line of the file; else nothing happens."""
    tree = parse_yaml(loaded.source, str(loaded.path))
    refusals = [_problem(finding, tree) for finding in findings if not finding.is_warning]
    if refusals:
        raise ProtocolError.from_problems(str(loaded.path), _in_order(refusals, str(loaded.path)))


def _problem(finding: Finding, tree: Tree) -> Problem:
    where = place(tree.source, line_of(tree.root, finding.path), finding.path)
    return Problem(where=where, message=finding.message, hint=finding.hint)


def _in_order(problems: Iterable[Problem], source: str) -> list[Problem]:
    """Sort by line; Python's sort keeps the order of problems of one line."""
    start = len(source) + 1
    return sorted(dict.fromkeys(problems), key=lambda problem: int(problem.where[start:].split(":")[0]))


def _read_requests(
    protocol: Protocol, folder: Path, findings: list[Finding], origins: dict[str, str]
) -> Iterable[tuple[str, bytes]]:
    """Yield each request body that can be read; what cannot is added to the findings, at the key that names it.

    `origins` gets the model that a body's token ids were frozen for, where that is known.
    """
    unsound = {finding.path for finding in findings if not finding.is_warning}
    seen: set[str] = set()
    for path, reference in _named_requests(protocol):
        if reference in seen or path in unsound:
            continue
        seen.add(reference)
        file = find_request(reference, folder)
        if file is None:
            message = f"the file {reference} is neither beside the protocol nor among the bundled requests"
            findings.append(Finding(path=path, message=message, hint="make it with assay protocol prompt"))
            continue
        try:
            if file.stat().st_size <= MAX_BODY_BYTES:
                body = file.read_bytes()
                origin = _origin(file, body)
                origins |= {} if origin is None else {reference: origin}
                yield reference, body
                continue
            message = f"the file {reference} is larger than {MAX_BODY_BYTES} bytes"
        except OSError as error:
            message = f"the file {reference} cannot be read: {error.strerror or error}"
        findings.append(Finding(path=path, message=message))


def _is_bundled(file: Path | None) -> bool:
    return file is not None and file.resolve().parent == PACKAGE / "requests"


def _origin(file: Path, body: bytes) -> str | None:
    """Return the model whose token ids a request holds: of a bundled one it is known, else a file beside it says so."""
    if not holds_ids(body):
        return None
    if _is_bundled(file):
        return BUNDLED_MODEL
    beside = file.with_name(file.name + SUFFIX)
    try:
        with beside.open("rb") as content:
            return parse_origin(content.read(MAX_BYTES), body)
    except OSError:
        return None  # a request of before, or of another tool


def _named_requests(protocol: Protocol) -> Iterable[tuple[tuple[PathPart, ...], str]]:
    """Yield each key that names a request file, with the name."""
    for index, workload in enumerate(protocol.workloads):
        yield ("workloads", index, "request"), workload.request
        if workload.warmup is not None:
            yield ("workloads", index, "warmup", "request"), workload.warmup.request
    for index, diagnostic in enumerate(protocol.diagnostics):
        yield ("diagnostics", index, "request"), diagnostic.request


def find_request(reference: str, folder: Path) -> Path | None:
    """Return the file that a protocol in `folder` means: beside the protocol first, then among the bundled requests."""
    for base in (folder, PACKAGE, PACKAGE / "requests"):
        file = base / reference
        if is_file(file):
            return file
    return None


def library_names() -> tuple[str, ...]:
    """Return the names of the bundled protocols."""
    return tuple(sorted(file.stem for file in LIBRARY.glob("*.yaml")))


def library_protocol(name: str) -> Path:
    """Return the file of a bundled protocol. ProtocolError, with the nearest name, where there is none."""
    if name in library_names():
        return LIBRARY / f"{name}.yaml"
    near = nearest(name, library_names())
    hint = f"write {near}" if near else "give the path of a protocol file"
    names = ", ".join(library_names())
    raise ProtocolError(f"there is no bundled protocol {name}, expected one of {names}", hint=hint)


def find_protocol(name_or_path: str) -> Path:
    """Return the file of a bundled protocol's name, or the file at a path. A path wins where it looks like one."""
    path = Path(name_or_path)
    if "/" in name_or_path or name_or_path.endswith((".yaml", ".yml")):
        if is_file(path):
            return path
        raise ProtocolError("the protocol file does not exist", where=name_or_path)
    return library_protocol(name_or_path)
