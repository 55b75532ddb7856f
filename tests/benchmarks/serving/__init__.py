"""`make bench-serving`: ours beside the servers that people use, each in an environment of its own."""
