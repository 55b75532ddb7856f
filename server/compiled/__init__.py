"""Modules that decide, compiled by mypyc where they can be: the same lines, without the interpreter."""
