"""A module with a thread of its own: forking a process that has imported it would be dangerous."""

import threading

waiting = threading.Thread(target=threading.Event().wait, name="a-thread-of-an-import", daemon=True)
waiting.start()
