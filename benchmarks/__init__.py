"""Measures OmniQ beside other task queues and beside the raw limit of its stores: `python -m benchmarks.run`.

run, guard  what people call: which systems, which measures, how many rounds; has it become slower?
plan        how much a run does; goals: what OmniQ promises
systems/    one file for each system; a new store, pool or peer is a new file
tasks/      what is measured of task queues; pools/ of process pools; data/ of data pools and loaders
harness/    folders, processes, servers and interpreters for one sample, and what runs in those processes
reports/    from samples to tables, ratios, goals and pictures
pins/       the versions of the peers
"""
