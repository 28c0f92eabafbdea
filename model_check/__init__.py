"""The checker: TLC on the specification's models, and the replay of traces.

Installed as `palimpsest_model_check`. It imports the package `palimpsest`; of that one only the command line
imports it, when asked for.
"""
