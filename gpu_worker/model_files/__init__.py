"""A model version's folder: what may lie in it, how it is read, how it is written."""
