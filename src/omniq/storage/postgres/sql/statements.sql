-- What is one statement. `{schema}` stands for the quoted name of the schema, `{task}` for the columns of a task.

-- name: enqueue
SELECT n, id, created FROM {schema}.enqueue(
    $1::text[], $2::bytea[], $3::text[], $4::bytea[], $5::text[], $6::smallint[], $7::timestamptz[], $8::float8[],
    $9::timestamptz[], $10::float8[], $11::float8[], $12::float8[], $13::integer[], $14::integer[], $15::text[],
    $16::text[], $17::text[], $18::float8[], $19::text)

-- name: announce
-- What comes before an enqueue, in a transaction of its own: the names of the queues, and when it is. The moment alone
-- does not wait for the disk: it lies ahead of the enqueue in the log, so what is lost with it is the enqueue as well.
WITH named AS (
    INSERT INTO {schema}.queue SELECT DISTINCT q.name FROM unnest($1::text[]) AS q (name)
    WHERE NOT EXISTS (SELECT FROM {schema}.queue k WHERE k.name = q.name) RETURNING 1)
UPDATE {schema}.latest SET at = {schema}.clock() WHERE ctid = ANY (ARRAY(
    SELECT l.ctid FROM {schema}.latest l WHERE l.at < {schema}.clock() - interval '10 seconds' FOR UPDATE SKIP LOCKED))
RETURNING CASE WHEN NOT EXISTS (SELECT FROM named) THEN set_config('synchronous_commit', 'off', true) END

-- name: exchange
SELECT * FROM {schema}.exchange(
    $1::text[], $2::bigint[], $3::smallint[], $4::bytea[], $5::float8[], $6::text[], $7::text[], $8::float8,
    $9::float8, $10::text, $11::text[], $12::bigint, $13::float8, $14::text, $15::boolean, $16::text[], $17::bigint,
    $18::text[], $19::smallint[], $20::timestamptz[], $21::bigint[])

-- name: settle_last
-- In the transaction of a body: from here to its COMMIT the task is locked, so a client that is cut off in between
-- is not waited for.
SELECT missed, set_config('idle_in_transaction_session_timeout', '5000', true) FROM {schema}.exchange(
    $1::text[], $2::bigint[], $3::smallint[], $4::bytea[], $5::float8[], $6::text[], $7::text[], $8::float8,
    $9::float8, NULL, NULL, NULL, NULL, NULL, NULL, '{}', 0, '{}', '{}', '{}', '{}')

-- name: renew
SELECT id, epoch, cancel_requested, seq FROM {schema}.renew($1::text, $2::float8)

-- name: held
SELECT id, epoch, cancel_requested, seq FROM {schema}.held($1::text)

-- name: release
SELECT many, rang_due, rang_result FROM {schema}.release($1::text, $2::float8)

-- name: lapse
SELECT many, rang_due, rang_result FROM {schema}.lapse($1::bigint, $2::float8)

-- name: anything_over
SELECT {schema}.anything_over()

-- name: progress
UPDATE {schema}.task t SET progress = $3::text WHERE t.id = $1::text AND t.epoch = $2::bigint AND t.status + 0 = 1
RETURNING true

-- name: cancel
SELECT {schema}.cancel($1::text, $2::float8)

-- name: retry
SELECT status_before, key, holder FROM {schema}.retry($1::text)

-- name: reschedule
SELECT status_before, epoch_before FROM {schema}.reschedule($1::text, $2::timestamptz, $3::bigint)

-- name: delete
SELECT {schema}.remove($1::text)

-- name: prune
SELECT {schema}.prune($1::bigint)

-- name: pause
INSERT INTO {schema}.paused VALUES ($1::text) ON CONFLICT DO NOTHING

-- name: resume
WITH gone AS (DELETE FROM {schema}.paused WHERE queue = $1::text)
SELECT pg_notify($2::text, '')

-- name: paused
SELECT queue FROM {schema}.paused

-- name: beat
INSERT INTO {schema}.worker VALUES ($1::text, $2::text, {schema}.clock())
ON CONFLICT (id) DO UPDATE SET info = EXCLUDED.info, seen_at = EXCLUDED.seen_at

-- name: leave
DELETE FROM {schema}.worker WHERE id = $1::text

-- name: workers
SELECT info, seen_at FROM {schema}.worker ORDER BY seen_at DESC, id

-- name: get
SELECT {task} FROM {schema}.task t WHERE t.id = $1::text

-- name: page
SELECT p.behind, {task} FROM {schema}.page(
    $1::smallint, $2::text, $3::text, $4::text, $5::text, $6::text, $7::timestamptz, $8::timestamptz, $9::timestamptz,
    $10::timestamptz, $11::text, $12::bigint, $13::bigint, $14::bigint) p CROSS JOIN LATERAL (SELECT (p.hit).*) t

-- name: longest_running
SELECT {task} FROM {schema}.task t WHERE t.status = 1 ORDER BY t.started_at, t.seq LIMIT $1::bigint

-- name: is_there
SELECT true FROM {schema}.task t WHERE t.id = $1::text

-- name: history
SELECT r.epoch, r.owner, r.started_at, r.finished_at, r.outcome, r.error FROM {schema}.run r
WHERE r.seq = (SELECT t.seq FROM {schema}.task t WHERE t.id = $1::text) ORDER BY r.epoch

-- name: tallies
SELECT t.queue, t.minute, sum(t.pending)::bigint, sum(t.running)::bigint, sum(t.success)::bigint, sum(t.failed)::bigint,
    sum(t.cancelled)::bigint, sum(t.enqueued)::bigint, sum(t.succeeded)::bigint, sum(t.given_up)::bigint,
    sum(t.stopped)::bigint, sum(t.retried)::bigint, sum(t.lost)::bigint
FROM {schema}.tally t GROUP BY t.queue, t.minute

-- name: fold
SELECT {schema}.fold_tallies($1::bigint)

-- name: heads
SELECT queue, rank, id, func_path, due FROM {schema}.heads()

-- name: ahead
SELECT {schema}.ahead($1::text, $2::bigint)

-- name: timings
-- The first moment that Python can name arrives here as minus infinity.
SELECT t.queue, extract(epoch FROM t.started_at - greatest(t.due, '0001-01-01 00:00:00+00'))::float8, extract(epoch FROM t.finished_at - t.started_at)::float8
FROM {schema}.task t WHERE t.status >= 2 AND t.status = 2 ORDER BY t.prune_at DESC LIMIT $1::bigint

-- name: unended
SELECT {schema}.unended($1::text[])

-- name: await
-- Says that somebody waits for results, for a while; whoever ends a task then sends a notification.
WITH known AS (UPDATE {schema}.ear SET until = greatest(until, now() + make_interval(secs => $1::float8)) RETURNING 1)
INSERT INTO {schema}.ear SELECT now() + make_interval(secs => $1::float8) WHERE NOT EXISTS (SELECT FROM known)

-- name: verify
SELECT w.what FROM (
    SELECT t.id || ' has a status that does not exist' AS what FROM {schema}.task t WHERE t.status NOT BETWEEN 0 AND 4
    UNION ALL SELECT t.id || ' runs without an owner or a lease' FROM {schema}.task t
        WHERE t.status = 1 AND (t.owner IS NULL OR t.lease_until IS NULL OR t.claim_id IS NULL)
    UNION ALL SELECT t.id || ' does not run but has an owner or a lease' FROM {schema}.task t
        WHERE t.status <> 1 AND (t.owner IS NOT NULL OR t.lease_until IS NOT NULL OR t.claim_id IS NOT NULL)
    UNION ALL SELECT t.id || ' does not run but is to be cancelled' FROM {schema}.task t
        WHERE t.status <> 1 AND t.cancel_requested
    UNION ALL SELECT t.id || ' has ended without a moment' FROM {schema}.task t
        WHERE t.status >= 2 AND (t.finished_at IS NULL OR t.prune_at IS NULL)
    UNION ALL SELECT t.id || ' has not ended but says when' FROM {schema}.task t
        WHERE t.status < 2 AND (t.finished_at IS NOT NULL OR t.prune_at IS NOT NULL)
    UNION ALL SELECT t.id || ' has lost its result' FROM {schema}.task t
        WHERE t.result_status = 2 AND t.result IS NULL
    UNION ALL SELECT t.id || ' is due at another moment than it says' FROM {schema}.task t
        WHERE t.due <> coalesce(t.eta, t.enqueued_at)
    UNION ALL SELECT t.id || ' waits in a queue that nobody knows' FROM {schema}.task t
        WHERE t.status < 2 AND NOT EXISTS (SELECT FROM {schema}.queue k WHERE k.name = t.queue)
    UNION ALL SELECT r.seq || ' has a history but is no task' FROM {schema}.run r
        WHERE NOT EXISTS (SELECT FROM {schema}.task t WHERE t.seq = r.seq)
    UNION ALL SELECT format('queue %s counts %s of status %s too many', c.queue, c.many, c.status) FROM (
        SELECT x.queue, x.status, sum(x.many) AS many FROM (
            SELECT t.queue, t.status, -1 AS many FROM {schema}.task t
            UNION ALL SELECT t.queue, n.status, n.many FROM {schema}.tally t CROSS JOIN LATERAL (
                VALUES (0, t.pending), (1, t.running), (2, t.success), (3, t.failed), (4, t.cancelled)) n (status, many)
            ) x GROUP BY x.queue, x.status) c WHERE c.many <> 0) w
LIMIT 1000

-- name: version
SELECT max(version) FROM {schema}.migration

-- name: vitals
-- Others' transactions are seen in full by members of pg_read_all_stats only; what cannot be seen is left out.
WITH held AS (
    SELECT age(a.backend_xmin)::bigint AS ids, extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS seconds,
        format('process %s (%s, %s)', a.pid, coalesce(nullif(a.application_name, ''), 'no name'), a.state) AS who
    FROM pg_stat_activity a WHERE a.backend_xmin IS NOT NULL AND a.pid <> pg_backend_pid()
        AND a.backend_type = 'client backend'
    UNION ALL
    SELECT age(p.transaction)::bigint, extract(epoch FROM clock_timestamp() - p.prepared)::float8,
        format('the prepared transaction %s', p.gid)
    FROM pg_prepared_xacts p
    UNION ALL
    SELECT age(r.xmin)::bigint, NULL, format('the replication slot %s', r.slot_name)
    FROM pg_replication_slots r WHERE r.xmin IS NOT NULL),
-- The table by its type: the name of the schema stands in no text.
me AS (SELECT c.oid, c.relnamespace FROM pg_class c WHERE c.reltype = pg_typeof(NULL::{schema}.task)::oid),
oldest AS (SELECT h.ids, h.seconds, h.who FROM held h ORDER BY h.ids DESC, h.seconds DESC NULLS LAST LIMIT 1)
SELECT current_setting('server_version'), (SELECT max(m.version) FROM {schema}.migration m),
    (SELECT o.ids FROM oldest o), (SELECT o.seconds FROM oldest o), (SELECT o.who FROM oldest o),
    (SELECT s.n_dead_tup FROM pg_stat_user_tables s JOIN me ON me.oid = s.relid),
    current_setting('fsync') = 'on', current_setting('synchronous_commit') <> 'off',
    (SELECT count(*) FROM pg_stat_activity), current_setting('max_connections')::bigint,
    ARRAY(SELECT format('%s on %s', p.what, c.relname)::text
        FROM pg_class c CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS p (what)
        WHERE c.relnamespace = (SELECT me.relnamespace FROM me)
            AND c.relkind = 'r' AND c.relname <> 'migration' AND NOT has_table_privilege(c.oid, p.what)
        ORDER BY 1)

-- name: schedules
SELECT {schema}.clock(), (SELECT min(next_at) FROM {schema}.schedule),
    ARRAY(SELECT s.record FROM {schema}.schedule s ORDER BY s.name)

-- name: due_schedules
SELECT {schema}.clock(), (SELECT min(next_at) FROM {schema}.schedule),
    ARRAY(SELECT s.record FROM {schema}.schedule s WHERE s.next_at <= {schema}.clock()
        ORDER BY s.next_at, s.name LIMIT $1::bigint)

-- name: known_schedule
SELECT {schema}.clock(), (SELECT min(next_at) FROM {schema}.schedule),
    ARRAY(SELECT s.record FROM {schema}.schedule s WHERE s.name = $1::text)

-- name: write_schedule
SELECT {schema}.write_schedule(
    $1::text, $2::bigint, $3::bigint, $4::timestamptz, $5::bytea,
    $6::text[], $7::bytea[], $8::text[], $9::bytea[], $10::text[], $11::smallint[], $12::timestamptz[], $13::float8[],
    $14::timestamptz[], $15::float8[], $16::float8[], $17::float8[], $18::integer[], $19::integer[], $20::text[],
    $21::text[], $22::text[], $23::float8[])

-- name: drop_schedule
DELETE FROM {schema}.schedule WHERE name = $1::text RETURNING true

-- name: limit_queue
INSERT INTO {schema}.queue_limit VALUES ($1::text, $2::bigint)
ON CONFLICT (queue) DO UPDATE SET max_depth = EXCLUDED.max_depth

-- name: unlimit_queue
DELETE FROM {schema}.queue_limit WHERE queue = $1::text

-- name: queue_limits
SELECT queue, max_depth FROM {schema}.queue_limit

-- name: outgoing
SELECT body FROM {schema}.parcel WHERE body IS NOT NULL LIMIT 1

-- name: movable_waiting
SELECT {task}, t.digest FROM {schema}.task t WHERE t.status = 0 ORDER BY t.queue, t.rank, t.due, t.seq
LIMIT $1::bigint FOR UPDATE SKIP LOCKED

-- name: movable_ended
SELECT {task}, t.digest FROM {schema}.task t WHERE t.status >= 2 ORDER BY t.prune_at
LIMIT $1::bigint FOR UPDATE SKIP LOCKED

-- name: runs_of
SELECT r.seq, r.epoch, r.owner, r.started_at, r.finished_at, r.outcome, r.error FROM {schema}.run r
WHERE r.seq = ANY ($1::bigint[]) ORDER BY r.seq, r.epoch

-- name: move_away
WITH gone AS (DELETE FROM {schema}.task WHERE id = ANY ($1::text[]) RETURNING seq, queue, status),
tallied AS (
    INSERT INTO {schema}.tally (minute, queue, pending, success, failed, cancelled)
    SELECT date_trunc('minute', {schema}.clock()), g.queue, -count(*) FILTER (WHERE g.status = 0), -count(*) FILTER (WHERE g.status = 2),
        -count(*) FILTER (WHERE g.status = 3), -count(*) FILTER (WHERE g.status = 4)
    FROM gone g GROUP BY g.queue)
DELETE FROM {schema}.run WHERE seq IN (SELECT seq FROM gone)

-- name: move_settings_away
WITH schedules AS (DELETE FROM {schema}.schedule WHERE name = ANY ($1::text[])),
limits AS (DELETE FROM {schema}.queue_limit WHERE queue = ANY ($2::text[]))
DELETE FROM {schema}.paused WHERE queue = ANY ($3::text[])

-- name: keep_parcel
INSERT INTO {schema}.parcel VALUES ($1::text, {schema}.clock(), $2::bytea) ON CONFLICT DO NOTHING RETURNING true

-- name: drop_parcel
DELETE FROM {schema}.parcel WHERE id = $1::text AND body IS NOT NULL RETURNING true

-- name: known_digests
SELECT id, digest FROM {schema}.task WHERE id = ANY ($1::text[])

-- name: key_holders
SELECT unique_key, id FROM {schema}.task WHERE unique_key = ANY ($1::text[]) AND unique_key IS NOT NULL AND status < 2

-- name: clock
SELECT {schema}.clock()

-- name: move_in
WITH placed AS (INSERT INTO {schema}.task (id, digest, func_path, payload, queue, rank, eta, due, expires_at, "interval", timeout,
    max_retries, max_losses, unique_key, headers, on_failure, result_ttl, status, epoch, attempts, losses, suspicions,
    error, progress, enqueued_at, started_at, finished_at, result, result_status, result_at, prune_at)
SELECT v.c1, v.c2, v.c3, v.c4, v.c5, v.c6, v.c7, coalesce(v.c7, v.c24), v.c8, v.c9, v.c10, v.c11, v.c12, v.c13, v.c14,
    v.c15, v.c16, v.c17, v.c18, v.c19, v.c20, v.c21, v.c22, v.c23, v.c24, v.c25, v.c26, v.c27, v.c28, v.c29, v.c30
FROM unnest($1::text[], $2::bytea[], $3::text[], $4::bytea[], $5::text[], $6::smallint[], $7::timestamptz[],
    $8::timestamptz[], $9::float8[], $10::float8[], $11::integer[], $12::integer[], $13::text[], $14::text[],
    $15::text[], $16::float8[], $17::smallint[], $18::bigint[], $19::integer[], $20::integer[], $21::integer[],
    $22::text[], $23::text[], $24::timestamptz[], $25::timestamptz[], $26::timestamptz[], $27::bytea[],
    $28::smallint[], $29::timestamptz[], $30::timestamptz[])
    WITH ORDINALITY AS v (c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13, c14, c15, c16, c17, c18, c19, c20,
        c21, c22, c23, c24, c25, c26, c27, c28, c29, c30, n)
ORDER BY v.n RETURNING id, seq, queue, status),
tallied AS (
    INSERT INTO {schema}.tally (minute, queue, pending, success, failed, cancelled, enqueued)
    SELECT date_trunc('minute', {schema}.clock()), p.queue, count(*) FILTER (WHERE p.status = 0), count(*) FILTER (WHERE p.status = 2),
        count(*) FILTER (WHERE p.status = 3), count(*) FILTER (WHERE p.status = 4), count(*)
    FROM placed p GROUP BY p.queue)
SELECT id, seq FROM placed

-- name: enqueued_until
-- Who moved in may have been enqueued by a clock that was ahead of ours.
UPDATE {schema}.latest SET at = greatest(at, $1::timestamptz)

-- name: move_runs_in
INSERT INTO {schema}.run SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::timestamptz[],
    $5::timestamptz[], $6::text[], $7::text[])

-- name: move_settings_in
WITH queues AS (INSERT INTO {schema}.queue SELECT q.name FROM unnest($1::text[]) AS q (name)
    WHERE NOT EXISTS (SELECT FROM {schema}.queue k WHERE k.name = q.name)),
limits AS (INSERT INTO {schema}.queue_limit SELECT * FROM unnest($2::text[], $3::bigint[]) ON CONFLICT DO NOTHING)
INSERT INTO {schema}.paused SELECT * FROM unnest($4::text[]) ON CONFLICT DO NOTHING

-- name: move_schedules_in
INSERT INTO {schema}.schedule SELECT * FROM unnest($1::text[], $2::bigint[], $3::timestamptz[], $4::bytea[])
ON CONFLICT DO NOTHING RETURNING name

-- name: ring
SELECT pg_notify($1::text, ''), pg_notify($2::text, '')
