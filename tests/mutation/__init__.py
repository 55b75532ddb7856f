"""Faults seeded into the core, one at a time: does a unit test notice? `make mutation`."""
