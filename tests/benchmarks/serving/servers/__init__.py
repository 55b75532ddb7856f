"""One script per server, each run by the Python of its own environment."""
