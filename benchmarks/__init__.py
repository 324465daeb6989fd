"""Measures OmniQ beside other task queues and beside the raw limit of its stores: `python -m benchmarks.run`.

run         what people call: which systems, which measures, how many rounds
bench       folders and processes for one sample
measures    what is measured of task queues, and how one sample of it is taken; pool_measures of process pools
systems/    one file for each system; a new store, pool or peer is a new file
child       what runs in the processes that are measured; pool_child in those that own a pool
report      from samples to tables, ratios and goals
"""
