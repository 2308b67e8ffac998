"""Cedar files in, verdicts out. Knows nothing of runs or storage."""
