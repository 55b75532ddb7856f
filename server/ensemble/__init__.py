"""Which members answer, and how their answers combine: pure."""
