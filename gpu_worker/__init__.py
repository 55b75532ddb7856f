"""The inference worker: synchronous, one process per device; no database, no HTTP."""
