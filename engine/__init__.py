"""Builds, identifies, starts and talks to an inference engine: the bundled one or another.

Nothing here interprets what an engine answers: bytes and stamps go upward, and
whoever judges them lives in ``recorder`` and ``protocols``.
"""
