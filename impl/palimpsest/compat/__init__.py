"""Drop-in modules: upstream's names on this package's classes."""
