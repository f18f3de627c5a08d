"""The kinds of checks, one module each: what a protocol can say about it, and what its observation must show."""
