"""The checker: TLC on the specification's models, the replay of traces, and the schedules of the real threads.

Installed as `palimpsest_model_check`. It imports the package `palimpsest`; of that one only the command line
imports it, when asked for.
"""
