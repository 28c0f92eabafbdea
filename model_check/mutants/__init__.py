"""Mutants of the specification: small mistakes, each of which some property of some model must catch.

`syntax` reads modules, `rules` makes mutants of their syntax trees, `generator` says of which operators,
`catalogue` adds the mistakes that real systems made, `runner` lets TLC check them, `verdicts` keeps what came out.
"""
