"""Datasets for loaders: what is loaded, the same for every system. Imported in every worker."""

from __future__ import annotations

import io
import os
from typing import Any

import numpy as np


class Jpegs:
    """Pictures of 256 x 256, decoded by Pillow and cut to 224 x 224 x 3."""

    batch_size = 32

    def __init__(self, folder: str) -> None:
        from PIL import Image

        chance = np.random.default_rng(1)
        self.files = []
        for _ in range(64):
            small = chance.integers(0, 255, (16, 16, 3), np.uint8)
            file = io.BytesIO()
            Image.fromarray(small).resize((256, 256)).save(file, "jpeg", quality=85)
            self.files.append(file.getvalue())

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> Any:
        from PIL import Image

        picture = Image.open(io.BytesIO(self.files[index % len(self.files)])).convert("RGB")
        return np.asarray(picture)[16:240, 16:240]


class Small:
    """A little arithmetic on a little array."""

    batch_size = 64

    def __init__(self, folder: str) -> None:
        self.images = np.random.default_rng(1).integers(0, 255, (2048, 3, 32, 32), np.uint8)

    def __len__(self) -> int:
        return 65536

    def __getitem__(self, index: int) -> Any:
        image = self.images[index % len(self.images)].astype(np.float32)
        image -= 127.5
        image /= 127.5
        return image[:, :, ::-1].copy() if index % 2 else image


class Records:
    """Records of 16 KiB, read from a file."""

    batch_size = 64
    record_bytes = 16 * 1024

    def __init__(self, folder: str) -> None:
        self.path = os.path.join(folder, "records")
        if not os.path.exists(self.path):
            np.random.default_rng(1).integers(0, 255, 4096 * self.record_bytes, np.uint8).tofile(self.path)
        self.fd = -1
        self.owner = 0

    def __len__(self) -> int:
        return 16384

    def __getitem__(self, index: int) -> Any:
        if self.owner != os.getpid():
            self.fd, self.owner = os.open(self.path, os.O_RDONLY), os.getpid()
        data = os.pread(self.fd, self.record_bytes, index % 4096 * self.record_bytes)
        return np.frombuffer(data, np.uint8)


class Blocks:
    """Samples of 1 MiB in batches of 16 MiB: the transfer is the bottleneck."""

    batch_size = 16

    def __init__(self, folder: str) -> None:
        self.block = np.ones(2**20, np.uint8)

    def __len__(self) -> int:
        return 2048

    def __getitem__(self, index: int) -> Any:
        return self.block


SETS = {"jpeg": Jpegs, "small": Small, "records": Records, "blocks": Blocks}
