"""Eviction rules, one a file; their contract is `server.cache.rule`."""
