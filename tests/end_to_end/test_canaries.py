"""Planted images, labels and gradients: a run says them to nobody, whatever the defense and however much is logged.

What clients are there to send, the arrays of their replies, is exempt, and so are the weights made of them and the captures,
which are the server's keeping just that.
"""

import logging
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Context, RecordDict
from PIL import Image

import client_defenses
from client_defenses import Chain, Defense
from client_defenses.base import overrides
from client_defenses.recup import RecUP
from client_defenses.tools.evaluator import Evaluator, EvaluatorFacts, EvaluatorTraining, build_network, save
from fl_app.client_app import app
from fl_app.core.local import local_update
from fl_app.engines.grpc.local import Local, run_local
from fl_app.engines.inline import InlineGrid
from fl_app.engines.serving import serve
from fl_app.engines.watcher import Watcher
from fl_app.experiment.assets import assets_of
from fl_app.models import parameters_of
from fl_app.store.files import RunFailed

PIXELS = np.array([201, 3, 117, 44, 250, 9, 88, 163, 31, 240, 5, 142], dtype=np.uint8)
NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?", re.IGNORECASE)
DEFENSES = [
    "none",
    "gradient_dropout(p=0.8) + prune(ratio=0.5, memory=True)",
    "dp_sgd(noise=0.1)",
    "mixup + sign",
    "fedem(steps=2)",
    "bido",
    "soteria(probes=4)",
    "latent_perturbation(noise='learned', pretrain_epochs=1)",
    "refiner(iterations=2)",
    "instahide",
]
HOOKS = ("on_start", "on_batch", "gradient", "transform", "on_gradient")
EXEMPT = ("captures", "checkpoint.safetensors", "clients")


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """Three classes of images, in each of which one row of pixels is the canary."""
    root, draw = tmp_path_factory.mktemp("planted"), np.random.default_rng(1)
    for name in ("ada", "bob", "cyd"):
        for split, number in (("train", 24), ("test", 4)):
            folder = root / split / name
            folder.mkdir(parents=True)
            for i in range(number):
                pixels = draw.integers(0, 255, (12, 12, 3), dtype=np.uint8)
                pixels[4] = PIXELS[:, None]
                Image.fromarray(pixels).save(folder / f"{i:02d}.png")
    return root


def canaries_of(experiment):
    """Name -> what must not be found, as a sequence of numbers: of the first client's first round."""
    assets = assets_of(experiment.changed(defense="none"))
    x, y = assets.batch(0, 1)
    grads = local_update(assets.model, parameters_of(assets.model), x, y, experiment.rule)
    largest = max(grads, key=lambda name: float(grads[name].abs().max()))
    return {
        "pixels": PIXELS[:6].astype(float),
        "labels": y.numpy().astype(float),
        **{f"gradient of {name}": value.flatten()[:6].double().numpy() for name, value in grads.items() if value.numel() > 5},
        "largest entry": grads[largest].flatten()[grads[largest].abs().argmax()].double().numpy()[None],
    }


def found_in(text, canaries):
    """The canaries that a text tells, in whatever scale, to three digits."""
    words = NUMBER.findall(text)
    numbers = np.array([float(word) for word in words])
    told = []
    for name, canary in canaries.items():
        if len(canary) == 1:
            close = np.abs(numbers / canary - 1) < 1e-5
            hit = any(len(re.sub(r"e.*|[^\d]", "", words[i])) > 5 for i in np.flatnonzero(close))
        elif len(numbers) < len(canary):
            hit = False
        else:
            windows = np.lib.stride_tricks.sliding_window_view(numbers, len(canary))
            if name == "labels":
                hit = bool((windows == canary).all(1).any())
            else:
                sizes = np.linalg.norm(windows, axis=1) * np.linalg.norm(canary)
                hit = bool((np.abs(windows @ canary) > (1 - 1e-4) * sizes)[sizes > 0].any())
        told += [name] * hit
    return told


class Listener(InlineGrid):
    """Keeps what clients reply beside their arrays, as text."""

    def __init__(self, *args):
        super().__init__(*args)
        self.heard, self.kinds = [], set()

    def _answer(self, message):
        reply = super()._answer(message)
        self.kinds.add(message.metadata.message_type)
        if reply.has_error():
            self.heard.append(reply.error.reason)
            return reply
        for name, record in reply.content.items():
            if isinstance(record, ArrayRecord):
                sent = message.content.array_records["arrays"]
                assert record.keys() == sent.keys(), "an array that nobody asked for"
                assert [value.shape for value in record.values()] == [value.shape for value in sent.values()]
            self.heard.append(f"{name} {list(record) if isinstance(record, ArrayRecord) else dict(record)}")
        return reply


def told_by(experiment, caplog, capfd):
    """All that a run says: logs of every level, output, files, and replies without their arrays."""
    grid = Listener(app, experiment.clients, experiment.run_config())
    caplog.set_level(logging.DEBUG)
    for name in ("thorns", "flwr"):
        caplog.set_level(logging.DEBUG, name)
    said, place = "", Path(experiment.run_dir)
    try:
        serve(grid, Context(1, 0, {}, RecordDict(), experiment.run_config()), Watcher())
        assert "query.save" in grid.kinds
    except RunFailed as failure:  # no client answered: what is said of that counts, too
        said = str(failure)
    assert {"train", "query.identify"} <= grid.kinds
    out, err = capfd.readouterr()
    files = [path for path in place.rglob("*") if path.is_file() and path.relative_to(place).parts[0] not in EXEMPT]
    assert {path.name for path in files} >= {"experiment.toml", "metrics.jsonl"}
    for path in files:
        assert PIXELS.tobytes() not in path.read_bytes()
    return "\n".join([caplog.text, out, err, said, *grid.heard, *(path.read_text() for path in files)])


def planted_run(small, planted, defense):
    if defense.startswith("refiner"):  # with a network that has learnt nothing
        path = planted / "untrained.safetensors"
        facts = EvaluatorFacts(shape=(3, 12, 12), training=EvaluatorTraining(width=4))
        save(Evaluator(build_network(facts.shape, 4), facts), path)
        defense = defense.replace(")", f", evaluator='{path}')")
    return small.changed(
        dataset=f"imagefolder(path='{planted}', size=12)",
        defense=defense,
        batch_size=8,
        rounds=2,
        eval_every=1,
        capture="all",
    )


def test_every_kind_of_hook_is_listened_to():
    def used(defenses):
        return {hook for defense in defenses for hook in HOOKS if overrides(defense, hook)}

    listed = [client_defenses.build(text) for text in DEFENSES]
    # RecUP-FL needs rows of a table, and these are images.
    known = [kind for kind in client_defenses.DEFENSES.values() if isinstance(kind, type) and kind is not RecUP]
    everywhere = {hook for kind in known for hook in HOOKS if getattr(kind, hook) is not getattr(Defense, hook)}
    assert used(listed) >= everywhere
    assert any(isinstance(defense, Chain) for defense in listed)


@pytest.mark.parametrize("defense", DEFENSES)
def test_a_run_tells_no_example_label_or_gradient(small, planted, defense, caplog, capfd):
    experiment = planted_run(small, planted, defense)
    text = told_by(experiment, caplog, capfd)
    assert "[ROUND 2/2]" in text  # the log was listened to
    assert "'num-examples': 8" in text  # and the replies
    assert found_in(text, canaries_of(experiment)) == []


def test_the_processes_of_a_deployment_tell_none_to_their_logs(small, planted, tmp_path, monkeypatch):
    monkeypatch.setenv("THORNS_DEBUG", "1")
    experiment = planted_run(small, planted, "prune(ratio=0.5, memory=True)").changed(clients=1)
    run_local(experiment, Watcher(), Local(logs=tmp_path / "logs"))
    text = "\n".join((tmp_path / "logs" / f"{name}.log").read_text() for name in ("superlink", "client-0"))
    assert "connected to" in text  # the client talks
    assert "PushMessages" in text  # and the SuperLink
    assert found_in(text, canaries_of(experiment)) == []
    kept = list((tmp_path / "run" / "clients").glob("node-0/*/latest.safetensors"))
    assert kept  # in the state folder alone, as it must


def test_a_client_that_fails_tells_none_either(small, planted, caplog, capfd, monkeypatch):
    """Libraries and defenses quote in their errors what they choke on."""

    def choke(self, step, memory):
        raise ArithmeticError(f"cannot work with {step.x[0, 0, 4].tolist()}, {step.y.tolist()}, {step.gradient()}")

    monkeypatch.setattr(client_defenses.NoDefense, "gradient", choke, raising=False)
    experiment = planted_run(small, planted, "none")
    text = told_by(experiment, caplog, capfd)
    assert "ArithmeticError at " in text
    assert found_in(text, canaries_of(experiment)) == []


@pytest.mark.parametrize("level", ["DEBUG", "INFO"])
def test_a_leak_would_be_found(small, planted, caplog, capfd, monkeypatch, level):
    experiment = planted_run(small, planted, "none")
    canaries = canaries_of(experiment)
    plain = type(assets_of(experiment)).batch

    def talkative(self, client, server_round):
        x, y = plain(self, client, server_round)
        if client == 0 and server_round == 1:
            logging.getLogger("thorns").log(getattr(logging, level), "batch %s of %s", x[0, 0, 4], y)
        return x, y

    monkeypatch.setattr(type(assets_of(experiment)), "batch", talkative)
    assert found_in(told_by(experiment, caplog, capfd), canaries) == ["pixels", "labels"]


def test_the_search_finds_what_is_there(small, planted):
    canaries = canaries_of(planted_run(small, planted, "none"))
    gradient = next(name for name in canaries if name.startswith("gradient"))
    for shown in (
        str(torch.tensor(canaries[gradient])),
        str(canaries[gradient].tolist()),
        ", ".join(f"{value:.5g}" for value in canaries[gradient]),
    ):
        assert found_in(f"round 1: 17 {shown} 3.5", canaries) == [gradient]
    assert found_in(f"loss {canaries['largest entry'][0]:.7g}", canaries) == ["largest entry"]
    assert found_in(str(PIXELS.tolist()), canaries) == ["pixels"]
    assert found_in("1 2 3 4 5 6 7 8 9 0.5 0.25", canaries) == []
