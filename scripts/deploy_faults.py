#!/usr/bin/env python
"""Faults of a deployment over gRPC, done to real processes with TLS and node keys: what is expected, what is seen.

deploy_faults.py                                              # all, about six minutes on two cores
deploy_faults.py --only restarted-nodes --only closed-doors   # some
deploy_faults.py --markdown docs/results/deploy-faults.md     # also write the table
"""

import argparse
import logging
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from faults import doors, links, nodes, replies
from faults.stage import Row

from fl_app.experiment.config import Experiment

SCENARIOS: dict[str, Callable[[Experiment, Path], list[Row]]] = {
    "killed-node": nodes.killed_node,
    "restarted-nodes": nodes.restarted_nodes,
    "slow-node": nodes.slow_node,
    "hostile-replies": replies.hostile_replies,
    "link-with-database": links.with_database,
    "link-without-database": links.without_database,
    "closed-doors": doors.closed_doors,
}
PAGE = """# Faults of a deployment

Each fault was done to real processes on one machine: a SuperLink and {clients} SuperNodes on loopback with TLS and node keys
(unless the fault is their absence), {what}.
The defense keeps a memory between rounds, so a client that forgets gives other weights. "Weights" are compared to the last bit
with a run in one process that lacks the same replies. Seconds are those of the round in which the fault happens, or until a
client is back or has ended; they include waiting for the processor, which other work may have shared.

`{command}`

| fault | expected | as expected | seconds | what the log said |
|---|---|---|---|---|
{rows}
"""


def experiment() -> Experiment:
    """A small run whose clients remember."""
    return Experiment(model="lenet", clients=3, batch_size=4, eval_every=100, defense="prune(ratio=0.5, memory=True)")


def table(rows: list[Row]) -> str:
    """The rows as Markdown."""
    cells = [
        (row.fault, row.expected, "yes" if row.ok else f"**no**: {row.seen}", f"{row.seconds:.1f}", row.line or "-")
        for row in rows
    ]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=list(SCENARIOS), help="a scenario; may be repeated")
    parser.add_argument("--markdown", type=Path, help="write the table to this file")
    args = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    logging.getLogger("thorns").propagate = False
    run, rows = experiment(), []
    with tempfile.TemporaryDirectory(prefix="thorns-faults-", ignore_cleanup_errors=True) as text:
        for name in args.only or SCENARIOS:
            began = time.monotonic()
            try:
                found = SCENARIOS[name](run, Path(text) / name)
            except RuntimeError as error:  # a scenario that cannot be played is no reason to leave out the others
                found = [Row(name, "to be played", f"failed: {error}", "", time.monotonic() - began)]
            rows += [row._replace(line=row.line.replace(text, "...")) for row in found]
            print(
                f"{name}: {time.monotonic() - began:.0f} s, {sum(row.ok for row in found)} of {len(found)} as expected",
                flush=True,
            )
    print(table(rows))
    if args.markdown:
        command = "scripts/deploy_faults.py" + "".join(f" --only {name}" for name in args.only or [])
        what = f"{run.dataset}, {run.model}, batches of {run.batch_size}, `{run.defense}`"
        page = PAGE.format(clients=run.clients, what=what, command=command, rows=table(rows))
        args.markdown.write_text(page, encoding="utf-8")
    sys.exit(0 if all(row.ok for row in rows) else 1)


if __name__ == "__main__":
    main()
