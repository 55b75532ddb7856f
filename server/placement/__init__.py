"""Which worker holds which model: decided by pure rules, carried out by `residency`."""
