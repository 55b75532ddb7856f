"""The scheduler against simulated devices and arrivals. Pure."""
