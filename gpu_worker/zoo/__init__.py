"""Named architectures."""
