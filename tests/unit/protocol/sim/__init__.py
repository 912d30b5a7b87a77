"""A network of the real protocol cores in one thread: every message, event and second is moved by the test."""
