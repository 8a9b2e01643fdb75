"""`thorns train-generator`: make a generator for the attacks that search in one."""

from dataclasses import replace

from rich.console import Console

from adversary import generators
from adversary.learned.decoder_training import GeneratorTraining
from fl_app.attacking.generators import SMALL, ensure


def train_generator(
    console: Console,
    dataset: str,
    clients: str,
    *,
    part: str = "",
    split: str = "official",
    split_seed: int = 0,
    small: bool = False,
    gan: bool = False,
    steps: int | None = None,
    seed: int = 0,
) -> None:
    """Train unless it is there, say where it is and what it learned from, and print its ceiling."""
    training = SMALL if small else GeneratorTraining()
    training = replace(training, steps=steps or training.steps, seed=seed)
    training = replace(training, adversarial=training.steps if gan else 0)
    path = ensure(
        clients or dataset,
        public=dataset,
        part=part,
        split_text=split,
        seed=split_seed,
        small=small,
        training=training,
        console=console,
    )
    console.print(str(path), soft_wrap=True, highlight=False)
    kept = generators.load(str(path))
    found, facts = kept.ceiling, kept.facts
    half = 1.96 * found.std().item() / len(found) ** 0.5
    told = "knows their classes" if facts.design.classes else "knows no classes: these images have others"
    console.print(
        f"learned from {facts.data} and {told}; its ceiling, {len(found)} images held out and inverted in their pixels: "
        f"{found.mean():.1f} ± {half:.1f} dB",
        soft_wrap=True,
        highlight=False,
    )
    console.print(f"use it: --attack \"ggl(generator='{path.stem}')\"", soft_wrap=True, highlight=False)
