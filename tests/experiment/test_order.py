"""The grant of how a client shuffled its local steps."""

import pytest
import torch

from client_defenses import Memory
from fl_app import models
from fl_app.client_app import defended_update
from fl_app.core.local import local_update
from fl_app.experiment.assets import assets_of
from fl_app.experiment.grants import knowledge_of

STEPS = {"update": "delta", "local_steps": 4, "local_examples": 4, "batch_size": 2}


def test_the_granted_order_is_the_one_that_the_client_used(small):
    experiment = small.changed(**STEPS, local_shuffle=True)
    assets = assets_of(experiment)
    params = models.parameters_of(assets.model)
    order = knowledge_of(assets, ("order",), (2, 1), None).order
    assert order.shape == (4, 2)
    sent, _ = defended_update(assets, params, 1, 2, Memory.fresh(0))
    ours = local_update(assets.model, params, *assets.batch(1, 2), experiment.rule, order=order)
    assert all(torch.equal(sent[name], ours[name]) for name in sent)


@pytest.mark.parametrize(("settings", "client"), [(STEPS, 0), (STEPS | {"local_shuffle": True}, -1)])
def test_an_order_that_nobody_has_is_not_granted(small, settings, client):
    with pytest.raises(ValueError, match="the grant 'order' tells how single clients shuffled"):
        knowledge_of(assets_of(small.changed(**settings)), ("order",), (1, client), None)


def test_batches_of_several_sizes_have_no_order_to_grant(small):
    uneven = small.changed(**STEPS | {"local_examples": 3}, local_shuffle=True)
    with pytest.raises(ValueError, match="batches of one size"):
        knowledge_of(assets_of(uneven), ("order",), (1, 0), None)
