"""When to run, how many rows, which models: pure decisions."""
