"""How many workers, how many copies of which variant: capacity follows the load."""
