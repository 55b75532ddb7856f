"""One file per step, each with one purpose."""
