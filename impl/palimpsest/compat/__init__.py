"""Upstream names for what this package has, so that a user changes one import."""
