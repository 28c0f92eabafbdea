"""What a change does to the protocol: `palimpsest diff BASE..HEAD`."""
