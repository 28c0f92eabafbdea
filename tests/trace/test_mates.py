"""The slots that change hands with a block, as `SlotOwnership!Claim` has them, also where one block goes to two."""

from __future__ import annotations

import numpy as np
import pytest

from palimpsest_model_check.replay.state import State

BLOCKS, SIZE = 5, 4


def mates(tenant: np.ndarray, slots: np.ndarray, tenants: np.ndarray) -> list[int]:
    """The specification's: unclaimed slots of touched blocks, whose tenant is none of the block's new ones."""
    given = {(slot // SIZE, owner) for slot, owner in zip(slots.tolist(), tenants.tolist(), strict=True)}
    touched = {block for block, _ in given}
    return [
        slot
        for slot in range(BLOCKS * SIZE)
        if slot // SIZE in touched and slot not in slots and tenant[slot] and (slot // SIZE, tenant[slot]) not in given
    ]


@pytest.mark.parametrize("seed", range(40))
def test_the_mates_of_a_claim_are_the_specifications(seed):
    chance = np.random.default_rng(seed)
    s = State({"num_blocks": BLOCKS, "block_size": SIZE, "budget_bytes": 0, "pages": 1})
    for _ in range(30):
        if chance.random() < 0.2:  # blocks are given out
            blocks = chance.choice(BLOCKS, chance.integers(1, 3), replace=False)
            s.give_back(blocks)
            s.tenant[s.slots_of(blocks)] = 0
        slots = chance.choice(BLOCKS * SIZE, chance.integers(1, 9), replace=False)
        tenants = chance.integers(1, 4, slots.size)
        expected = mates(s.tenant, slots, tenants)
        found = s.give(slots, tenants)
        assert found.tolist() == expected
        assert s.tenant[slots].tolist() == tenants.tolist()
        s.tenant[found] = 0
