"""What a run has spent of the privacy that its defense promises."""

from client_defenses.tools.accounting import epsilon
from fl_app.experiment.assets import Assets

USUAL_DELTA = 1e-5


def spent(assets: Assets, server_round: int) -> dict[str, float]:
    """Epsilon after a round of the client with the least data; empty if the defense promises none."""
    experiment = assets.experiment
    if assets.defense.noise_multiplier() is None or server_round == 0:
        return {}
    found = epsilon(
        assets.defense,
        examples=min(len(share) for share in assets.shares),
        batch_size=experiment.batch_size,
        steps=server_round * experiment.local_steps,
        delta=experiment.delta or USUAL_DELTA,
        local_steps=experiment.local_steps,
        local_examples=experiment.local_examples,
        server_rounds=server_round,
    )
    return {"epsilon": found.as_drawn, "epsilon_if_sampled": found.sampled, "delta": found.delta}
