# ruff: noqa: E501 - the text of a source line is quoted as it is
"""Bugs to plant in the loader; `mutants.py` says how to read this."""

from tests.mutants.mutants import Mutant

LOADER_TESTS = "tests/data/test_loader.py"
FAULTS = "tests/data/test_loader_faults.py"
COLLATE_TESTS = "tests/data/test_collate.py"
PARTS = "tests/data/test_parts.py"
SOURCE = "data/source.py"
POSITION = "data/position.py"
PRODUCERS = "data/producers.py"

LOADER = [
    Mutant(
        "workers draw whatever comes",
        SOURCE,
        "            seeding.set_chance(seeding.seed_of(base, key, job.position + nth))\n",
        "",
        (LOADER_TESTS,),
        "stream_depends or belongs_to_the_sample",
    ),
    Mutant(
        "every epoch draws the same chance",
        "data/seeding.py",
        'f"{seed}/{epoch}/{lane}"',
        'f"{seed}/{lane}"',
        (LOADER_TESTS,),
        "iterable_dataset_is_the_same",
    ),
    Mutant(
        "every epoch has the same order",
        "data/seeding.py",
        'f"{seed}/{epoch}/order"',
        'f"{seed}/order"',
        (LOADER_TESTS,),
        "every_sample_comes_once_in_each_epoch",
    ),
    Mutant(
        "chance by position alone: two machines draw alike",
        "data/seeding.py",
        "    number = key if type(key) is int else key.__index__() if isinstance(key, SupportsIndex) else 0\n",
        "    number = 0\n",
        (LOADER_TESTS,),
        "two_machines",
    ),
    Mutant(
        "the caller's own chance is lost",
        "data/seeding.py",
        "        np.random.set_state(arrays)\n",
        "",
        (LOADER_TESTS,),
        "leaves_its_chance_alone",
    ),
    Mutant(
        "what was loaded ahead counts as read",
        PRODUCERS,
        "        self.position = self.position.after(self._asked.popleft())\n        return loaded\n",
        "        self.position = self.position.after(sum(self._asked))\n        self._asked.popleft()\n        return loaded\n",
        (LOADER_TESTS,),
        "not_counted_as_read",
    ),
    Mutant(
        "a resume begins its shuffled epoch anew",
        "data/sampling.py",
        "        order = permutation(seed, at.epoch, self.length)[at.samples :]\n",
        "        order = permutation(seed, at.epoch, self.length)\n",
        (LOADER_TESTS,),
        "goes_on_at_the_exact_sample",
    ),
    Mutant(
        "a failed batch does not count: a resume meets it again",
        PRODUCERS,
        "        except Exception:\n            self.position = self.position.after(self._asked.popleft())\n            raise\n",
        "        except Exception:\n            self._asked.popleft()\n            raise\n",
        (FAULTS,),
        "names_the_sample",
    ),
    Mutant(
        "a lane that is over has its turn again",
        POSITION,
        "        if not lanes[following].is_over:\n",
        "        if True:\n",
        (COLLATE_TESTS,),
        "turns_until",
    ),
    Mutant(
        "a new reader of a lane begins at its beginning",
        SOURCE,
        "        while self.position < job.position:\n",
        "        while False:\n",
        (LOADER_TESTS,),
        "so_does_one_of_an_iterable",
    ),
    Mutant(
        "a reader that stands elsewhere is used",
        SOURCE,
        "        if found is None or found.position != job.position:\n",
        "        if found is None:\n",
        (LOADER_TESTS,),
        "any_reader",
    ),
    Mutant(
        "a shard is read by whoever is free",
        "data/loader.py",
        'results = partial(runner.run, "read", ahead=ahead, sticky=True)',
        'results = partial(runner.run, "read", ahead=ahead, sticky=False)',
        (LOADER_TESTS,),
        "each_by_one",
    ),
    Mutant(
        "all shards go to one worker",
        "data/engine.py",
        "        found = min(ready, key=lambda worker: len(worker.streams), default=None)\n",
        "        found = max(ready, key=lambda worker: len(worker.streams), default=None)\n",
        (LOADER_TESTS,),
        "each_by_one",
    ),
    Mutant(
        "after a death one worker has all shards for ever",
        "data/engine.py",
        "        self._share_with(worker)\n",
        "",
        (FAULTS,),
        "gets_its_part",
    ),
    Mutant(
        "a row of a sample that failed stays in the batch",
        "data/collate.py",
        "        self._values[nth:] = [value]\n\n    def finish(self, count: int) -> Any:\n        array",
        "        self._values.append(value)\n\n    def finish(self, count: int) -> Any:\n        array",
        (COLLATE_TESTS,),
        "as_it_was",
    ),
    Mutant(
        "a number that does not fit is cast without a word",
        "data/collate.py",
        'not np.can_cast(array.dtype, self._dtype, "safe")',
        'not np.can_cast(array.dtype, self._dtype, "unsafe")',
        (COLLATE_TESTS,),
        "index_and_shapes",
    ),
    Mutant(
        "each worker has a copy of the dataset",
        "data/sharing.py",
        "        pickled, *buffers = (memory[offset : offset + size] for offset, size in self.places)\n",
        "        pickled, *buffers = (bytearray(memory[offset : offset + size]) for offset, size in self.places)\n",
        (FAULTS,),
        "d13",
    ),
    Mutant(
        "workers give their memory back after each sample",
        "data/inside.py",
        "    keep_memory()\n",
        "",
        (FAULTS,),
        "keep_memory",
    ),
    Mutant(
        "a sampler's error is swallowed",
        PRODUCERS,
        "            if self._broken is not None:\n",
        "            if False:\n",
        (FAULTS,),
        "a_sampler_that_fails",
    ),
    Mutant(
        "an arena grows into memory that nobody has reserved",
        "pool/reserved.py",
        "        size = min(_pages(limit_bytes), self.whole_bytes) - self.limit_bytes\n",
        "        size = _pages(limit_bytes) - self.limit_bytes\n",
        (PARTS,),
        "grows_within",
    ),
    Mutant(
        "a consumer that only works is told to add workers",
        "data/statistics.py",
        '        return "loader" if self.waiting > NOTICED else "consumer"\n',
        '        return "loader"\n',
        (COLLATE_TESTS,),
        "bottleneck",
    ),
]
