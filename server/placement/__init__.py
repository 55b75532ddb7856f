"""Which worker holds which model: pure."""
