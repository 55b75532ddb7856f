"""What the server says of itself: metrics, statistics, log lines."""
