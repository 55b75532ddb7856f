"""What trials have learned, kept as files."""
