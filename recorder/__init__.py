"""What happened: append-only evidence, and the audit that checks it. See README.md."""
