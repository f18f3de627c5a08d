"""The evidence database: opening, durability, schema, and errors that say what to do.

SQLite by default; any other SQLAlchemy URL works for writing, since nothing but the pragmas is SQLite's. WAL lets
readers go on while the recorder writes; ``synchronous=FULL`` makes a commit durable before it returns.
A read-only open changes nothing on the disk, not even a lock file beside the database.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, cast

from sqlalchemy import Connection, Engine, create_engine, event, insert, select, text
from sqlalchemy.exc import DatabaseError, IntegrityError, OperationalError
from sqlalchemy.pool import StaticPool

from protocols.errors import AssayError, EvidenceError, HostError
from recorder.files import Files
from recorder.migrations import create_schema, migrate
from recorder.row_blocks import RowBlocks
from recorder.tables import APPLICATION_ID, DERIVED, SCHEMA_VERSION, metadata

Row = Mapping[str, Any]
Rows = Mapping[str, Sequence[Row]]
"""Rows by table name."""

_LOCKED_HINT: Final = (
    "another program holds the database: close it, then run `assay resume`; the ledger has everything so far"
)
_REBUILD_HINT: Final = "it holds nothing of its own: it can be rebuilt from ledger and blobs"
_FULL_HINT: Final = "free space on that disk, then run `assay resume`: what was recorded so far is safe"


class Database:
    """One database of derived rows. Not for several threads at once."""

    def __init__(self, engine: Engine, *, place: str, files: Files, is_read_only: bool) -> None:
        self.engine: Final = engine
        self.place: Final = place
        self.is_read_only: Final = is_read_only
        self._files: Final = files
        self._resources: Final = ExitStack()

    @classmethod
    def open(cls, path: Path, *, files: Files | None = None, busy_ms: int = 5000) -> Database:
        """Open (or make) the SQLite file for writing and make sure that the schema is ours.

        Raises `HostError` where the disk or another program is in the way, `EvidenceError` if the file is no database
        of this kind or of another schema version.
        """
        database = cls(
            _sqlite_engine(f"file:{_quoted(path)}", busy_ms=busy_ms, is_read_only=False),
            place=str(path),
            files=files or Files(),
            is_read_only=False,
        )
        database._prepare_sqlite()
        return database

    @classmethod
    def open_url(cls, url: str, *, files: Files | None = None) -> Database:
        """Open a database by its SQLAlchemy URL (PostgreSQL, for example) for writing."""
        engine = create_engine(url)
        database = cls(
            engine, place=engine.url.render_as_string(hide_password=True), files=files or Files(), is_read_only=False
        )
        with database.transaction() as connection:
            migrate(connection)
        return database

    @classmethod
    def open_read_only(cls, path: Path, *, is_live: bool = False) -> Database:
        """Open the SQLite file for reading, without changing anything on the disk.

        ``is_live`` says that a recorder has it open: then its write-ahead log is shared. After a crash the log is left
        over, and reading it needs a writable folder: both files are copied to a temporary one. So is a database of an
        older schema, and the copy is migrated. Else the file is read as immutable.
        """
        log = path.with_name(path.name + "-wal")
        resources = ExitStack()
        with database_errors(str(path)):
            if not path.is_file():
                raise EvidenceError("the database is missing", where=str(path), hint=_REBUILD_HINT)
            address = f"file:{_quoted(path)}?mode=ro"
            has_log = log.exists() and log.stat().st_size > 0
            is_old = not is_live and _is_of_an_older_schema(path)
            if not is_live and (has_log or is_old):
                folder = Path(resources.enter_context(tempfile.TemporaryDirectory(prefix="assay-audit-")))
                for source in (path, log) if has_log else (path,):
                    shutil.copyfile(source, folder / source.name)
                if is_old:
                    cls.open(folder / path.name).close()
                address = f"file:{_quoted(folder / path.name)}"
            elif not is_live:
                address += "&immutable=1"
        engine = _sqlite_engine(address, busy_ms=5000, is_read_only=True)
        database = cls(engine, place=str(path), files=Files(), is_read_only=True)
        database._resources.push(resources)
        return database

    def _prepare_sqlite(self) -> None:
        with database_errors(self.place), self.engine.connect() as connection:
            application = connection.scalar(text("PRAGMA application_id"))
            version = connection.scalar(text("PRAGMA user_version"))
            is_empty = connection.scalar(text("SELECT count(*) FROM sqlite_master")) == 0
        if is_empty:
            with self.transaction() as connection:
                connection.execute(text(f"PRAGMA application_id = {APPLICATION_ID}"))
                connection.execute(text(f"PRAGMA user_version = {SCHEMA_VERSION}"))
                create_schema(connection)
        elif application != APPLICATION_ID:
            raise EvidenceError("this is another program's database", where=self.place)
        elif 1 <= version < SCHEMA_VERSION:
            with self.transaction() as connection:
                migrate(connection)
        elif version != SCHEMA_VERSION:
            raise EvidenceError(
                f"the schema version is {version}, this Assay writes {SCHEMA_VERSION}",
                where=self.place,
                hint="use the Assay that wrote it, or rebuild the database from the ledger",
            )

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Run the block in one transaction: all of it is durable at the end, or none of it happened."""
        with database_errors(self.place), self.engine.connect() as connection:
            transaction = connection.begin()
            try:
                yield connection
                self._files.commit(transaction.commit)
            except BaseException:
                if transaction.is_active:
                    transaction.rollback()
                raise

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Read one consistent state."""
        with database_errors(self.place), self.engine.connect() as connection, connection.begin():
            yield connection

    def insert(self, rows: Rows, connection: Connection) -> None:
        """Insert rows, tables that others refer to first."""
        for table in DERIVED:
            if not (found := rows.get(table.name)):
                continue
            if connection.dialect.name != "sqlite":
                connection.execute(insert(table), [dict(row) for row in found])
                continue
            # The driver alone takes rows four times as fast, and one at a time: a load may have millions.
            names = [column.name for column in table.columns]
            marks = ", ".join("?" * len(names))
            statement = f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({marks})"  # noqa: S608
            values = found.tuples(names) if isinstance(found, RowBlocks) else map(itemgetter(*names), found)
            connection.connection.cursor().executemany(statement, cast("Any", values))

    def last_seq(self) -> int:
        """Return the newest ledger entry that the rows cover; -1 for none."""
        entries = metadata.tables["ledger_entry"]
        with self.reading() as connection:
            newest = connection.scalar(select(entries.c.seq).order_by(entries.c.seq.desc()).limit(1))
        return -1 if newest is None else int(newest)

    def close(self) -> None:
        """Close; SQLite then folds its write-ahead log into the file."""
        self.engine.dispose()
        self._resources.close()


def _is_of_an_older_schema(path: Path) -> bool:
    """Whether a file is a database of ours that an older Assay wrote: both numbers stand in its header."""
    with path.open("rb") as file:
        header = file.read(100)
    version, application = int.from_bytes(header[60:64], "big"), int.from_bytes(header[68:72], "big")
    return len(header) == 100 and application == APPLICATION_ID and 1 <= version < SCHEMA_VERSION


def _quoted(path: Path) -> str:
    """Return a path as it stands in an SQLite URI."""
    text_path = str(path.absolute())
    return text_path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")


def _sqlite_engine(address: str, *, busy_ms: int, is_read_only: bool) -> Engine:
    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(
            address, uri=True, timeout=busy_ms / 1000, isolation_level=None, check_same_thread=False
        )
        try:
            if is_read_only:
                connection.execute("PRAGMA query_only = ON")
            else:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = FULL")
                connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("PRAGMA trusted_schema = OFF")
        except BaseException:
            connection.close()
            raise
        return connection

    engine = create_engine("sqlite://", creator=connect, poolclass=StaticPool)

    def begin(connection: Connection) -> None:
        # The driver's own implicit BEGIN would start a read transaction and fail later, in the middle.
        connection.exec_driver_sql("BEGIN" if is_read_only else "BEGIN IMMEDIATE")

    event.listen(engine, "begin", begin)
    return engine


@contextmanager
def database_errors(place: str) -> Iterator[None]:
    """Turn database errors of the block into `HostError` (the host's fault) or `EvidenceError` (the file's)."""
    try:
        yield
    except AssayError:
        raise
    except (DatabaseError, sqlite3.DatabaseError) as error:
        cause = getattr(error, "orig", None) or error
        message = str(cause)
        if isinstance(error, IntegrityError | sqlite3.IntegrityError):
            raise EvidenceError(f"the database refuses a row: {message}", where=place) from error
        if isinstance(error, OperationalError | sqlite3.OperationalError) and "no such" not in message:
            hint = _LOCKED_HINT if "locked" in message else "mend the cause, then run `assay resume`"
            hint = _FULL_HINT if "full" in message else hint
            raise HostError(f"the database cannot be used: {message}", where=place, hint=hint) from error
        raise EvidenceError(f"the database is damaged: {message}", where=place, hint=_REBUILD_HINT) from error
    except UnicodeDecodeError as error:
        raise EvidenceError("the database holds text that is not UTF-8", where=place, hint=_REBUILD_HINT) from error
    except OSError as error:
        raise HostError(f"the database cannot be used: {error.strerror}", where=place, hint=_FULL_HINT) from error
