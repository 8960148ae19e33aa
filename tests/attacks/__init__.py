"""Attacks on a server with a page cache, each class in its own module; tests/test_attacks.py runs them."""
