-- The contract's verbs as PostgreSQL statements: a spike, no product code. `stores.py` cuts the file at the
-- "-- name:" lines; `{part}` in a statement stands for the section of that name.
--
-- status: 0 PENDING, 1 RUNNING, 2 SUCCESS, 3 FAILED, 4 CANCELLED
-- action: 0 succeed, 1 repeat, 2 retry, 3 fail, 4 continue, 5 give back
-- rank is -priority, so that one ascending index has the claim order.
-- Errors are JSON text without NUL: the server has to write some of them itself.

-- name: schema
CREATE SCHEMA omniq;
CREATE TABLE omniq.task (
    seq bigint GENERATED ALWAYS AS IDENTITY,
    id text COLLATE "C" PRIMARY KEY,
    digest bytea NOT NULL,
    payload bytea NOT NULL,
    queue text COLLATE "C" NOT NULL,
    rank smallint NOT NULL,
    due timestamptz NOT NULL,
    expires_at timestamptz,
    max_losses int NOT NULL,
    unique_key text COLLATE "C",
    status smallint NOT NULL DEFAULT 0,
    epoch bigint NOT NULL DEFAULT 0,
    attempts int NOT NULL DEFAULT 0,
    losses int NOT NULL DEFAULT 0,
    owner text COLLATE "C",
    claim_id text COLLATE "C",
    lease_until timestamptz,
    cancel_requested boolean NOT NULL DEFAULT false,
    error text,
    enqueued_at timestamptz NOT NULL DEFAULT now(),
    started_at timestamptz,
    finished_at timestamptz,
    result bytea,
    result_status smallint,
    result_at timestamptz
);
CREATE INDEX task_waiting ON omniq.task (queue, rank, due, seq) WHERE status = 0;
CREATE INDEX task_owned ON omniq.task (owner, claim_id) WHERE status = 1;
CREATE INDEX task_leased ON omniq.task (lease_until) WHERE status = 1;
CREATE INDEX task_expiring ON omniq.task (expires_at) WHERE status = 0 AND expires_at IS NOT NULL;
CREATE UNIQUE INDEX task_unique ON omniq.task (unique_key) WHERE unique_key IS NOT NULL AND status < 2;
CREATE TABLE omniq.run (
    task text COLLATE "C" NOT NULL,
    epoch bigint NOT NULL,
    owner text,
    started_at timestamptz,
    finished_at timestamptz NOT NULL,
    outcome text NOT NULL,
    error text,
    PRIMARY KEY (task, epoch)
);
CREATE TABLE omniq.paused (queue text COLLATE "C" PRIMARY KEY);
CREATE TABLE omniq.gone (id text COLLATE "C" PRIMARY KEY, digest bytea NOT NULL, until timestamptz NOT NULL);

-- name: enqueue function
-- A function, because one statement cannot: a row that another transaction committed after our snapshot
-- stops our INSERT (ON CONFLICT sees it) but is invisible to the rest of the same statement, so the answer
-- could not name it. Each statement of a function takes a new snapshot. RAISE undoes the whole call.
CREATE FUNCTION omniq.enqueue_many(
    ids text[], digests bytea[], payloads bytea[], queues text[], ranks smallint[], etas timestamptz[],
    expiries timestamptz[], max_losses int[], keys text[], on_conflict text)
RETURNS TABLE (n bigint, id text, created boolean) LANGUAGE plpgsql
SET enable_hashjoin = on AS $body$  -- the batch has no index: nested loops over 10,000 tasks took minutes
#variable_conflict use_column
DECLARE
    first_id text;
    open_before int := -1;
    open_now int;
BEGIN
    CREATE TEMPORARY TABLE IF NOT EXISTS omniq_batch (
        n bigint, id text COLLATE "C", digest bytea, payload bytea, queue text, rank smallint, eta timestamptz,
        expires_at timestamptz, max_losses int, unique_key text COLLATE "C", at_id text COLLATE "C", created boolean
    ) ON COMMIT DELETE ROWS;
    DELETE FROM omniq_batch;
    INSERT INTO omniq_batch
        SELECT v.n, v.id, v.digest, v.payload, v.queue, v.rank, v.eta, v.expires_at, v.max_losses, v.key
        FROM unnest(ids, digests, payloads, queues, ranks, etas, expiries, max_losses, keys) WITH ORDINALITY
            AS v (id, digest, payload, queue, rank, eta, expires_at, max_losses, key, n);
    LOOP
        -- The same id again, stored or remembered: the same call is there already, another one is refused.
        -- Twice in one batch shows in the second round, when the first of them is stored.
        SELECT b.id INTO first_id FROM omniq_batch b LEFT JOIN omniq.task t ON t.id = b.id
            LEFT JOIN omniq.gone g ON g.id = b.id AND g.until > now()
            WHERE b.at_id IS NULL AND b.digest <> coalesce(t.digest, g.digest, b.digest) LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION USING ERRCODE = 'OQ001', MESSAGE = first_id;
        END IF;
        UPDATE omniq_batch b SET at_id = b.id, created = false WHERE b.at_id IS NULL AND (
            EXISTS (SELECT FROM omniq.task t WHERE t.id = b.id)
            OR EXISTS (SELECT FROM omniq.gone g WHERE g.id = b.id AND g.until > now()));
        -- What is left is new, unless a living task holds its key.
        WITH put AS (
            INSERT INTO omniq.task (id, digest, payload, queue, rank, due, expires_at, max_losses, unique_key)
            SELECT b.id, b.digest, b.payload, b.queue, b.rank, coalesce(b.eta, now()), b.expires_at,
                b.max_losses, b.unique_key
            FROM omniq_batch b WHERE b.at_id IS NULL ORDER BY b.n
            ON CONFLICT DO NOTHING RETURNING id)
        UPDATE omniq_batch b SET at_id = b.id, created = true FROM (
            SELECT min(o.n) AS n FROM put JOIN omniq_batch o ON o.id = put.id WHERE o.at_id IS NULL GROUP BY put.id
        ) one WHERE b.n = one.n;
        UPDATE omniq_batch b SET at_id = t.id, created = false FROM omniq.task t
            WHERE b.at_id IS NULL AND t.unique_key = b.unique_key AND t.status < 2 AND t.id <> b.id;
        -- A holder that ended between the two looks has freed its key: look again, as long as that gets us on.
        SELECT count(*) INTO open_now FROM omniq_batch b WHERE b.at_id IS NULL;
        EXIT WHEN open_now = 0;
        IF open_now = open_before THEN
            RAISE EXCEPTION USING ERRCODE = 'OQ003', MESSAGE = 'keys change hands too fast';
        END IF;
        open_before := open_now;
    END LOOP;
    IF on_conflict = 'raise' THEN
        SELECT b.at_id INTO first_id FROM omniq_batch b WHERE b.at_id <> b.id LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION USING ERRCODE = 'OQ002', MESSAGE = first_id;
        END IF;
    ELSIF on_conflict = 'replace' THEN
        -- The last one wins. The digest stays that of the first enqueue: whoever repeats that one must be told
        -- "already there". Without an eta the old place is kept.
        UPDATE omniq.task t SET payload = b.payload, due = coalesce(b.eta, t.enqueued_at)
            FROM (SELECT DISTINCT ON (at_id) * FROM omniq_batch WHERE at_id <> id ORDER BY at_id, n DESC) b
            WHERE t.id = b.at_id AND t.status = 0;
    END IF;
    RETURN QUERY SELECT b.n, b.at_id, b.created FROM omniq_batch b ORDER BY b.n;
END $body$;

-- name: said
-- $1 ids, $2 epochs, $3 actions, $4 results, $5 delays in seconds, $6 errors; sorted by id, the order of locks
said AS MATERIALIZED (
    SELECT * FROM unnest($1::text[], $2::bigint[], $3::smallint[], $4::bytea[], $5::float8[], $6::text[])
        WITH ORDINALITY AS v (id, epoch, action, result, delay_s, error, n))

-- name: closing
-- T4 to T7 and T12. `status + 0` hides the index of running rows from the planner. The SET expressions see the
-- newest version of the row, also when a cancel was committed after our snapshot: that is the cancel race.
closed AS (
    UPDATE omniq.task t SET
        status = CASE WHEN s.action = 0 THEN 2 WHEN t.cancel_requested THEN 4 WHEN s.action = 3 THEN 3 ELSE 0 END,
        attempts = CASE WHEN s.action IN (0, 5) OR t.cancel_requested THEN t.attempts
            WHEN s.action IN (2, 3) THEN t.attempts + 1 ELSE 0 END,
        losses = CASE WHEN s.action = 1 AND NOT t.cancel_requested THEN 0 ELSE t.losses END,
        error = CASE WHEN s.action = 0 THEN NULL
            WHEN t.cancel_requested
                THEN '{"type":"Cancelled","message":"cancelled while it ran","kind":"cancelled"}'
            WHEN s.action = 5 THEN t.error ELSE s.error END,
        due = CASE WHEN s.action IN (0, 3) OR t.cancel_requested THEN t.due
            ELSE now() + make_interval(secs => greatest(0, s.delay_s)) END,
        finished_at = CASE WHEN s.action IN (0, 3) OR t.cancel_requested THEN now() END,
        result = CASE WHEN s.action = 0 THEN s.result WHEN t.cancel_requested THEN NULL
            WHEN s.action IN (2, 5) THEN t.result WHEN s.action = 1 THEN s.result END,
        result_status = CASE WHEN s.action = 0 THEN 2 WHEN t.cancel_requested THEN 4 WHEN s.action = 1 THEN 2
            WHEN s.action IN (3, 4) THEN 3 ELSE t.result_status END,
        result_at = CASE WHEN s.action IN (2, 5) AND NOT t.cancel_requested THEN t.result_at ELSE now() END,
        owner = NULL, claim_id = NULL, lease_until = NULL, cancel_requested = false
    FROM said s WHERE t.id = s.id AND t.epoch = s.epoch AND t.status + 0 = 1
    RETURNING s.n, t.id, t.epoch, s.action, s.error, CASE WHEN t.status = 4 THEN 'cancelled'
        ELSE (ARRAY['success', 'success', 'retried', 'failed', 'failed', 'given back'])[s.action + 1] END AS outcome),
noted AS (  -- the snapshot still shows the row as it ran, with its owner
    INSERT INTO omniq.run SELECT c.id, c.epoch, was.owner, was.started_at, now(), c.outcome, c.error
    FROM closed c JOIN omniq.task was ON was.id = c.id WHERE c.action <> 0),
trimmed AS (
    DELETE FROM omniq.run r USING closed c WHERE c.action <> 0 AND r.task = c.id AND r.epoch <=
        (SELECT o.epoch FROM omniq.run o WHERE o.task = c.id ORDER BY o.epoch DESC OFFSET 19 LIMIT 1))

-- name: missed
-- Only what did not hold. 'raced': the snapshot shows our run, but the row had changed when we came to it.
-- The answer lies beyond this statement's snapshot, so the caller has to ask again.
missed AS (
    SELECT s.n, CASE
        WHEN t.id IS NULL THEN 'stale'
        WHEN t.status = 1 AND t.epoch = s.epoch THEN 'raced'
        WHEN s.action = 0 AND t.status = 2 THEN CASE WHEN t.epoch = s.epoch THEN 'already' ELSE 'stale' END
        WHEN EXISTS (SELECT FROM omniq.run r WHERE r.task = s.id AND r.epoch = s.epoch AND (
            r.outcome = (ARRAY['success', 'success', 'retried', 'failed', 'failed', 'given back'])[s.action + 1]
            OR s.action <> 0 AND r.outcome = 'cancelled')) THEN 'already'
        ELSE 'stale' END AS answer
    FROM said s LEFT JOIN omniq.task t ON t.id = s.id
    WHERE s.n <> ALL (ARRAY(SELECT c.n FROM closed c)))

-- name: claiming
-- $7 worker, $8 queues or NULL, $9 limit (0: no claim), $10 lease in seconds, $11 claim_id.
-- One index range per priority: tasks of a high priority that are due tomorrow are never walked over. The loops
-- are lazy, so lower priorities are not even locked once the limit is reached.
again AS MATERIALIZED (
    SELECT t.id FROM omniq.task t WHERE t.status = 1 AND t.owner = $7 AND t.claim_id = $11),
names AS MATERIALIZED (
    WITH RECURSIVE walk (queue) AS (
        (SELECT t.queue FROM omniq.task t WHERE t.status = 0 AND $8::text[] IS NULL ORDER BY t.queue LIMIT 1)
        UNION ALL
        SELECT (SELECT t.queue FROM omniq.task t WHERE t.status = 0 AND t.queue > walk.queue
            ORDER BY t.queue LIMIT 1) FROM walk WHERE walk.queue IS NOT NULL)
    SELECT a.queue FROM (SELECT queue FROM walk UNION SELECT unnest($8::text[])) a
    WHERE a.queue IS NOT NULL AND NOT EXISTS (SELECT FROM omniq.paused p WHERE p.queue = a.queue)),
picked AS MATERIALIZED (
    SELECT p.ctid, coalesce(p.expires_at <= now(), false) AS late
    FROM generate_series(-9, 0) AS r (rank) CROSS JOIN LATERAL (
        SELECT w.* FROM names q CROSS JOIN LATERAL (
            SELECT t.ctid, t.due, t.seq, t.expires_at FROM omniq.task t
            WHERE t.status = 0 AND t.queue = q.queue AND t.rank = r.rank::smallint AND t.due <= now()
            ORDER BY t.due, t.seq LIMIT $9 FOR UPDATE SKIP LOCKED) w
        ORDER BY w.due, w.seq LIMIT $9) p
    LIMIT CASE WHEN EXISTS (SELECT FROM again) THEN 0 ELSE $9::bigint END),
ended AS (
    UPDATE omniq.task t SET status = 3, finished_at = now(), result = NULL, result_status = 3, result_at = now(),
        error = '{"type":"Expired","message":"not started before it expired","kind":"expired"}'
    WHERE t.ctid = ANY (ARRAY(SELECT ctid FROM picked WHERE late)) RETURNING 1),
handed AS (
    UPDATE omniq.task t SET status = 1, epoch = t.epoch + 1, owner = $7, claim_id = $11, started_at = now(),
        lease_until = now() + make_interval(secs => $10::float8)
    WHERE t.ctid = ANY (ARRAY(SELECT ctid FROM picked WHERE NOT late))
    RETURNING t.id, t.epoch, t.payload, t.attempts, t.losses, t.rank, t.due, t.seq)

-- name: exchange
-- One statement. Its parts share one snapshot: what `closed` puts back is not seen by `picked`.
WITH {said}, {closing}, {missed}, {claiming}
SELECT (SELECT json_object_agg(m.n, m.answer)::text FROM missed m) AS missed,
    (SELECT count(*) FROM ended) AS expired, c.*
FROM (SELECT) one LEFT JOIN (
    SELECT * FROM handed UNION ALL
    SELECT t.id, t.epoch, t.payload, t.attempts, t.losses, t.rank, t.due, t.seq
    FROM omniq.task t JOIN again ON again.id = t.id) c ON true ORDER BY c.rank, c.due, c.seq

-- name: exchange function
-- The same in steps, still one round trip and one transaction. Every step has a new snapshot, so the claim sees
-- what the settle put back, nothing is ever 'raced', and a repeated claim waits for the first one to end.
-- The planner's switches travel with the function: they hold behind a pooler too.
CREATE FUNCTION omniq.exchange(text[], bigint[], smallint[], bytea[], float8[], text[],
    text, text[], bigint, float8, text)
RETURNS TABLE (missed text, expired bigint, id text, epoch bigint, payload bytea, attempts int, losses int,
    rank smallint, due timestamptz, seq bigint) LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
SET jit = off AS $body$
#variable_conflict use_column
DECLARE
    answers text;
    held bigint[];
    late bigint := 0;
BEGIN
    IF cardinality($1) > 0 THEN
        WITH {said}, {closing} SELECT array_agg(c.n) INTO held FROM closed c;
        IF held IS NULL OR cardinality(held) < cardinality($1) THEN
            WITH {said}, closed AS (SELECT unnest(held) AS n), {missed}
            SELECT json_object_agg(m.n, m.answer)::text INTO answers FROM missed m;
        END IF;
    END IF;
    IF $9 > 0 THEN
        PERFORM pg_advisory_xact_lock(hashtextextended($11, 0));
        RETURN QUERY WITH {claiming}
            SELECT answers, (SELECT count(*) FROM ended), c.* FROM (SELECT) one LEFT JOIN (
                SELECT * FROM handed UNION ALL
                SELECT t.id, t.epoch, t.payload, t.attempts, t.losses, t.rank, t.due, t.seq
                FROM omniq.task t JOIN again ON again.id = t.id) c ON true ORDER BY c.rank, c.due, c.seq;
    ELSE
        RETURN QUERY SELECT answers, late, NULL::text, NULL::bigint, NULL::bytea, NULL::int, NULL::int,
            NULL::smallint, NULL::timestamptz, NULL::bigint;
    END IF;
END $body$;

-- name: renew
-- T3. Rows that somebody else has locked are passed over: that is our own settle or a cancel. Without SKIP LOCKED
-- this and a settle of the same worker can wait for each other. The answer names those rows all the same.
WITH mine AS MATERIALIZED (
    SELECT t.ctid FROM omniq.task t WHERE t.status = 1 AND t.owner = $1 FOR NO KEY UPDATE SKIP LOCKED),
renewed AS (
    UPDATE omniq.task t SET lease_until = now() + make_interval(secs => $2::float8)
    WHERE t.ctid = ANY (ARRAY(SELECT ctid FROM mine)))
SELECT t.id, t.epoch, t.cancel_requested FROM omniq.task t WHERE t.status = 1 AND t.owner = $1

-- name: renew without skip
UPDATE omniq.task t SET lease_until = now() + make_interval(secs => $2::float8)
WHERE t.status = 1 AND t.owner = $1 RETURNING t.id, t.epoch, t.cancel_requested

-- name: losing
taken AS (
    UPDATE omniq.task t SET
        status = CASE WHEN t.cancel_requested THEN 4 WHEN t.losses + 1 >= t.max_losses THEN 3 ELSE 0 END,
        losses = CASE WHEN t.cancel_requested THEN t.losses ELSE t.losses + 1 END,
        error = CASE
            WHEN t.cancel_requested THEN '{"type":"Cancelled","message":"cancelled while it ran","kind":"cancelled"}'
            WHEN t.losses + 1 >= t.max_losses
                THEN '{"type":"WorkerLost","message":"its worker died too often","kind":"poison"}'
            ELSE t.error END,
        due = CASE WHEN t.cancel_requested OR t.losses + 1 >= t.max_losses THEN t.due
            WHEN t.losses = 0 THEN now() ELSE now() + make_interval(secs => least(3600, 2 ^ least(t.losses - 1, 30))) END,
        finished_at = CASE WHEN t.cancel_requested OR t.losses + 1 >= t.max_losses THEN now() END,
        result = CASE WHEN t.cancel_requested OR t.losses + 1 >= t.max_losses THEN NULL ELSE t.result END,
        result_status = CASE WHEN t.cancel_requested THEN 4 WHEN t.losses + 1 >= t.max_losses THEN 3
            ELSE t.result_status END,
        result_at = CASE WHEN t.cancel_requested OR t.losses + 1 >= t.max_losses THEN now() ELSE t.result_at END,
        owner = NULL, claim_id = NULL, lease_until = NULL, cancel_requested = false
    WHERE t.ctid = ANY (ARRAY(SELECT ctid FROM lost))
    RETURNING t.id, t.epoch, CASE WHEN t.status = 3 THEN t.error END AS error),
noted AS (
    INSERT INTO omniq.run SELECT c.id, c.epoch, was.owner, was.started_at, now(), 'lost', c.error
    FROM taken c JOIN omniq.task was ON was.id = c.id),
trimmed AS (
    DELETE FROM omniq.run r USING taken c WHERE r.task = c.id AND r.epoch <=
        (SELECT o.epoch FROM omniq.run o WHERE o.task = c.id ORDER BY o.epoch DESC OFFSET 19 LIMIT 1))

-- name: release
WITH lost AS MATERIALIZED (
    SELECT t.ctid FROM omniq.task t WHERE t.status = 1 AND t.owner = $1 FOR UPDATE SKIP LOCKED), {losing}
SELECT count(*) FROM taken

-- name: lapse
WITH lost AS MATERIALIZED (
    SELECT t.ctid FROM omniq.task t WHERE t.status = 1 AND t.lease_until <= now()
    ORDER BY t.lease_until LIMIT $1 FOR UPDATE SKIP LOCKED), {losing},
late AS MATERIALIZED (
    SELECT t.ctid FROM omniq.task t WHERE t.status = 0 AND t.expires_at <= now()
    ORDER BY t.expires_at LIMIT $1 FOR UPDATE SKIP LOCKED),
ended AS (
    UPDATE omniq.task t SET status = 3, finished_at = now(), result = NULL, result_status = 3, result_at = now(),
        error = '{"type":"Expired","message":"not started before it expired","kind":"expired"}'
    WHERE t.ctid = ANY (ARRAY(SELECT ctid FROM late)) RETURNING 1)
SELECT (SELECT count(*) FROM taken) + (SELECT count(*) FROM ended)

-- name: cancel
-- T10, T11. No row: the id is unknown.
UPDATE omniq.task t SET
    status = CASE t.status WHEN 0 THEN 4 ELSE t.status END,
    cancel_requested = t.status = 1,
    finished_at = CASE t.status WHEN 0 THEN now() ELSE t.finished_at END,
    error = CASE t.status WHEN 0
        THEN '{"type":"Cancelled","message":"cancelled before it ran","kind":"cancelled"}' ELSE t.error END,
    result = CASE t.status WHEN 0 THEN NULL ELSE t.result END,
    result_status = CASE t.status WHEN 0 THEN 4 ELSE t.result_status END,
    result_at = CASE t.status WHEN 0 THEN now() ELSE t.result_at END
WHERE t.id = $1 RETURNING t.status
