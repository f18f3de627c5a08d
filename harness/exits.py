"""The exit codes that no error family carries; `assay --help` lists all."""

from __future__ import annotations

EXIT_OK = 0
EXIT_USAGE = 2
EXIT_EXECUTION = 5
EXIT_INTERRUPTED = 130
