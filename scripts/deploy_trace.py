"""The client app, with a note of when each training message was worked on; `bench_deploy.py` gives it to the clients."""

import json
import os
import time
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fl_app.client_app import app as inner

TRACES = "THORNS_TRACES"
"""Names the folder that takes the notes."""


def process_began() -> float:
    """When this process was started, in seconds since the epoch (Linux)."""
    ticks = float(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    return time.time() - uptime + ticks / os.sysconf("SC_CLK_TCK")


class Traced(ClientApp):
    """Calls our client app."""

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer, and write down when."""
        began = time.time()
        reply = inner(message, context)
        if message.metadata.message_type == "train":
            line = {
                "round": message.content.config_records["config"]["server-round"],
                "process": process_began(),
                "began": began,
                "ended": time.time(),
            }
            with (Path(os.environ[TRACES]) / f"{context.node_config['partition-id']}.jsonl").open("a") as out:
                out.write(json.dumps(line) + "\n")
        return reply


app = Traced()
