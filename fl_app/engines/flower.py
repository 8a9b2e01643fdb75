"""Flower's own simulation in Ray, started in this process so that the command line can follow it."""

import logging
import math
import os
import tempfile
from pathlib import Path

import torch
from flwr.app import Context, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.serverapp import ServerApp
from flwr.simulation.run_simulation import _run_simulation
from flwr.supercore.constant import NOOP_FEDERATION_ID
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.supercore.telemetry import EventType

from fl_app.client_app import app
from fl_app.core.machine import cores, ray_address, wait_passively
from fl_app.engines import Main
from fl_app.engines.bundle import app_toml
from fl_app.experiment.toml import Value


def gpu_share(device: str, actors: int, gpus: int | None = None) -> float:
    """The part of a GPU for each actor: none on the CPU, else so much that all find room beside an attack worker's tenth."""
    there = torch.cuda.device_count() if gpus is None else gpus
    if device == "cpu" or not there:
        return 0.0
    together = -(-actors // there)  # on one GPU
    return math.floor(9000 / together) / 10000


def run_flower(clients: int, run_config: dict[str, Value], main: Main, workers: int = 0) -> None:
    """Simulate the clients in Flower's Ray actors, `workers` of them (0: one per core), and run `main` as the server."""
    client_cpus = cores() / workers if workers else 1
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # Actors share the cores: threads that spin while they wait made a small gradient take 44 ms instead of 11.
    wait_passively()
    gpus = gpu_share(str(run_config.get("device", "cpu")), min(clients, workers or cores()))
    server = ServerApp()
    server.main()(main)
    run = Run.create_empty(run_id=1)
    run.primary_task_id, run.federation_id = 1, NOOP_FEDERATION_ID
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, SUPERLINK_NODE_ID
    context = Context(run_id=1, node_id=SUPERLINK_NODE_ID, node_config={}, state=RecordDict(), run_config=run_config)
    with tempfile.TemporaryDirectory(prefix="thorns-") as folder:
        # Flower gives clients the config of an app directory: this one holds nothing else.
        (Path(folder) / "pyproject.toml").write_text(app_toml(run_config), encoding="utf-8")
        # Not `run_simulation`: it is deprecated and takes no run config.
        _run_simulation(
            num_supernodes=clients,
            exit_event=EventType.PYTHON_API_RUN_SIMULATION_LEAVE,
            server_app=server,
            # Not by its name: Flower then parses the file while our server parses specs in another thread, and CPython 3.11
            # fails now and then when two threads parse ("AST constructor recursion depth mismatch").
            client_app=app,
            server_app_context=context,
            app_dir=folder,
            is_app=True,
            run=run,
            backend_config={
                "client_resources": {"num_cpus": client_cpus, "num_gpus": gpus},
                "init_args": {
                    "address": ray_address(),
                    "include_dashboard": False,  # seconds at each start, for pages that nobody opens
                    "logging_level": logging.ERROR,
                    "log_to_driver": False,
                },
            },
        )
