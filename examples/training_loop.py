"""A training loop on omniq.data.DataLoader: two workers, stopped in the middle, gone on at the exact sample.

    python examples/training_loop.py

The model is a linear classifier in NumPy. With torch installed, the same data trains one of torch's as well.
"""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
from loguru import logger

from omniq.data import DataLoader

logger.disable("omniq")

CLASSES, SIDE, RATE = 4, 32, 0.05


class Stripes:
    """Noisy images: which quarter is bright is the label. No two epochs have the same noise."""

    def __len__(self) -> int:
        return 512

    def __getitem__(self, index: int) -> dict[str, Any]:
        label = index % CLASSES
        image = np.random.normal(0, 1, (SIDE, SIDE)).astype(np.float32)
        image[label * SIDE // CLASSES : (label + 1) * SIDE // CLASSES] += 1
        return {"image": image, "label": label}


def new_loader(**options: Any) -> DataLoader:
    return DataLoader(Stripes(), batch_size=32, shuffle=True, num_workers=2, **options)


def step(weights: np.ndarray[Any, Any], batch: dict[str, Any]) -> float:
    """One step of gradient descent; gives the loss before it."""
    images, labels = batch["image"].reshape(-1, SIDE * SIDE), batch["label"]
    scores = images @ weights
    scores -= scores.max(axis=1, keepdims=True)
    chances = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    loss = -np.log(chances[np.arange(len(labels)), labels]).mean()
    chances[np.arange(len(labels)), labels] -= 1
    weights -= RATE * images.T @ chances / len(labels)
    return float(loss)


def train(
    epochs: int, stop_at: Callable[[int, int], bool] = lambda epoch, nth: False
) -> tuple[Any, str, list[float]]:
    """Weights, the loader's state as text, and the mean loss of each epoch."""
    weights, losses = np.zeros((SIDE * SIDE, CLASSES), np.float32), []
    with new_loader(seed=7) as loader:
        for epoch in range(epochs):
            seen = []
            for nth, batch in enumerate(loader):
                seen.append(step(weights, batch))
                if stop_at(epoch, nth):
                    return weights, json.dumps(loader.state_dict()), losses
            losses.append(float(np.mean(seen)))
    print("one line says who waits for whom:", "bottleneck" in str(loader.statistics))
    return weights, json.dumps(loader.state_dict()), losses


def go_on(weights: np.ndarray[Any, Any], state: str, epochs: int) -> None:
    with new_loader() as loader:
        loader.load_state_dict(json.loads(state))
        while loader.epoch < epochs:
            for batch in loader:
                step(weights, batch)


def train_with_torch() -> None:
    try:
        import torch
    except ImportError:
        print("torch is not installed; NumPy did it all")
        return
    model = torch.nn.Linear(SIDE * SIDE, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    losses = []
    with new_loader(seed=7, to_torch=True) as loader:
        for _ in range(3):
            total = 0.0
            for batch in loader:
                loss = torch.nn.functional.cross_entropy(model(batch["image"].flatten(1)), batch["label"])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.item()
            losses.append(total)
    print("with torch the loss falls:", losses[-1] < losses[0])


def main() -> None:
    whole, _, losses = train(3)
    print("the loss falls:", losses[-1] < losses[0])
    weights, state, _ = train(3, stop_at=lambda epoch, nth: (epoch, nth) == (1, 5))
    print("stopped after 6 of 16 batches of epoch 1:", json.loads(state)["position"]["samples"] == 6 * 32)
    go_on(weights, state, epochs=3)
    print("the same weights as without the stop:", bool((weights == whole).all()))
    train_with_torch()


if __name__ == "__main__":
    main()
