"""Profilers as receipts: tools that look at an engine after the timing, what they need, and what their files show."""
