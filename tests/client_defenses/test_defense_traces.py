"""Every function of a defense gives what it gave, with each setting changed: two rounds on a small network.

After a change that is meant: scripts/keep_traces.py, and the difference of tests/golden/traces says what changed.
"""

from copy import deepcopy

import pytest
import torch
from torch import nn

import client_defenses
from client_defenses import Memory, contracts
from client_defenses.base import beyond_messages
from client_defenses.contracts import odd_message
from client_defenses.tools import evaluator, per_example
from client_defenses.tools.decoder import Decoder
from fl_app.core.local import Step
from helpers import small_scenes as small
from helpers.traces import check, traced

SPECS = {
    "bido": ["bido", "bido(lambda_x=0.5)", "bido(lambda_y=0.7)", "bido(layers=['0', '3'])", "bido(kernel='gaussian')"],
    "bido-2": ["bido(sigma=2.0)", "bido(sigma='median')", "bido(normalized=False)", "bido(lambda_x=0, lambda_y=0)"],
    "dp_gaussian": ["dp_gaussian", "dp_gaussian(scale=0.3)", "dp_gaussian(clip=0.1)"],
    "dp_laplace": ["dp_laplace", "dp_laplace(scale=0.3)", "dp_laplace(clip=0.1)"],
    "dp_sgd": ["dp_sgd", "dp_sgd(clip=0.2)", "dp_sgd(noise=0.3)"],
    "drop_fedsgd": ["drop_fedsgd", "drop_fedsgd(p=0.4)", "drop_fedsgd(clip=0.2)", "drop_fedsgd(sigma=0.5)"],
    "fedem": ["fedem(steps=2)", "fedem(steps=3, rho_min=0.2, rho_max=0.5)", "fedem(steps=2, alpha=0.003)"],
    "fedem-2": ["fedem(steps=3, lr=2.0)", "fedem(steps=2, scope='sample')", "fedem(steps=2, batches=2)"],
    "fedem-3": ["fedem(steps=3, fused=True)", "fedem(steps=2, batches=1, scope='sample', fused=True)"],
    "gradient_dropout": ["gradient_dropout", "gradient_dropout(p=0.4)", "gradient_dropout(sigma=0.2)"],
    "gradient_dropout-2": ["gradient_dropout(p=0.5, sigma='match')"],
    "instahide": ["instahide", "instahide(k=2)", "instahide(c1=0.8)", "instahide(center=0.4)", "instahide(flip=False)"],
    "latent": ["latent_perturbation", "latent_perturbation(alpha=3.0)", "latent_perturbation(mu=0.2, sigma=0.5)"],
    "latent-2": ["latent_perturbation(noise='learned', pretrain_epochs=2, pretrain_batch=3)"],
    "latent-3": ["latent_perturbation(layer='1')", "latent_perturbation(over='sample', decoder_lr=0.1)"],
    "ldpm": ["ldpm", "ldpm(clip=0.1)", "ldpm(noise=0.1)"],
    "mask": ["mask", "mask(ratio=0.7)"],
    "mixup": ["mixup", "mixup(alpha=0.3)"],
    "ppfa": ["ppfa", "ppfa(budget=0.5)"],
    "prune": ["prune", "prune(ratio=0.3)", "prune(scope='tensor')", "prune(memory=True)"],
    "quantize": [
        "quantize",
        "quantize(bits=2)",
        "quantize(bits=1)",
        "quantize(bits=3, stochastic=True)",
        "quantize(memory=True)",
    ],
    "sign": ["sign", "sign(scale='none')", "sign(memory=True)"],
    "soteria": ["soteria", "soteria(ratio=0.3)", "soteria(layer='3')", "soteria(masks='batch')", "soteria(probes=0)"],
    "soteria-2": ["soteria(variant='mixed', scale=0.1)", "soteria(probes=8)"],
    "chain": ["dp_sgd + prune(ratio=0.5, memory=True)", "mixup + fedem(steps=2) + soteria + sign"],
}
REFINER = {
    "refiner": ["", "alpha=0.2", "beta=0.1", "iterations=3", "warm_iterations=2, remember=1"],
    "refiner-2": ["tau=0.5", "eps=0.05", "lr=0.1", "backtrack=False", "relative=True, eps=0.3", "remember=2"],
}


def step_of(network, batch=4):
    _, task = small.scene(network)
    x, y = small.truth(1, batch)
    params = {name: value.detach() for name, value in task.model.named_parameters()}
    return Step(params, task.model, x[0], y[0])


def used(text):
    """All that a defense does in two rounds of two batches, on a message, and for attackers and accountants."""
    defense, memory, step = client_defenses.build(text), Memory.fresh(3), step_of(small.smooth)
    defense.on_start(step, memory)
    for _ in range(2):
        for batch in (step, step._replace(x=step.x[1:], y=step.y[1:])):
            defense.protect(batch, memory)
        memory.next_round()
    if not beyond_messages(defense):
        message = odd_message()
        for factor in (1.0, 1.0, 1e-5, 0.0):
            defense.transform({name: factor * value for name, value in message.items()}, memory)
        defense.expected(message)
    defense.noise_multiplier()
    if defense.noise_law() is not None:
        defense.before_noise(step, memory)


@pytest.mark.parametrize("name", SPECS)
def test_every_function_of_a_defense_gives_what_it_gave(name):
    check(f"defense-{name}", traced(lambda: [used(text) for text in SPECS[name]], "client_defenses/"))


def of_kind(dtype):
    """A step in another precision whose weights and images autograd tracks."""
    step = step_of(small.smooth)
    params = {name: value.to(dtype).requires_grad_() for name, value in step.params.items()}
    return Step(params, deepcopy(step.model).to(dtype), step.x.to(dtype).requires_grad_(), step.y)


@pytest.mark.parametrize("name", SPECS)
def test_types_and_graphs_within_a_defense_are_what_they_were(name):
    """In bfloat16 the numbers themselves differ from machine to machine."""

    def work(dtype):
        for text in SPECS[name]:
            defense, memory, step = client_defenses.build(text), Memory.fresh(3), of_kind(dtype)
            defense.on_start(step, memory)
            for _ in range(2):
                defense.protect(step, memory)
            if not beyond_messages(defense):
                defense.expected(odd_message(dtype))

    check(f"defense-{name}-double", traced(lambda: work(torch.float64), "client_defenses/"))
    check(f"defense-{name}-half", traced(lambda: work(torch.bfloat16), "client_defenses/", numbers=False))


@pytest.fixture(scope="session")
def network(tmp_path_factory):
    """A small evaluation network that has learnt a little."""
    path = tmp_path_factory.mktemp("network") / "d.safetensors"
    settings = evaluator.EvaluatorTraining(width=2, steps=3, batch_size=4)
    evaluator.save(evaluator.train(small.public(12).x, settings), path)
    return path


@pytest.mark.parametrize("name", REFINER)
def test_every_function_of_refiner_gives_what_it_gave(name, network):

    def work(step):
        for settings in REFINER[name]:
            defense = client_defenses.build(f"refiner({settings + ', ' if settings else ''}evaluator='{network}')")
            memory = Memory.fresh(3)
            for _ in range(3):
                defense.protect(step, memory)
                memory.next_round()

    check(f"defense-{name}", traced(lambda: work(step_of(small.smooth)), "client_defenses/"))
    check(f"defense-{name}-half", traced(lambda: work(of_kind(torch.bfloat16)), "client_defenses/", numbers=False))


class Tokens(nn.Module):
    """All layers that have a formula, one after the other; the linear ones see several positions."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.GroupNorm(2, 4)
        self.second = nn.Conv2d(4, 8, 3, stride=2, padding=1, dilation=1, groups=2)
        self.third = nn.Conv2d(8, 40, 3)
        self.embed, self.scale, self.out = nn.Linear(40, 6), nn.LayerNorm(6), nn.Linear(6, small.CLASSES, bias=False)

    def forward(self, x):
        x = self.third(self.second(self.norm(self.first(x)).relu()).relu())
        return self.out(self.scale(self.embed(x.flatten(2).transpose(1, 2))).tanh().mean(1))


@pytest.mark.parametrize("keep", [1, 2**22])
def test_every_function_of_clipped_sums_gives_what_it_gave(keep, monkeypatch):
    monkeypatch.setattr(per_example, "KEEP", keep)
    step = step_of(Tokens, 5)
    gated = step_of(small.gated, 5)
    rows = per_example.Rows("1", torch.tensor([3, 0, 7, 7, 1]))

    def work():
        for bound in (0.3, 1.0):
            per_example.clipped_sum(step, bound)
            per_example.by_vmap(step, bound)
            per_example.by_layers(gated, bound, rows)
            per_example.by_vmap(gated, bound, rows)

    check(f"clipped-{keep}", traced(work, "client_defenses/"))


def test_every_function_of_an_evaluator_gives_what_it_gave():
    images = small.public(12).x

    def work():
        for settings in ({}, {"decay": False, "stark": 0.0}, {"levels": 3, "lr": 0.1, "seed": 4}):
            one = evaluator.train(images, evaluator.EvaluatorTraining(width=2, steps=4, batch_size=5, **settings))
            one(images)
            evaluator.noise_error(one, images)
        evaluator.train((255 * images).byte(), evaluator.EvaluatorTraining(width=2, steps=2, batch_size=5))

    check("evaluator", traced(work, "client_defenses/"))


@pytest.mark.parametrize("text", ["none", "sign(memory=True)", "dp_gaussian", "fedem(steps=1)"])
def test_every_function_of_the_contracts_gives_what_it_gave(text, monkeypatch):
    monkeypatch.setattr(contracts, "HUGE", 1000)
    work = [lambda contract=contract: contract(client_defenses.build(text)) for contract in contracts.CONTRACTS.values()]
    parts = ("client_defenses/contracts", "client_defenses/base", "fl_app/core/contracts")
    check(f"contracts-{text.partition('(')[0]}", traced(lambda: [one() for one in work], *parts))


@pytest.mark.parametrize(
    ("latent", "image", "kernel", "stride"),
    [
        ((4, 3, 5), (1, 19, 24), (5, 6), (2, 2)),
        ((4, 6, 4), (3, 7, 9), (2, 3), (1, 2)),
        ((2, 2, 9), (1, 21, 14), (3, 1), (3, 1)),
    ],
)
def test_the_last_layer_of_a_decoder_makes_the_size_right_along_each_side(latent, image, kernel, stride):
    decoder = Decoder(latent, image)
    assert (decoder.net[-1].kernel_size, decoder.net[-1].stride) == (kernel, stride)
    assert decoder(torch.zeros(2, *latent)).shape == (2, *image)
