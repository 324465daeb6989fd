"""What tests of pools ask about this process: exact, also where an earlier test's leavings go meanwhile."""

import os
import threading

from tests.pool.leftovers import Having


def test_what_goes_does_not_hide_what_comes() -> None:
    let_go = threading.Event()
    old_thread = threading.Thread(target=let_go.wait)
    old_thread.start()
    old_pipe, old_memory = os.pipe(), os.memfd_create("omniq")
    before = Having.now()

    let_go.set()
    old_thread.join()
    for descriptor in (*old_pipe, old_memory):
        os.close(descriptor)
    assert Having.now().beyond(before) == []

    end = threading.Event()
    new_thread = threading.Thread(target=end.wait)
    new_thread.start()
    new_pipe, new_memory = os.pipe(), os.memfd_create("omniq")
    found = Having.now().beyond(before)
    end.set()
    new_thread.join()
    for descriptor in (*new_pipe, new_memory):
        os.close(descriptor)
    assert sorted(one.split(":")[0] for one in found) == [*["descriptors"] * 3, "threads"]
