"""What is measured of task queues; one file for each question."""
