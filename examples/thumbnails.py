"""Thumbnails in processes: work that keeps a CPU busy, many files, one progress bar.

    python examples/thumbnails.py

Each body runs in a process, so all CPUs work and none of them stops the worker's event loop. A body that
crashes its process, as image libraries can, takes nobody along. The picture format here is plain PPM, so
that the example needs no image library; with Pillow the body would be two lines.
"""

import tempfile
from pathlib import Path

from loguru import logger

from omniq import OmniQ

logger.disable("omniq")

folder = tempfile.TemporaryDirectory()
q = OmniQ(f"sqlite:///{Path(folder.name) / 'jobs.db'}")


@q.task(executor="process", queue="pictures", timeout=60, max_retries=1, give_up_on=ValueError)
def shrink(source: str, target: str, factor: int = 8) -> tuple[int, int]:
    """Take every `factor`th pixel of a PPM file."""
    head, size, depth, pixels = Path(source).read_bytes().split(b"\n", 3)
    if head != b"P6":
        raise ValueError(f"{Path(source).name} is no picture")
    width, height = map(int, size.split())
    rows = [pixels[y * width * 3 : (y + 1) * width * 3] for y in range(0, height, factor)]
    small = [b"".join(row[x * 3 : x * 3 + 3] for x in range(0, width, factor)) for row in rows]
    wide, high = -(-width // factor), len(small)
    Path(target).write_bytes(b"P6\n%d %d\n%s\n" % (wide, high, depth) + b"".join(small))
    return wide, high


def paint(path: Path, width: int, height: int) -> None:
    pixels = bytes((x * y + c) % 256 for y in range(height) for x in range(width) for c in range(3))
    path.write_bytes(b"P6\n%d %d\n255\n" % (width, height) + pixels)


def main() -> None:
    pictures = Path(folder.name)
    for n in range(6):
        paint(pictures / f"{n}.ppm", 160 + n, 120)
    (pictures / "notes.ppm").write_text("not a picture\n\n\n")
    calls = [
        shrink.call(str(path), str(path.with_suffix(".small.ppm"))) for path in sorted(pictures.glob("*.ppm"))
    ]
    with q, q.worker(concurrency=4):
        handles = q.enqueue_many(calls)
        results = q.gather(handles, timeout=60, return_exceptions=True)
    sizes = [one for one in results if not isinstance(one, Exception)]
    failures = [one for one in results if isinstance(one, Exception)]
    print(f"{len(sizes)} thumbnails, the first is {sizes[0][0]} by {sizes[0][1]}")
    print(f"{len(failures)} failed: {failures[0].error}")
    print(f"written: {len(list(pictures.glob('*.small.ppm')))}")


if __name__ == "__main__":
    with folder:
        main()
