"""The conductor and the only command line: runs protocols, keeps hosts quiet, prints verdicts."""
