"""What is promised: schema, lock, schedule, metric definitions, statistics, gates and verdicts, all pure."""
