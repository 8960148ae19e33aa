"""Attacks on a server with a page cache, each class in a module of its own; tests/attacks.py runs them."""
