"""Rules of capacity: each a pure function of what it sees and what it remembers."""
