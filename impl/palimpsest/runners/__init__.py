"""Runners that drive the prefix cache: the reference runner, and recipes for real ones."""
