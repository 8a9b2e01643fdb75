"""Updates of real digits, attacks on them, and how close they come."""

import adversary
from adversary import Facts
from fl_app import data, models
from fl_app.core.local import LocalRule, local_update
from fl_app.core.observation import Observation, Task
from fl_app.core.space import Images

SHAPE = (1, 28, 28)


def seen_of(x, y, rule=None, model_text="lenet", **more):
    model = models.build(model_text, tuple(x.shape[2:]), 10, seed=3)
    params = models.parameters_of(model)
    rule = rule or LocalRule(batch_size=x.shape[1])
    seen = [
        Observation(
            params=params,
            update=local_update(model, params, a, b, rule),
            rule=rule,
            num_examples=len(a),
            server_round=1,
            client=i,
            **more,
        )
        for i, (a, b) in enumerate(zip(x, y, strict=True))
    ]
    return seen, Task(model, Images(tuple(x.shape[2:])), 10)


def digits(targets, examples, start=0):
    x, y = data.load("mnist").train.at(slice(start, start + targets * examples))
    return x.view(targets, examples, *SHAPE), y.view(targets, examples)


def psnr(a, b):
    return -10 * (a - b).square().flatten(2).mean(-1).log10()


def attack(what, seen, task, seed=0):
    """The answer of an attack, given as a spec or as an object."""
    return (adversary.build(what) if isinstance(what, str) else what)(seen, task, seed)


def informed(text, defense, **facts):
    """All that an attack becomes once it knows a defense."""
    return adversary.build(text).informed(defense, Facts(**facts))


def adapted(text, defense, **facts):
    """The first informed attack on a defense; None if nothing changes."""
    return next((one.attack for one in informed(text, defense, **facts) if one.attack is not None), None)
