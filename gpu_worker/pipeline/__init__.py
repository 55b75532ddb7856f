"""A batch on its way: rows → decoded pieces → forward passes → one answer."""
