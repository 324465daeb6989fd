-- Schema version 1. Names begin with omniq_, so that the file may be the application's own database.
-- Moments are microseconds since 1970 (UTC); a lease is microseconds of the host's monotonic clock.

CREATE TABLE omniq_meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

CREATE TABLE omniq_task (
  seq              INTEGER PRIMARY KEY,   -- order of enqueueing
  id               TEXT    NOT NULL,
  func_path        TEXT    NOT NULL,
  payload          BLOB,                  -- NULL: too large for the row, see omniq_body
  queue            TEXT    NOT NULL,
  priority         INTEGER NOT NULL,
  eta              INTEGER,
  due              INTEGER NOT NULL,      -- eta, or when it was enqueued: what claims are ordered by
  expires_at       INTEGER,
  interval         REAL,
  timeout          REAL,
  max_retries      INTEGER NOT NULL,
  max_losses       INTEGER NOT NULL,
  unique_key       TEXT,
  headers          TEXT,                  -- JSON
  on_failure       TEXT    NOT NULL,
  result_ttl       REAL,
  status           INTEGER NOT NULL,      -- 0 pending, 1 running, 2 success, 3 failed, 4 cancelled
  epoch            INTEGER NOT NULL,
  attempts         INTEGER NOT NULL,
  losses           INTEGER NOT NULL,      -- deaths that it has to answer for
  suspicions       INTEGER NOT NULL,      -- deaths of a worker that ran others beside it
  owner            TEXT,
  cancel_requested INTEGER NOT NULL,
  error            TEXT,                  -- JSON
  progress         TEXT,                  -- JSON
  enqueued_at      INTEGER NOT NULL,
  started_at       INTEGER,
  finished_at      INTEGER,
  result           BLOB,                  -- NULL with a result_status of 2: too large, see omniq_result
  result_status    INTEGER,
  result_at        INTEGER,
  lease            INTEGER,
  boot             INTEGER,               -- the boot of the machine that the lease counts in
  claim_id         TEXT,
  isolates         INTEGER NOT NULL,      -- while it runs: its worker would run it alone after a death
  prune_at         INTEGER,
  first_content    BLOB                   -- digest of the call before it was replaced
);

CREATE UNIQUE INDEX omniq_task_id ON omniq_task (id);
CREATE INDEX omniq_task_waiting ON omniq_task (queue, priority, due, seq) WHERE status = 0;
CREATE INDEX omniq_task_running ON omniq_task (owner, claim_id) WHERE status = 1;
CREATE INDEX omniq_task_expiring ON omniq_task (expires_at) WHERE status = 0 AND expires_at IS NOT NULL;
CREATE INDEX omniq_task_ended ON omniq_task (status, prune_at) WHERE prune_at IS NOT NULL;
CREATE UNIQUE INDEX omniq_task_key ON omniq_task (unique_key) WHERE unique_key IS NOT NULL AND status < 2;

-- An UPDATE rewrites the whole record, twice a task: what is large lies beside it.
CREATE TABLE omniq_body (seq INTEGER PRIMARY KEY, payload BLOB NOT NULL);
CREATE TABLE omniq_result (seq INTEGER PRIMARY KEY, result BLOB NOT NULL);

CREATE TABLE omniq_run (
  seq         INTEGER NOT NULL,
  epoch       INTEGER NOT NULL,
  owner       TEXT,
  started_at  INTEGER,
  finished_at INTEGER,
  outcome     TEXT    NOT NULL,
  error       TEXT,
  PRIMARY KEY (seq, epoch)
) WITHOUT ROWID;

-- What every transaction changed, by minute and queue; all of it added up is what the file holds.
CREATE TABLE omniq_tally (
  minute    INTEGER NOT NULL,  -- minutes since 1970; 0: everything that is older than two hours
  queue     TEXT    NOT NULL,
  pending   INTEGER NOT NULL,
  running   INTEGER NOT NULL,
  success   INTEGER NOT NULL,
  failed    INTEGER NOT NULL,
  cancelled INTEGER NOT NULL,
  enqueued  INTEGER NOT NULL,
  succeeded INTEGER NOT NULL,
  given_up  INTEGER NOT NULL,
  stopped   INTEGER NOT NULL,
  retried   INTEGER NOT NULL,
  lost      INTEGER NOT NULL,
  PRIMARY KEY (minute, queue)
) WITHOUT ROWID;

CREATE TABLE omniq_gone (id TEXT PRIMARY KEY, digest BLOB NOT NULL, until INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX omniq_gone_until ON omniq_gone (until);
CREATE TABLE omniq_paused (queue TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE omniq_worker (id TEXT PRIMARY KEY, info BLOB NOT NULL, seen_at INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE omniq_boot (boot INTEGER PRIMARY KEY, boot_id TEXT NOT NULL UNIQUE);

CREATE TABLE omniq_schedule (name TEXT PRIMARY KEY, next_at INTEGER, record BLOB NOT NULL) WITHOUT ROWID;
CREATE INDEX omniq_schedule_next ON omniq_schedule (next_at) WHERE next_at IS NOT NULL;

CREATE TABLE omniq_limit (queue TEXT PRIMARY KEY, max_depth INTEGER NOT NULL) WITHOUT ROWID;
-- On its way to another store, or, without a body and for thirty days, the receipt of one that came from there.
CREATE TABLE omniq_parcel (id TEXT PRIMARY KEY, at INTEGER NOT NULL, body BLOB);
