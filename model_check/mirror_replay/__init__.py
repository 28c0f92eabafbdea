"""Replay of host mirror traces: each event of the code against the rules of `HostMirror.tla`."""
