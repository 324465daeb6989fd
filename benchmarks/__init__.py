"""Measures OmniQ beside other task queues and beside the raw limit of its stores: `python -m benchmarks.run`.

run         what people call: which systems, which measures, how many rounds
bench       folders and processes for one sample
measures    what is measured, and how one sample of it is taken
systems/    one file for each system; a new store or peer is a new file
child       what runs in the processes that are measured
report      from samples to tables, ratios and goals
"""
