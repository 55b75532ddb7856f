"""HTTP routes: decode, one call, encode."""
