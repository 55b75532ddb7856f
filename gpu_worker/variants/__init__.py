"""Other ways to run a stored model: made of its folder, into another one."""
