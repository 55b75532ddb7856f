"""What runs a model: one file for each runtime, all of them a `Network`."""
