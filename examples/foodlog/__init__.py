"""A food log: photos of meals, the table that refers to them, and the questions SQL asks of it."""
