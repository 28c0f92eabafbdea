"""`palimpsest demo`: serve requests through the cache with a small real model, and check every row."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch

from palimpsest.commands._common import command_parser, count, make_console, positive
from palimpsest.runners.reference import ReferenceRunner, Report, Request, RunnerSettings, mooncake, workload
from palimpsest.runners.reference.display import ServingProgress, report_table
from palimpsest.runners.reference.events import event_tag
from palimpsest.trace import MemorySink

_DTYPES = ("float32", "float64", "bfloat16", "float16")
_BUILTIN_REQUESTS = 400
_BUILTIN_BLOCKS = 96
#: KV blocks of a trace's run, as a multiple of what its largest request needs
_TRACE_POOL = 1.1

_DESCRIPTION = """\
Serves requests through the cache in threaded mode with a small real transformer, and compares every row that
is delivered with a recomputation without a cache and with the identity of the row that should have been
written. Exits with 1 when a row is wrong.

A trace's lengths are divided by 32 (a hash block of 512 tokens is 16 tokens, two KV blocks), and 400 ms of it
are one step. Each 8th request asks for two samples, so that prompts repeat within a step; each 10th client
leaves twice and comes back. In 3 of 4 steps with hits the prefetch thread is held until the next step is
saved, so that reads are pending while their blocks are reused."""


def add_parser(subparsers: Any) -> None:
    """Add `demo` and its options."""
    parser = command_parser(subparsers, "demo", "serve requests through the cache and check every row", _DESCRIPTION)
    parser.add_argument("--trace", type=Path, metavar="FILE", help="a request trace in Mooncake's format")
    parser.add_argument("--requests", type=positive, metavar="N", help="serve the first N requests")
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of the weights and the built-in workload (0)"
    )
    parser.add_argument("--blocks", type=positive, metavar="N", help="KV blocks of 8 tokens")
    parser.add_argument(
        "--samples-every", type=count, default=8, metavar="N", help="each Nth request asks for two samples (8; 0: none)"
    )
    parser.add_argument(
        "--leaves-every", type=count, default=10, metavar="N", help="each Nth client leaves twice (10; 0: none)"
    )
    parser.add_argument(
        "--held", type=int, choices=range(5), default=3, help="hold the prefetch in so many of 4 steps with hits (3)"
    )
    parser.add_argument("--dtype", choices=_DTYPES, default=_DTYPES[0], help="type of the saved rows (float32)")
    parser.add_argument("--device", default="cpu", help="where the model runs (cpu)")
    parser.add_argument("--trace-out", type=Path, metavar="FILE", help="write the protocol's events as NDJSON")
    parser.add_argument("--no-tlc", dest="tlc", action="store_false", help="replay the run's trace in process only")


def run(args: argparse.Namespace) -> int:
    """Serve the requests, show the table and the verdicts on the run's own trace; 0 when every row is right and
    every event accepted, 1 when not, 2 for a bad input."""
    from palimpsest.commands.replay import judge
    from palimpsest_model_check.errors import CheckError

    try:
        requests = load_requests(args)
        settings = make_settings(args, requests)
    except (OSError, ValueError) as error:
        print(f"palimpsest demo: {error}", file=sys.stderr)
        return 2
    sink = MemorySink(event_tag)
    report = _serve(requests, settings, sink)
    if args.trace_out is not None:
        args.trace_out.write_text("".join(sink.lines()), encoding="utf-8")
    try:
        accepted = judge([("this run", sink.config, sink.events)], make_console(), tlc=args.tlc)
    except CheckError as error:
        print(f"palimpsest demo: {error}", file=sys.stderr)
        return 2
    return 0 if report.right and accepted else 1


def load_requests(args: argparse.Namespace) -> list[Request]:
    """The workload that the options ask for."""
    if args.trace is None:
        requests = workload.builtin_workload(args.requests or _BUILTIN_REQUESTS, args.seed)
    else:
        requests = mooncake.load_trace(args.trace, args.requests)
    if not requests:
        raise ValueError(f"{args.trace} has no requests")
    return workload.with_departures(workload.with_parallel_samples(requests, args.samples_every), args.leaves_every)


def make_settings(args: argparse.Namespace, requests: list[Request]) -> RunnerSettings:
    """Settings that fit the workload: so few KV blocks that they are reused under pressure."""
    size = RunnerSettings.block_size
    largest = max(-(-request.total_tokens // size) for request in requests)
    blocks = args.blocks or max(int(largest * _TRACE_POOL), _BUILTIN_BLOCKS)
    if blocks < largest:
        raise ValueError(f"the largest request takes {largest} KV blocks, and there are {blocks}")
    return RunnerSettings(
        num_blocks=blocks,
        max_sequences=16 if args.trace is None else 32,
        max_tokens=256 if args.trace is None else 512,
        held=args.held,
        dtype=getattr(torch, args.dtype),
        device=args.device,
        seed=args.seed,
    )


def _serve(requests: list[Request], settings: RunnerSettings, sink: MemorySink) -> Report:
    console = make_console()
    try:
        with ServingProgress(console, len(requests)) as progress:
            report = ReferenceRunner(requests, settings, trace=sink, on_step=progress.show).run()
    finally:
        sink.close()
    console.print(report_table(report, len(sink.events)))
    for fault in report.verdict.faults:
        console.print(f"  {fault}", style="red", markup=False, highlight=False)
    return report
