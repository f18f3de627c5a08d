"""What may be said: facts with provenance, claims bound to gates, and renderers without arithmetic."""
