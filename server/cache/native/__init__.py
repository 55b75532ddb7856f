"""The store of kept answers in C. See README.md."""
