"""Attacks on a server with a page cache, each class in its own module; tests/attacks.py runs them."""
