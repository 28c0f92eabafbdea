"""The reference model: run over paged blocks it agrees with a plain run, whatever the schedule."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from palimpsest.prefix_cache.interface import HIDDEN_KEY
from palimpsest.runners.reference import identity
from palimpsest.runners.reference.model import Decoder, ModelSize, PagedKV, Span
from palimpsest.runners.reference.outputs import AUDIO_KEY, PADDING, TEXT_KEY, LiveBuffers, output_values

SIZE = ModelSize()
CPU = torch.device("cpu")


def tokens(count: int, seed: int) -> torch.Tensor:
    return torch.randint(SIZE.vocabulary, (count,), generator=torch.Generator().manual_seed(seed))


def slots(*blocks: int) -> torch.Tensor:
    """The slots of blocks of 4."""
    return torch.cat([torch.arange(block * 4, block * 4 + 4) for block in blocks])


@pytest.mark.parametrize("cuts", [[12], [5, 7], [4, 4, 4], [1] * 12])
def test_chunks_over_scattered_blocks_give_what_a_plain_run_gives(cuts: list[int]) -> None:
    model, kv = Decoder(SIZE, 1, CPU), PagedKV(SIZE, 64, CPU)
    prompt, table = tokens(12, 2), slots(9, 0, 5)
    parts, start = [], 0
    for count in cuts:
        stop = start + count
        positions = torch.arange(start, stop)
        parts.append(model.paged(prompt[start:stop], positions, [Span(0, count, table[:stop])], kv))
        start = stop
    torch.testing.assert_close(torch.cat(parts), model.plain(prompt), atol=1e-5, rtol=0)


def test_a_request_hits_a_block_that_another_computes_in_the_same_step() -> None:
    model, kv = Decoder(SIZE, 1, CPU), PagedKV(SIZE, 64, CPU)
    prompt = tokens(10, 3)
    # The second request computes only positions 8 and 9; blocks 3 and 1 are the first one's.
    spans = [Span(0, 8, slots(3, 1)), Span(8, 10, torch.cat([slots(3, 1), slots(7)[:2]]))]
    hidden = model.paged(prompt, torch.arange(10), spans, kv)
    torch.testing.assert_close(hidden, model.plain(prompt), atol=1e-5, rtol=0)


def test_another_context_gives_other_values() -> None:
    model = Decoder(SIZE, 1, CPU)
    one, other = tokens(6, 4), tokens(6, 5)
    other[-1] = one[-1]
    difference = (model.plain(one)[-1] - model.plain(other)[-1]).abs().max()
    assert difference > 100 * 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_identities_are_exact_in_every_dtype(dtype: torch.dtype) -> None:
    model, live = Decoder(SIZE, 1, CPU), LiveBuffers(SIZE, 8, dtype, CPU)
    generations, positions = np.array([1, 70_000, 16_777_215]), np.array([0, 255, 4_097])
    views = live.overwrite(output_values(model, model.plain(tokens(3, 6))), generations, positions, 8)
    for key in live.keys:
        found = identity.read_tags(views[key.name][:3])
        assert np.array_equal(found, identity.tags(generations, positions, key.number))
        expected = np.stack([generations, positions, np.full(3, key.number)], axis=1)
        assert np.array_equal(identity.decode(found), expected)
        assert (views[key.name][3:] == PADDING).all()


def test_identities_that_do_not_fit_are_refused() -> None:
    with pytest.raises(OverflowError, match="below 16777216"):
        identity.tags(np.array([identity.IDENTITY_LIMIT]), np.array([0]), 1)


def test_damaged_identities_are_nobodys() -> None:
    assert identity.describe(np.array([0, 0, np.nan, 0, 0, 1, 2])) == "nobody"
    assert identity.describe(np.array([0, 1, 2, 0, 0, 9, 3])) == "generation 258, position 9, key 3"


def test_live_buffers_are_overwritten_in_place() -> None:
    model, live = Decoder(SIZE, 1, CPU), LiveBuffers(SIZE, 8, torch.float32, CPU)
    where = np.array([0]), np.array([0])
    first = live.overwrite(output_values(model, model.plain(tokens(1, 7))), *where, 8)
    kept = {name: rows.clone() for name, rows in first.items()}
    second = live.overwrite(output_values(model, model.plain(tokens(1, 8))), *where, 8)
    assert set(first) == {HIDDEN_KEY, TEXT_KEY, AUDIO_KEY}
    for name in first:
        assert first[name].data_ptr() == second[name].data_ptr()
        assert not torch.equal(first[name], kept[name])
