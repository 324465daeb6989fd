-- The tables. They are made in the first schema of the search path, whatever its name is.
--
-- status: 0 PENDING, 1 RUNNING, 2 SUCCESS, 3 FAILED, 4 CANCELLED
-- rank is -priority, so that one ascending index has the order of claims.
-- Errors, headers and progress are JSON as text: jsonb refuses the character U+0000, which an error may quote.

-- The order of columns is that of reading: fixed sizes that are never NULL first, so that their places on the page are
-- known, and what is mostly NULL last.
CREATE TABLE task (
    seq bigint GENERATED ALWAYS AS IDENTITY NOT NULL,  -- order of enqueueing
    due timestamptz NOT NULL,                          -- eta, or when it was enqueued: claims go by it
    enqueued_at timestamptz NOT NULL,
    epoch bigint NOT NULL DEFAULT 0,
    attempts integer NOT NULL DEFAULT 0,
    losses integer NOT NULL DEFAULT 0,                 -- deaths that it has to answer for
    suspicions integer NOT NULL DEFAULT 0,             -- deaths of a worker that ran others beside it
    max_retries integer NOT NULL,
    max_losses integer NOT NULL,
    status smallint NOT NULL DEFAULT 0,
    rank smallint NOT NULL,
    isolates boolean NOT NULL DEFAULT false,           -- while it runs: its worker would run it alone after a death
    cancel_requested boolean NOT NULL DEFAULT false,
    id text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    func_path text NOT NULL,
    on_failure text NOT NULL,
    digest bytea NOT NULL,                             -- of the call that it was first enqueued with
    payload bytea NOT NULL,
    eta timestamptz,
    expires_at timestamptz,
    "interval" float8,
    timeout float8,
    result_ttl float8,
    unique_key text COLLATE "C",
    headers text,
    started_at timestamptz,
    lease_until timestamptz,
    owner text COLLATE "C",
    claim_id text COLLATE "C",
    finished_at timestamptz,
    result_status smallint,
    result_at timestamptz,
    prune_at timestamptz,
    result bytea,
    error text,
    progress text
) WITH (
    -- Half of a page is left for the later versions of its rows: they need no new page, and less of the log. Renewing
    -- and progress touch no index, so on the same page they cost no index entry either.
    fillfactor = 50,
    -- Every task leaves two dead rows behind: vacuum by their number, not by a share of the history.
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 1,
    autovacuum_analyze_scale_factor = 0.05
);

-- Lean on purpose: each index is written to twice or three times in the life of a task. The one of ids has room for
-- the entries of a task's later versions beside its first one; without it every page is cleaned or split on the way.
CREATE UNIQUE INDEX task_id ON task (id) WITH (fillfactor = 40);
CREATE INDEX task_waiting ON task (queue, rank, due, seq) WHERE status = 0;
CREATE INDEX task_running ON task (owner, claim_id) WHERE status = 1;
CREATE INDEX task_expiring ON task (expires_at) WHERE status = 0 AND expires_at IS NOT NULL;
CREATE INDEX task_ended ON task (status, prune_at) WHERE status >= 2;
CREATE UNIQUE INDEX task_key ON task (unique_key) WHERE unique_key IS NOT NULL AND status < 2;

-- Closed runs that did not simply succeed.
CREATE TABLE run (
    seq bigint NOT NULL,
    epoch bigint NOT NULL,
    owner text,
    started_at timestamptz,
    finished_at timestamptz NOT NULL,
    outcome text NOT NULL,
    error text,
    PRIMARY KEY (seq, epoch)
);

-- What every transaction changed, by minute and queue; all of it added up is what the schema holds. Rows are only
-- ever added, so that no two transactions wait for each other here; `fold_tallies` puts them together.
CREATE TABLE tally (
    minute timestamptz NOT NULL,
    queue text COLLATE "C" NOT NULL,
    pending bigint NOT NULL DEFAULT 0,
    running bigint NOT NULL DEFAULT 0,
    success bigint NOT NULL DEFAULT 0,
    failed bigint NOT NULL DEFAULT 0,
    cancelled bigint NOT NULL DEFAULT 0,
    enqueued bigint NOT NULL DEFAULT 0,
    succeeded bigint NOT NULL DEFAULT 0,
    given_up bigint NOT NULL DEFAULT 0,
    stopped bigint NOT NULL DEFAULT 0,
    retried bigint NOT NULL DEFAULT 0,
    lost bigint NOT NULL DEFAULT 0
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);

-- Every queue that ever had a task. Without a key on purpose: two transactions that bring a new name do not wait
-- for each other, and a name that is there twice does no harm. Finding the names in the index of waiting tasks
-- instead would walk over the dead entries of everything that was claimed.
CREATE TABLE queue (name text COLLATE "C" NOT NULL);
CREATE INDEX queue_name ON queue (name);

-- The latest moment at which anything was enqueued, to about fifteen seconds (`announce`), and as long as an enqueue
-- then waits for its turn. The clock is behind it only after it was set back; tasks without an eta that were enqueued before that are due all the same.
CREATE TABLE latest (at timestamptz NOT NULL);
INSERT INTO latest VALUES ('-infinity');

CREATE TABLE paused (queue text COLLATE "C" PRIMARY KEY);
CREATE TABLE queue_limit (queue text COLLATE "C" PRIMARY KEY, max_depth bigint NOT NULL);
CREATE TABLE gone (id text COLLATE "C" PRIMARY KEY, digest bytea NOT NULL, until timestamptz NOT NULL);
CREATE INDEX gone_until ON gone (until);
CREATE TABLE worker (id text COLLATE "C" PRIMARY KEY, info text NOT NULL, seen_at timestamptz NOT NULL);

-- Until when somebody waits for results: a notification serialises commits, so it is sent only if one listens.
CREATE UNLOGGED TABLE ear (until timestamptz NOT NULL);

-- On its way to another store, or, without a body and for thirty days, the receipt of one that came from there.
CREATE TABLE parcel (id text COLLATE "C" PRIMARY KEY, at timestamptz NOT NULL, body bytea);
