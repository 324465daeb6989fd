-- The verbs that need several steps. A function is still one round trip and one transaction, and each of its
-- statements has a new snapshot: a claim sees what the settle before it put back, a settle that waited for another
-- one of the same run can tell what that one did, and a repeated claim waits for the first.
--
-- action: 0 succeed, 1 repeat, 2 retry, 3 fail, 4 continue, 5 give back, 6 lose
--
-- The planner's switches travel with the function, so they hold behind a pooler too. Without them a plan that was
-- made while the table was empty reads all of it for ever. Names are found in the schema that the function is in.

-- The one clock. Within a long transaction of the caller's own it is that of the statement.
CREATE FUNCTION clock() RETURNS timestamptz LANGUAGE sql STABLE AS 'SELECT statement_timestamp()';

CREATE FUNCTION after(seconds float8) RETURNS timestamptz LANGUAGE sql STABLE
    AS 'SELECT clock() + make_interval(secs => seconds)';

-- The pause after a death: none the first time, then doubling from one second.
CREATE FUNCTION loss_delay(times integer) RETURNS float8 LANGUAGE sql IMMUTABLE
    AS 'SELECT CASE WHEN times = 0 THEN 0 ELSE least(3600, 2 ^ least(times - 1, 30)) END';

-- What becomes of a run that is settled: only success wins over a cancel request (T12).
CREATE FUNCTION verdict(action smallint, cancel_requested boolean, losses integer, max_losses integer)
RETURNS smallint LANGUAGE sql IMMUTABLE AS $body$
    SELECT (CASE WHEN action = 0 THEN 2 WHEN cancel_requested THEN 4 WHEN action = 3 THEN 3
        WHEN action = 6 AND losses + 1 >= max_losses THEN 3 ELSE 0 END)::smallint
$body$;

-- What becomes of a run whose worker is gone (T8, T9).
CREATE FUNCTION fate(cancel_requested boolean, suspected boolean, losses integer, max_losses integer)
RETURNS smallint LANGUAGE sql IMMUTABLE AS $body$
    SELECT (CASE WHEN cancel_requested THEN 4 WHEN suspected THEN 0 WHEN losses + 1 >= max_losses THEN 3
        ELSE 0 END)::smallint
$body$;

CREATE FUNCTION error_text(type text, message text, kind text) RETURNS text LANGUAGE sql IMMUTABLE AS $body$
    SELECT json_build_object('type', type, 'message', message, 'traceback', '', 'kind', kind)::text
$body$;

-- After the commit: wake who sleeps until something is due, and who waits for a result.
CREATE FUNCTION ring(due boolean, result boolean) RETURNS void LANGUAGE plpgsql AS $body$
BEGIN
    IF due THEN
        PERFORM pg_notify('omniq_due_' || md5(current_schema()), '');
    END IF;
    IF result AND EXISTS (SELECT FROM ear WHERE until > now()) THEN
        PERFORM pg_notify('omniq_result_' || md5(current_schema()), '');
    END IF;
END $body$;

CREATE FUNCTION minute() RETURNS timestamptz LANGUAGE sql STABLE AS 'SELECT date_trunc(''minute'', clock())';

-- Put tallies together, at most so many rows at a time and one caller at a time: what is older than two hours in one
-- row per queue, the rest in one per minute and queue. Whoever comes meanwhile goes away again. Always a transaction of
-- its own: in that of an application it could fail over what others have put together since its snapshot.
CREATE FUNCTION fold_tallies(page bigint) RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT AS $body$
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtextextended('omniq fold ' || current_schema(), 0)) THEN
        RETURN;
    END IF;
    WITH old AS (
        DELETE FROM tally t WHERE t.ctid = ANY (ARRAY(SELECT o.ctid FROM tally o LIMIT page FOR UPDATE SKIP LOCKED))
        RETURNING t.*)
    INSERT INTO tally SELECT CASE WHEN o.minute < minute() - interval '120 minutes' THEN 'epoch' ELSE o.minute END,
        o.queue, sum(o.pending), sum(o.running), sum(o.success), sum(o.failed), sum(o.cancelled), sum(o.enqueued),
        sum(o.succeeded), sum(o.given_up), sum(o.stopped), sum(o.retried), sum(o.lost)
    FROM old o GROUP BY 1, 2;
END $body$;

-- T1 for all or none. Nearly always everything is new, so it is inserted first; only what did not go in is looked
-- at, one by one and in order. ON CONFLICT waits for a transaction that holds the same id or key, and then sees it.
-- It may be part of an application's transaction, strict or open for long: rows are only added, none that concerns
-- others is touched, but for the limit of a queue and the task that 'replace' changes. The latest moment was written before (`announce`), tallies are put together elsewhere.
CREATE FUNCTION enqueue(
    ids text[], digests bytea[], func_paths text[], payloads bytea[], queues text[], ranks smallint[],
    etas timestamptz[], delays float8[], expiries timestamptz[], expiry_delays float8[], intervals float8[],
    timeouts float8[], max_retries_of integer[], max_losses_of integer[], keys text[], headers_of text[],
    on_failures text[], result_ttls float8[], on_conflict text)
RETURNS TABLE (n integer, id text, created boolean) LANGUAGE plpgsql
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
SET jit = off SET plan_cache_mode = force_generic_plan AS $body$
#variable_conflict use_column
DECLARE
    new_ids text[];
    new_digests bytea[];
    all_ids text[] := ids;
    all_digests bytea[] := digests;
    next_new integer := 1;
    limited boolean;
    filled text[];  -- the queues of what was created
BEGIN
    -- One at a time where a queue has a limit, or two could fill the last place of it.
    PERFORM FROM queue_limit l WHERE l.queue = ANY (queues) ORDER BY l.queue FOR UPDATE;
    limited := FOUND;
    -- In a stricter isolation level this could fail, or make another one fail; there it was done before (`announce`).
    IF current_setting('transaction_isolation') = 'read committed' THEN
        INSERT INTO queue SELECT DISTINCT q.name FROM unnest(queues) AS q (name)
            WHERE NOT EXISTS (SELECT FROM queue k WHERE k.name = q.name);
    END IF;
    WITH put AS (
        INSERT INTO task (id, digest, func_path, payload, queue, rank, eta, due, expires_at, "interval", timeout,
            max_retries, max_losses, unique_key, headers, on_failure, result_ttl, enqueued_at)
        SELECT v.id, v.digest, v.func_path, v.payload, v.queue, v.rank, coalesce(after(v.delay), v.eta),
            coalesce(after(v.delay), v.eta, clock()), coalesce(after(v.expiry_delay), v.expires_at), v.pause,
            v.timeout, v.max_retries, v.max_losses, v.key, v.headers, v.on_failure, v.result_ttl, clock()
        FROM unnest(ids, digests, func_paths, payloads, queues, ranks, etas, delays, expiries, expiry_delays,
            intervals, timeouts, max_retries_of, max_losses_of, keys, headers_of, on_failures, result_ttls)
            WITH ORDINALITY AS v (id, digest, func_path, payload, queue, rank, eta, delay, expires_at, expiry_delay,
                pause, timeout, max_retries, max_losses, key, headers, on_failure, result_ttl, n)
        WHERE NOT EXISTS (SELECT FROM gone g WHERE g.id = v.id AND g.until > clock())
        ORDER BY v.n
        ON CONFLICT DO NOTHING RETURNING task.seq, task.id, task.digest, task.queue),
    tallied AS (
        INSERT INTO tally (minute, queue, pending, enqueued)
        SELECT minute(), p.queue, count(*), count(*) FROM put p GROUP BY p.queue)
    SELECT array_agg(p.id ORDER BY p.seq), array_agg(p.digest ORDER BY p.seq) INTO new_ids, new_digests FROM put p;
    IF cardinality(new_ids) = cardinality(ids) THEN
        IF limited THEN
            PERFORM check_depth(queues);
        END IF;
        PERFORM ring(true, false);
        RETURN;  -- no row: everything was created
    END IF;
    FOR number IN 1 .. cardinality(all_ids) LOOP
        n := number;
        id := all_ids[number];
        created := id IS NOT DISTINCT FROM new_ids[next_new]
            AND all_digests[number] IS NOT DISTINCT FROM new_digests[next_new];
        IF created THEN
            next_new := next_new + 1;
        ELSE
            SELECT p.at_id, p.created INTO id, created FROM place(
                id, all_digests[number], func_paths[number], payloads[number], queues[number], ranks[number],
                coalesce(after(delays[number]), etas[number]),
                coalesce(after(expiry_delays[number]), expiries[number]), intervals[number], timeouts[number],
                max_retries_of[number], max_losses_of[number], keys[number], headers_of[number],
                on_failures[number], result_ttls[number], on_conflict) p;
        END IF;
        IF created AND limited THEN
            filled := filled || queues[number];
        END IF;
        RETURN NEXT;
    END LOOP;
    IF limited THEN
        PERFORM check_depth(filled);
    END IF;
    PERFORM ring(true, false);
END $body$;

-- After an insert. OQ004: more wait in one of these queues than may.
CREATE FUNCTION check_depth(queues text[]) RETURNS void LANGUAGE plpgsql AS $body$
DECLARE
    full_one record;
BEGIN
    SELECT l.queue, l.max_depth INTO full_one FROM queue_limit l WHERE l.queue = ANY (queues) AND l.max_depth < (
        SELECT count(*) FROM (
            SELECT FROM task t WHERE t.status = 0 AND t.queue = l.queue LIMIT l.max_depth + 1) w) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'OQ004', MESSAGE = full_one.queue, DETAIL = full_one.max_depth;
    END IF;
END $body$;

-- One task that could not simply be inserted. OQ001: the id belongs to another call. OQ002: the key is held.
CREATE FUNCTION place(
    new_id text, new_digest bytea, new_func_path text, new_payload bytea, new_queue text, new_rank smallint,
    new_eta timestamptz, new_expires_at timestamptz, new_interval float8, new_timeout float8,
    new_max_retries integer, new_max_losses integer, new_key text, new_headers text, new_on_failure text,
    new_result_ttl float8, on_conflict text)
RETURNS TABLE (at_id text, created boolean) LANGUAGE plpgsql AS $body$
DECLARE
    known_digest bytea;
    attempts_left integer := 20;  -- a holder that ends between two looks frees its key; so often at most
BEGIN
    LOOP
        SELECT coalesce((SELECT t.digest FROM task t WHERE t.id = new_id),
            (SELECT g.digest FROM gone g WHERE g.id = new_id AND g.until > clock())) INTO known_digest;
        IF known_digest <> new_digest THEN
            RAISE EXCEPTION USING ERRCODE = 'OQ001', MESSAGE = new_id;
        ELSIF known_digest IS NOT NULL THEN
            RETURN QUERY SELECT new_id, false;
            RETURN;
        END IF;
        SELECT t.id INTO at_id FROM task t WHERE t.unique_key = new_key AND t.unique_key IS NOT NULL AND t.status < 2;
        IF at_id IS NOT NULL THEN
            IF on_conflict = 'raise' THEN
                RAISE EXCEPTION USING ERRCODE = 'OQ002', MESSAGE = at_id, DETAIL = new_key;
            ELSIF on_conflict = 'replace' THEN
                -- The digest stays that of the first enqueue: whoever repeats that one is told "already there".
                UPDATE task t SET func_path = new_func_path, payload = new_payload, eta = new_eta,
                    due = coalesce(new_eta, t.enqueued_at) WHERE t.id = at_id AND t.status = 0;
            END IF;
            RETURN QUERY SELECT at_id, false;
            RETURN;
        END IF;
        INSERT INTO task (id, digest, func_path, payload, queue, rank, eta, due, expires_at, "interval", timeout,
            max_retries, max_losses, unique_key, headers, on_failure, result_ttl, enqueued_at)
        VALUES (new_id, new_digest, new_func_path, new_payload, new_queue, new_rank, new_eta,
            coalesce(new_eta, clock()), new_expires_at, new_interval, new_timeout, new_max_retries, new_max_losses,
            new_key, new_headers, new_on_failure, new_result_ttl, clock())
        ON CONFLICT DO NOTHING;
        IF FOUND THEN
            INSERT INTO tally (minute, queue, pending, enqueued) VALUES (minute(), new_queue, 1, 1);
            RETURN QUERY SELECT new_id, true;
            RETURN;
        END IF;
        attempts_left := attempts_left - 1;
        IF attempts_left = 0 THEN
            RAISE EXCEPTION USING ERRCODE = 'OQ003', MESSAGE = 'the key changes hands too fast';
        END IF;
    END LOOP;
END $body$;

-- T4 for a batch in which everything succeeded, as nearly every batch is: no verdict, no history. The numbers of those
-- that were ours; NULL for none. `status + 0` as in `conclude`.
CREATE FUNCTION succeed(ids text[], epochs bigint[], results bytea[], success_ttl float8) RETURNS bigint[]
LANGUAGE plpgsql AS $body$
DECLARE
    held bigint[];
BEGIN
    WITH closed AS (
        UPDATE task t SET status = 2, finished_at = clock(), error = NULL,
            result = s.result, result_status = 2, result_at = clock(),
            prune_at = after(coalesce(t.result_ttl, success_ttl)),
            owner = NULL, claim_id = NULL, lease_until = NULL, isolates = false, cancel_requested = false
        FROM unnest(ids, epochs, results) WITH ORDINALITY AS s (id, epoch, result, n)
        WHERE t.id = s.id AND t.epoch = s.epoch AND t.status + 0 = 1
        RETURNING s.n, t.queue),
    tallied AS (
        INSERT INTO tally (minute, queue, running, success, succeeded)
        SELECT minute(), c.queue, -count(*), count(*), count(*) FROM closed c GROUP BY c.queue)
    SELECT array_agg(c.n) INTO held FROM closed c;
    RETURN held;
END $body$;

-- T4 to T7, T12: whatever was said, sorted by id, which is the order of locks. `held` are the numbers of those
-- that were ours. The SET expressions see the newest version of a row, also when a cancel was committed after our
-- snapshot: that is the cancel race. `status + 0` hides the index of running rows, which looks cheaper than the key
-- and is full of dead entries.
CREATE FUNCTION conclude(
    ids text[], epochs bigint[], actions smallint[], results bytea[], delays float8[], errors text[],
    poisons text[], success_ttl float8, failure_ttl float8,
    OUT held bigint[], OUT rang_due boolean, OUT rang_result boolean) LANGUAGE plpgsql AS $body$
BEGIN
    WITH said AS MATERIALIZED (
        SELECT * FROM unnest(ids, epochs, actions, results, delays, errors, poisons)
            WITH ORDINALITY AS v (id, epoch, action, result, delay, error, poison, n)),
    closed AS (
        UPDATE task t SET
            status = verdict(s.action, t.cancel_requested, t.losses, t.max_losses),
            attempts = CASE WHEN s.action IN (0, 5, 6) OR t.cancel_requested THEN t.attempts
                WHEN s.action IN (2, 3) THEN t.attempts + 1 ELSE 0 END,
            losses = CASE WHEN s.action NOT IN (1, 6) OR t.cancel_requested THEN t.losses
                WHEN s.action = 1 THEN 0 ELSE t.losses + 1 END,
            suspicions = CASE WHEN s.action = 1 AND NOT t.cancel_requested THEN 0 ELSE t.suspicions END,
            error = CASE WHEN s.action = 0 THEN NULL
                WHEN t.cancel_requested THEN error_text('Cancelled', 'cancelled while it ran', 'cancelled')
                WHEN s.action = 6 AND t.losses + 1 >= t.max_losses THEN s.poison
                WHEN s.action IN (5, 6) THEN t.error ELSE s.error END,
            eta = CASE WHEN verdict(s.action, t.cancel_requested, t.losses, t.max_losses) > 0 THEN t.eta
                WHEN s.action = 6 THEN after(loss_delay(t.losses)) ELSE after(greatest(0, s.delay)) END,
            due = CASE WHEN verdict(s.action, t.cancel_requested, t.losses, t.max_losses) > 0 THEN t.due
                WHEN s.action = 6 THEN after(loss_delay(t.losses)) ELSE after(greatest(0, s.delay)) END,
            finished_at = CASE WHEN verdict(s.action, t.cancel_requested, t.losses, t.max_losses) > 0 THEN clock() END,
            result = CASE WHEN s.action = 0 THEN s.result
                WHEN verdict(s.action, t.cancel_requested, t.losses, t.max_losses) > 0 THEN NULL
                WHEN s.action = 1 THEN s.result WHEN s.action = 4 THEN NULL ELSE t.result END,
            result_status = CASE WHEN verdict(s.action, t.cancel_requested, t.losses, t.max_losses) > 0
                    THEN verdict(s.action, t.cancel_requested, t.losses, t.max_losses)
                WHEN s.action = 1 THEN 2 WHEN s.action = 4 THEN 3 ELSE t.result_status END,
            result_at = CASE WHEN verdict(s.action, t.cancel_requested, t.losses, t.max_losses) > 0
                OR s.action IN (1, 4) THEN clock() ELSE t.result_at END,
            prune_at = CASE WHEN s.action = 0 THEN after(coalesce(t.result_ttl, success_ttl))
                WHEN verdict(s.action, t.cancel_requested, t.losses, t.max_losses) > 0 THEN after(failure_ttl) END,
            owner = NULL, claim_id = NULL, lease_until = NULL, isolates = false, cancel_requested = false
        FROM said s WHERE t.id = s.id AND t.epoch = s.epoch AND t.status + 0 = 1
        RETURNING s.n, t.id, t.seq, t.epoch, t.queue, t.status, t.result_status, s.action, s.error),
    tallied AS (
        INSERT INTO tally (minute, queue, pending, running, success, failed, cancelled, succeeded, given_up, stopped,
            retried, lost)
        SELECT minute(), c.queue, count(*) FILTER (WHERE c.status = 0), -count(*), count(*) FILTER (WHERE c.status = 2),
            count(*) FILTER (WHERE c.status = 3), count(*) FILTER (WHERE c.status = 4),
            count(*) FILTER (WHERE c.status = 2 OR c.action = 1 AND c.status = 0),
            count(*) FILTER (WHERE c.status = 3 OR c.action = 4 AND c.status = 0),
            count(*) FILTER (WHERE c.status = 4), count(*) FILTER (WHERE c.action = 2 AND c.status = 0),
            count(*) FILTER (WHERE c.action = 6 AND c.status <> 4)
        FROM closed c GROUP BY c.queue),
    noted AS (  -- the snapshot still shows the row as it ran, with its owner
        INSERT INTO run SELECT c.seq, c.epoch, was.owner, was.started_at, clock(),
            CASE WHEN c.status = 4 THEN 'cancelled' ELSE outcome_of(c.action) END, c.error
        FROM closed c JOIN task was ON was.id = c.id WHERE c.action <> 0),
    trimmed AS (
        DELETE FROM run r USING closed c WHERE c.action <> 0 AND r.seq = c.seq AND r.epoch <=
            (SELECT o.epoch FROM run o WHERE o.seq = c.seq ORDER BY o.epoch DESC OFFSET 19 LIMIT 1))
    SELECT array_agg(c.n), bool_or(c.status = 0), bool_or(c.result_status IS NOT NULL)
        INTO held, rang_due, rang_result FROM closed c;
END $body$;

-- What is true of those that were not ours to settle, by their numbers: was this very outcome recorded before?
CREATE FUNCTION truth(ids text[], epochs bigint[], actions smallint[], held bigint[]) RETURNS text
LANGUAGE plpgsql AS $body$
BEGIN
    RETURN (SELECT json_object_agg(s.n, CASE
        WHEN s.action = 0 AND t.status = 2 AND t.epoch = s.epoch THEN 'already'
        WHEN EXISTS (SELECT FROM run r WHERE r.seq = t.seq AND r.epoch = s.epoch AND
            (r.outcome = outcome_of(s.action) OR s.action <> 0 AND r.outcome = 'cancelled')) THEN 'already'
        ELSE 'stale' END)::text
    FROM (SELECT v.id, v.epoch, coalesce(v.action, 0::smallint) AS action, v.n
        FROM unnest(ids, epochs, actions) WITH ORDINALITY AS v (id, epoch, action, n)) s
        LEFT JOIN task t ON t.id = s.id WHERE held IS NULL OR s.n <> ALL (held));
END $body$;

CREATE FUNCTION outcome_of(action smallint) RETURNS text LANGUAGE sql IMMUTABLE AS $body$
    SELECT (ARRAY['success', 'success', 'retried', 'failed', 'failed', 'given back', 'died'])[action + 1]
$body$;

-- The cursor as one place for each queue and priority, in that order. Grouped rather than joined, which without hash
-- joins takes as many steps as there are queues times places.
CREATE FUNCTION spread(names text[], at_queues text[], at_ranks smallint[], at_dues timestamptz[], at_seqs bigint[],
    OUT dues timestamptz[], OUT seqs bigint[]) LANGUAGE sql STABLE AS $body$
    SELECT array_agg(g.due ORDER BY g.n, g.rank), array_agg(g.seq ORDER BY g.n, g.rank) FROM (
        SELECT max(u.n) AS n, u.rank, max(u.due) AS due, max(u.seq) AS seq FROM (
            SELECT q.name, q.n, r.rank::smallint AS rank, '-infinity'::timestamptz AS due, 0::bigint AS seq
            FROM unnest(names) WITH ORDINALITY AS q (name, n) CROSS JOIN generate_series(-9, 0) AS r (rank)
            UNION ALL
            SELECT a.queue, 0, a.rank, a.due, a.seq
            FROM unnest(at_queues, at_ranks, at_dues, at_seqs) AS a (queue, rank, due, seq)) u
        GROUP BY u.name, u.rank HAVING max(u.n) > 0) g
$body$;

-- Which due tasks come next, locked: priority, then due, then order of enqueueing. One range of the index for each
-- queue and priority, read from its cursor on: tasks that are due later are never walked over, and what was claimed
-- before the cursor, whose dead entries stay until a vacuum, is not walked over again. The loops are lazy: below
-- the priority where the limit is reached nothing is read. Expired tasks are passed over; `lapse` ends them.
-- `horizon` is now, unless the clock was set back: up to there what has no eta is due.
CREATE FUNCTION pick(
    horizon timestamptz, names text[], wanted bigint, scarce text[], scarce_limit bigint,
    at_queues text[], at_ranks smallint[], at_dues timestamptz[], at_seqs bigint[])
RETURNS tid[] LANGUAGE plpgsql AS $body$
DECLARE
    places tid[];
    dues timestamptz[];  -- of the cursor, in the order of queues and priorities; NULL: there is none
    seqs bigint[];
BEGIN
    IF cardinality(names) = 1 AND NOT names <@ scarce THEN
        SELECT array_agg(p.place) INTO places FROM (
            SELECT l.place FROM generate_series(-9, 0) AS r (rank)
            LEFT JOIN unnest(at_queues, at_ranks, at_dues, at_seqs) AS a (queue, rank, due, seq)
                ON a.queue = names[1] AND a.rank = r.rank
            CROSS JOIN LATERAL (
                SELECT t.ctid AS place FROM task t WHERE t.status = 0 AND t.queue = names[1]
                    AND t.rank = r.rank::smallint AND t.due <= horizon
                    AND (t.due <= clock() OR t.eta IS NULL) AND (t.due, t.seq) >= (coalesce(a.due, '-infinity'), coalesce(a.seq, 0))
                    AND (t.expires_at IS NULL OR t.expires_at > clock())
                ORDER BY t.due, t.seq LIMIT wanted FOR UPDATE SKIP LOCKED) l
            LIMIT wanted) p;
        RETURN places;
    END IF;
    -- Several queues: first how many of each stand among the first `wanted`, without locks, then so many locked.
    -- Locking `wanted` of each would take more than is handed out and hide it from others.
    IF cardinality(at_queues) > 0 THEN
        SELECT s.dues, s.seqs INTO dues, seqs FROM spread(names, at_queues, at_ranks, at_dues, at_seqs) s;
    END IF;
    WITH ranges AS MATERIALIZED (
        SELECT r.rank::smallint AS rank, q.name, q.name = ANY (scarce) AS scarce,
            coalesce(dues[10 * q.n + r.rank], '-infinity') AS due, coalesce(seqs[10 * q.n + r.rank], 0) AS seq
        FROM generate_series(-9, 0) AS r (rank) CROSS JOIN unnest(names) WITH ORDINALITY AS q (name, n)),
    heads AS (
        (SELECT h.* FROM generate_series(-9, 0) AS r (rank) CROSS JOIN LATERAL (
            SELECT w.rank, w.name, w.due AS from_due, w.seq AS from_seq, t.due, t.seq FROM ranges w CROSS JOIN LATERAL (
                SELECT t.due, t.seq FROM task t WHERE t.status = 0 AND t.queue = w.name AND t.rank = w.rank
                    AND t.due <= horizon AND (t.due <= clock() OR t.eta IS NULL)
                    AND (t.due, t.seq) >= (w.due, w.seq)
                    AND (t.expires_at IS NULL OR t.expires_at > clock())
                ORDER BY t.due, t.seq LIMIT wanted) t
            WHERE w.rank = r.rank AND NOT w.scarce ORDER BY t.due, t.seq LIMIT wanted) h LIMIT wanted)
        UNION ALL
        (SELECT h.* FROM generate_series(-9, 0) AS r (rank) CROSS JOIN LATERAL (
            SELECT w.rank, w.name, w.due AS from_due, w.seq AS from_seq, t.due, t.seq FROM ranges w CROSS JOIN LATERAL (
                SELECT t.due, t.seq FROM task t WHERE t.status = 0 AND t.queue = w.name AND t.rank = w.rank
                    AND t.due <= horizon AND (t.due <= clock() OR t.eta IS NULL)
                    AND (t.due, t.seq) >= (w.due, w.seq)
                    AND (t.expires_at IS NULL OR t.expires_at > clock())
                ORDER BY t.due, t.seq LIMIT least(wanted, scarce_limit)) t
            WHERE w.rank = r.rank AND w.scarce ORDER BY t.due, t.seq LIMIT least(wanted, scarce_limit)) h
        LIMIT least(wanted, scarce_limit))),
    shares AS MATERIALIZED (
        SELECT h.rank, h.name, h.from_due, h.from_seq, count(*) AS many
        FROM (SELECT * FROM heads ORDER BY rank, due, seq LIMIT wanted) h GROUP BY h.rank, h.name, h.from_due, h.from_seq)
    SELECT array_agg(l.place) INTO places FROM shares s CROSS JOIN LATERAL (
        SELECT t.ctid AS place FROM task t WHERE t.status = 0 AND t.queue = s.name AND t.rank = s.rank
            AND t.due <= horizon AND (t.due <= clock() OR t.eta IS NULL)
            AND (t.due, t.seq) >= (s.from_due, s.from_seq) AND (t.expires_at IS NULL OR t.expires_at > clock())
        ORDER BY t.due, t.seq LIMIT s.many FOR UPDATE SKIP LOCKED) l;
    RETURN places;
END $body$;

-- In how many seconds to look again after a claim that came back short: when the next task comes up. What is due and
-- was not handed out is held by somebody's lock, a claimer's most likely; if not, it is there again in a moment. The
-- last moment that Python can name arrives here as infinity, and comes up never.
CREATE FUNCTION next_look(
    names text[], at_queues text[], at_ranks smallint[], at_dues timestamptz[], at_seqs bigint[])
RETURNS float8 LANGUAGE plpgsql AS $body$
DECLARE
    dues timestamptz[];
    seqs bigint[];
BEGIN
    IF cardinality(at_queues) > 0 THEN
        SELECT s.dues, s.seqs INTO dues, seqs FROM spread(names, at_queues, at_ranks, at_dues, at_seqs) s;
    END IF;
    RETURN (SELECT min(CASE WHEN h.due <= clock() OR h.eta IS NULL THEN 0.1
            WHEN isfinite(h.due) THEN extract(epoch FROM h.due - clock()) END)::float8
        FROM generate_series(-9, 0) AS r (rank) CROSS JOIN unnest(names) WITH ORDINALITY AS q (name, n)
        CROSS JOIN LATERAL (
            SELECT t.due, t.eta FROM task t WHERE t.status = 0 AND t.queue = q.name AND t.rank = r.rank::smallint
                AND (t.due, t.seq) >= (coalesce(dues[10 * q.n + r.rank], '-infinity'), coalesce(seqs[10 * q.n + r.rank], 0))
                AND (t.expires_at IS NULL OR t.expires_at > clock())
            ORDER BY t.due, t.seq LIMIT 1) h);
END $body$;

-- Settle, then claim. One row for each claimed task, in no order, and at the end one without a task, for the call as a
-- whole. Without actions, all that is settled has succeeded. `missed`: see `truth`. `due_in`: when to look again, where
-- that is known. `walk_us`: how long the search for due tasks took.
-- A statement costs some ten microseconds by itself, a condition without a query hardly one: hence their shapes.
CREATE FUNCTION exchange(
    ids text[], epochs bigint[], actions smallint[], results bytea[], delays float8[], errors text[],
    poisons text[], success_ttl float8, failure_ttl float8,
    worker_id text, wanted_queues text[], wanted bigint, lease float8, new_claim_id text, new_isolates boolean,
    scarce text[], scarce_limit bigint,
    at_queues text[], at_ranks smallint[], at_dues timestamptz[], at_seqs bigint[])
RETURNS TABLE (
    missed text, rang_due boolean, rang_result boolean, due_in float8, walk_us bigint,
    seq bigint, id text, func_path text, payload bytea, queue text, rank smallint, eta timestamptz, due timestamptz,
    expires_at timestamptz, "interval" float8, timeout float8, max_retries integer, max_losses integer,
    unique_key text, headers text, on_failure text, result_ttl float8, epoch bigint, attempts integer,
    losses integer, suspicions integer, enqueued_at timestamptz, started_at timestamptz) LANGUAGE plpgsql
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
SET jit = off SET plan_cache_mode = force_generic_plan AS $body$
#variable_conflict use_column
DECLARE
    held bigint[];
    names text[];
    places tid[];
    began timestamptz;
    horizon timestamptz;
    known boolean;
    many bigint;  -- how many it is; NULL: none
BEGIN
    IF cardinality(ids) > 0 THEN
        IF cardinality(actions) = 0 THEN
            held := succeed(ids, epochs, results, success_ttl);
            rang_result := held IS NOT NULL;
        ELSE
            SELECT c.held, c.rang_due, c.rang_result INTO held, rang_due, rang_result FROM conclude(
                ids, epochs, actions, results, delays, errors, poisons, success_ttl, failure_ttl) c;
        END IF;
        IF held IS NULL OR cardinality(held) < cardinality(ids) THEN
            missed := truth(ids, epochs, actions, held);
        END IF;
        PERFORM ring(rang_due, rang_result);
    END IF;
    IF wanted IS NULL THEN
        RETURN NEXT;
        RETURN;
    END IF;
    -- The same claim, sent again while the first is still under way, waits here for its end.
    IF NOT pg_try_advisory_xact_lock(hashtextextended(new_claim_id || ' ' || worker_id, 0)) THEN
        PERFORM pg_advisory_xact_lock(hashtextextended(new_claim_id || ' ' || worker_id, 0));
    END IF;
    SELECT EXISTS (SELECT FROM task t WHERE t.status = 1 AND t.owner = worker_id AND t.claim_id = new_claim_id),
        (SELECT l.at + interval '1 minute' FROM latest l WHERE l.at > clock()),
        (SELECT array_agg(DISTINCT q.name) FROM (
            SELECT k.name FROM queue k WHERE wanted_queues IS NULL UNION ALL SELECT unnest(wanted_queues)) q
        WHERE NOT EXISTS (SELECT FROM paused p WHERE p.queue = q.name))
    INTO known, horizon, names;
    IF known THEN
        RETURN QUERY SELECT NULL::text, NULL::boolean, NULL::boolean, NULL::float8, NULL::bigint,
            t.seq, t.id, t.func_path, t.payload, t.queue, t.rank, t.eta, t.due, t.expires_at, t."interval",
            t.timeout, t.max_retries, t.max_losses, t.unique_key, t.headers, t.on_failure, t.result_ttl, t.epoch,
            t.attempts, t.losses, t.suspicions, t.enqueued_at, t.started_at
        FROM task t WHERE t.status = 1 AND t.owner = worker_id AND t.claim_id = new_claim_id;
        due_in := 0;
        RETURN NEXT;
        RETURN;
    END IF;
    IF cardinality(names) > 64 AND cardinality(at_queues) = 0 THEN
        -- Names are never forgotten: one look at each, instead of one at each of its priorities and then once more. Not
        -- where a cursor is used: this would begin at the start of each queue, with what was claimed there before.
        SELECT array_agg(q.name) INTO names FROM unnest(names) AS q (name) CROSS JOIN LATERAL (
            SELECT FROM task t WHERE t.status = 0 AND t.queue = q.name LIMIT 1) w;
    END IF;
    IF wanted > 0 AND names IS NOT NULL THEN
        began := clock_timestamp();
        places := pick(coalesce(horizon, clock()), names, wanted, scarce, scarce_limit, at_queues, at_ranks, at_dues, at_seqs);
        walk_us := extract(epoch FROM clock_timestamp() - began) * 1000000;
        many := cardinality(places);
        IF many > 0 AND cardinality(names) = 1 THEN
            INSERT INTO tally (minute, queue, pending, running) VALUES (minute(), names[1], -many, many);
        ELSIF many > 0 THEN
            INSERT INTO tally (minute, queue, pending, running)
            SELECT minute(), t.queue, -count(*), count(*) FROM task t WHERE t.ctid = ANY (places) GROUP BY t.queue;
        END IF;
    END IF;
    IF cardinality(scarce) > 0 THEN
        IF scarce_limit <= (SELECT count(*) FROM task t WHERE t.ctid = ANY (places) AND t.queue = ANY (scarce)) THEN
            -- Its share is used up: what else waits there is not for this worker now.
            SELECT array_agg(q.name) INTO names FROM unnest(names) AS q (name) WHERE q.name <> ALL (scarce);
        END IF;
    END IF;
    IF many > 0 THEN
        RETURN QUERY UPDATE task t SET status = 1, epoch = t.epoch + 1, owner = worker_id, claim_id = new_claim_id,
                started_at = clock(), lease_until = after(lease), isolates = new_isolates, progress = NULL
            WHERE t.ctid = ANY (places)
            RETURNING NULL::text, NULL::boolean, NULL::boolean, NULL::float8, NULL::bigint,
                t.seq, t.id, t.func_path, t.payload, t.queue, t.rank, t.eta, t.due, t.expires_at, t."interval",
                t.timeout, t.max_retries, t.max_losses, t.unique_key, t.headers, t.on_failure, t.result_ttl, t.epoch,
                t.attempts, t.losses, t.suspicions, t.enqueued_at, t.started_at;
    END IF;
    IF many = wanted THEN
        due_in := 0;  -- there may be more right away
    ELSE
        due_in := next_look(names, at_queues, at_ranks, at_dues, at_seqs);
    END IF;
    RETURN NEXT;
END $body$;

-- What a worker holds. These small ones are functions for their switches: they are asked all the time, also by
-- connections that were opened while the table was empty.
CREATE FUNCTION held(worker_id text)
RETURNS TABLE (id text, epoch bigint, cancel_requested boolean, seq bigint) LANGUAGE plpgsql
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $body$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT t.id, t.epoch, t.cancel_requested, t.seq FROM task t
        WHERE t.status = 1 AND t.owner = worker_id;
END $body$;

-- T3. A row that somebody else has locked is passed over: that is our own settle, or a cancel. Without SKIP LOCKED
-- this and a settle of the same worker can wait for each other. The answer names those rows all the same.
CREATE FUNCTION renew(worker_id text, lease float8)
RETURNS TABLE (id text, epoch bigint, cancel_requested boolean, seq bigint) LANGUAGE plpgsql
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $body$
#variable_conflict use_column
DECLARE
    places tid[];
BEGIN
    SELECT array_agg(h.ctid) INTO places FROM (
        SELECT t.ctid FROM task t WHERE t.status = 1 AND t.owner = worker_id FOR NO KEY UPDATE SKIP LOCKED) h;
    UPDATE task t SET lease_until = after(lease) WHERE t.ctid = ANY (places);
    RETURN QUERY SELECT t.id, t.epoch, t.cancel_requested, t.seq FROM task t
        WHERE t.status = 1 AND t.owner = worker_id;
END $body$;

-- Whether `lapse` would find anything.
CREATE FUNCTION anything_over() RETURNS boolean LANGUAGE plpgsql
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET plan_cache_mode = force_generic_plan AS $body$
BEGIN
    -- The first one in order, rather than any: only the index of those that expire has that order.
    RETURN EXISTS (SELECT FROM task t WHERE t.status = 1 AND t.lease_until <= clock()) OR coalesce(clock() >= (
        SELECT t.expires_at FROM task t WHERE t.status = 0 AND t.expires_at IS NOT NULL
        ORDER BY t.expires_at LIMIT 1), false);
END $body$;

-- Which of these are there and have no result yet.
CREATE FUNCTION unended(ids text[]) RETURNS SETOF text LANGUAGE plpgsql
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $body$
BEGIN
    RETURN QUERY SELECT t.id FROM task t WHERE t.id = ANY (ids) AND t.result_status IS NULL;
END $body$;

-- T8, T9, T12 for rows that the caller has locked.
CREATE FUNCTION lose(places tid[], failure_ttl float8, OUT many bigint, OUT rang_due boolean, OUT rang_result boolean)
LANGUAGE plpgsql AS $body$
BEGIN
    WITH taken AS (
        UPDATE task t SET
            status = fate(t.cancel_requested, w.suspected, t.losses, t.max_losses),
            suspicions = t.suspicions + (w.suspected AND NOT t.cancel_requested)::integer,
            losses = t.losses + (NOT w.suspected AND NOT t.cancel_requested)::integer,
            error = CASE fate(t.cancel_requested, w.suspected, t.losses, t.max_losses)
                WHEN 4 THEN error_text('Cancelled', 'cancelled while it ran', 'cancelled')
                WHEN 3 THEN error_text('WorkerLost',
                    format('its worker died, %s times while running it', t.losses + 1), 'poison')
                ELSE t.error END,
            eta = CASE WHEN fate(t.cancel_requested, w.suspected, t.losses, t.max_losses) > 0 THEN t.eta
                ELSE after(loss_delay(CASE WHEN w.suspected THEN t.suspicions ELSE t.losses END)) END,
            due = CASE WHEN fate(t.cancel_requested, w.suspected, t.losses, t.max_losses) > 0 THEN t.due
                ELSE after(loss_delay(CASE WHEN w.suspected THEN t.suspicions ELSE t.losses END)) END,
            finished_at = CASE WHEN fate(t.cancel_requested, w.suspected, t.losses, t.max_losses) > 0 THEN clock() END,
            result = CASE WHEN fate(t.cancel_requested, w.suspected, t.losses, t.max_losses) > 0 THEN NULL
                ELSE t.result END,
            result_status = CASE WHEN fate(t.cancel_requested, w.suspected, t.losses, t.max_losses) > 0
                THEN fate(t.cancel_requested, w.suspected, t.losses, t.max_losses) ELSE t.result_status END,
            result_at = CASE WHEN fate(t.cancel_requested, w.suspected, t.losses, t.max_losses) > 0 THEN clock()
                ELSE t.result_at END,
            prune_at = CASE WHEN fate(t.cancel_requested, w.suspected, t.losses, t.max_losses) > 0
                THEN after(failure_ttl) END,
            owner = NULL, claim_id = NULL, lease_until = NULL, isolates = false, cancel_requested = false
        FROM (SELECT o.ctid AS place, o.owner, o.isolates AND o.suspicions < 10 AS suspected
            FROM task o WHERE o.ctid = ANY (places)) w
        WHERE t.ctid = w.place
        RETURNING t.seq, t.epoch, w.owner, t.started_at, t.queue, t.status, t.result_status, t.error),
    tallied AS (
        INSERT INTO tally (minute, queue, pending, running, failed, cancelled, given_up, stopped, lost)
        SELECT minute(), c.queue, count(*) FILTER (WHERE c.status = 0), -count(*), count(*) FILTER (WHERE c.status = 3),
            count(*) FILTER (WHERE c.status = 4), count(*) FILTER (WHERE c.status = 3),
            count(*) FILTER (WHERE c.status = 4), count(*)
        FROM taken c GROUP BY c.queue),
    noted AS (
        INSERT INTO run SELECT c.seq, c.epoch, c.owner, c.started_at, clock(), 'lost',
            CASE WHEN c.status = 3 THEN c.error END FROM taken c),
    trimmed AS (
        DELETE FROM run r USING taken c WHERE r.seq = c.seq AND r.epoch <=
            (SELECT o.epoch FROM run o WHERE o.seq = c.seq ORDER BY o.epoch DESC OFFSET 19 LIMIT 1))
    SELECT count(*), bool_or(c.status = 0), bool_or(c.result_status IS NOT NULL)
        INTO many, rang_due, rang_result FROM taken c;
END $body$;

-- Everything of a worker that is known to be dead. It waits for locks, in the order of ids as settle does.
CREATE FUNCTION release(worker_id text, failure_ttl float8,
    OUT many bigint, OUT rang_due boolean, OUT rang_result boolean) LANGUAGE plpgsql
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
SET jit = off SET plan_cache_mode = force_generic_plan AS $body$
DECLARE
    places tid[];
BEGIN
    SELECT array_agg(h.ctid) INTO places FROM (
        SELECT t.ctid FROM task t WHERE t.status = 1 AND t.owner = worker_id ORDER BY t.id FOR UPDATE) h;
    many := 0;
    IF places IS NOT NULL THEN
        SELECT l.many, l.rang_due, l.rang_result INTO many, rang_due, rang_result FROM lose(places, failure_ttl) l;
        PERFORM ring(rang_due, rang_result);
    END IF;
END $body$;

-- What is over (T8, T9, T12), then what waited too long (T14); others that do the same pass each other by.
CREATE FUNCTION lapse(page bigint, failure_ttl float8,
    OUT many bigint, OUT rang_due boolean, OUT rang_result boolean) LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_sort = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
SET jit = off SET plan_cache_mode = force_generic_plan AS $body$
DECLARE
    places tid[];
    late bigint;
BEGIN
    SELECT array_agg(h.ctid) INTO places FROM (
        SELECT t.ctid FROM task t WHERE t.status = 1 AND t.lease_until <= clock()
        LIMIT page FOR UPDATE SKIP LOCKED) h;
    many := 0;
    IF places IS NOT NULL THEN
        SELECT l.many, l.rang_due, l.rang_result INTO many, rang_due, rang_result FROM lose(places, failure_ttl) l;
    END IF;
    IF many < page THEN
        SELECT array_agg(h.ctid) INTO places FROM (
            SELECT t.ctid FROM task t WHERE t.status = 0 AND t.expires_at IS NOT NULL AND t.expires_at <= clock()
            ORDER BY t.expires_at LIMIT page - many FOR UPDATE SKIP LOCKED) h;
        WITH ended AS (
            UPDATE task t SET status = 3, finished_at = clock(), result = NULL, result_status = 3,
                result_at = clock(), prune_at = after(failure_ttl),
                error = error_text('Expired', 'not started before ' || t.expires_at::text, 'expired')
            WHERE t.ctid = ANY (places) RETURNING t.queue),
        tallied AS (
            INSERT INTO tally (minute, queue, pending, failed, given_up)
            SELECT minute(), e.queue, -count(*), count(*), count(*) FROM ended e GROUP BY e.queue)
        SELECT count(*) INTO late FROM ended;
        many := many + late;
        rang_result := rang_result OR late > 0;
    END IF;
    PERFORM ring(rang_due, rang_result);
END $body$;

-- T10, T11. NULL: there is no such task.
CREATE FUNCTION cancel(task_id text, failure_ttl float8, OUT status_now smallint) LANGUAGE plpgsql
SET search_path FROM CURRENT AS $body$
DECLARE
    in_queue text;
BEGIN
    UPDATE task t SET
        status = CASE t.status WHEN 0 THEN 4 ELSE t.status END,
        cancel_requested = t.status = 1,
        finished_at = CASE t.status WHEN 0 THEN clock() END,
        error = CASE t.status WHEN 0 THEN error_text('Cancelled', 'cancelled before it ran', 'cancelled')
            ELSE t.error END,
        result = CASE t.status WHEN 0 THEN NULL ELSE t.result END,
        result_status = CASE t.status WHEN 0 THEN 4 ELSE t.result_status END,
        result_at = CASE t.status WHEN 0 THEN clock() ELSE t.result_at END,
        prune_at = CASE t.status WHEN 0 THEN after(failure_ttl) END
    WHERE t.id = task_id AND t.status < 2 RETURNING t.status, t.queue INTO status_now, in_queue;
    IF FOUND THEN
        IF status_now = 4 THEN
            INSERT INTO tally (minute, queue, pending, cancelled, stopped) VALUES (minute(), in_queue, -1, 1, 1);
        END IF;
        PERFORM ring(true, status_now = 4);
    ELSE
        SELECT t.status INTO status_now FROM task t WHERE t.id = task_id;
    END IF;
END $body$;

-- T13. Its status before, and who holds its key; nothing is changed where either stands in the way.
CREATE FUNCTION retry(task_id text, OUT status_before smallint, OUT key text, OUT holder text) LANGUAGE plpgsql
SET search_path FROM CURRENT AS $body$
DECLARE
    in_queue text;
BEGIN
    SELECT t.status, t.unique_key, t.queue INTO status_before, key, in_queue
        FROM task t WHERE t.id = task_id FOR UPDATE;
    IF status_before IS NULL OR status_before NOT IN (3, 4) THEN
        RETURN;
    END IF;
    SELECT t.id INTO holder FROM task t WHERE t.unique_key = key AND t.unique_key IS NOT NULL AND t.status < 2;
    IF holder IS NULL THEN
        INSERT INTO queue SELECT in_queue WHERE NOT EXISTS (SELECT FROM queue k WHERE k.name = in_queue);
        UPDATE task t SET status = 0, attempts = 0, losses = 0, suspicions = 0, eta = clock(), due = clock(),
            expires_at = NULL, cancel_requested = false, error = NULL, finished_at = NULL, result = NULL,
            result_status = NULL, result_at = NULL, prune_at = NULL
        WHERE t.id = task_id;
        INSERT INTO tally (minute, queue, pending, failed, cancelled) VALUES
            (minute(), in_queue, 1, -(status_before = 3)::integer, -(status_before = 4)::integer);
        PERFORM ring(true, false);
    END IF;
END $body$;

-- T15. Its status and epoch as they were found; only a waiting task moves.
CREATE FUNCTION reschedule(task_id text, new_eta timestamptz, at_epoch bigint,
    OUT status_before smallint, OUT epoch_before bigint) LANGUAGE plpgsql
SET search_path FROM CURRENT AS $body$
BEGIN
    SELECT t.status, t.epoch INTO status_before, epoch_before FROM task t WHERE t.id = task_id FOR UPDATE;
    IF status_before = 0 AND epoch_before = coalesce(at_epoch, epoch_before) THEN
        UPDATE task t SET eta = new_eta, due = new_eta WHERE t.id = task_id;
        PERFORM ring(true, false);
    END IF;
END $body$;

-- T16 for rows that the caller has locked: the id and the call are remembered for ten minutes.
CREATE FUNCTION forget(places tid[]) RETURNS bigint LANGUAGE sql AS $body$
    WITH dead AS (DELETE FROM task t WHERE t.ctid = ANY (places) 
        RETURNING t.seq, t.id, t.digest, t.queue, t.status),
    tallied AS (
        INSERT INTO tally (minute, queue, success, failed, cancelled)
        SELECT minute(), d.queue, -count(*) FILTER (WHERE d.status = 2), -count(*) FILTER (WHERE d.status = 3),
            -count(*) FILTER (WHERE d.status = 4)
        FROM dead d GROUP BY d.queue),
    remembered AS (
        INSERT INTO gone SELECT d.id, d.digest, after(600) FROM dead d
        ON CONFLICT (id) DO UPDATE SET digest = EXCLUDED.digest, until = EXCLUDED.until),
    runs AS (DELETE FROM run r USING dead d WHERE r.seq = d.seq)
    SELECT count(*) FROM dead
$body$;

-- T16 for one. Its status before; only what has ended goes.
CREATE FUNCTION remove(task_id text, OUT status_before smallint) LANGUAGE plpgsql
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off AS $body$
DECLARE
    place tid;
BEGIN
    SELECT t.status, t.ctid INTO status_before, place FROM task t WHERE t.id = task_id FOR UPDATE;
    IF status_before >= 2 THEN
        PERFORM forget(ARRAY[place]);
        PERFORM ring(false, true);
    END IF;
END $body$;

-- T16 for those whose time is over. What was remembered long enough goes too: ids for ten minutes, workers that are
-- silent for a day, parcels that came in for thirty.
CREATE FUNCTION prune(page bigint, OUT many bigint) LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_sort = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
SET jit = off SET plan_cache_mode = force_generic_plan AS $body$
DECLARE
    places tid[];
BEGIN
    SELECT array_agg(h.ctid) INTO places FROM (
        SELECT l.ctid FROM unnest(ARRAY[2, 3, 4]::smallint[]) AS s (status) CROSS JOIN LATERAL (
            SELECT t.ctid FROM task t WHERE t.status >= 2 AND t.status = s.status AND t.prune_at <= clock()
            ORDER BY t.prune_at LIMIT page FOR UPDATE SKIP LOCKED) l LIMIT page) h;
    many := 0;
    IF places IS NOT NULL THEN
        many := forget(places);
        PERFORM ring(false, true);
    END IF;
    DELETE FROM gone g WHERE g.ctid = ANY (ARRAY(
        SELECT o.ctid FROM gone o WHERE o.until <= clock() ORDER BY o.until LIMIT page FOR UPDATE SKIP LOCKED));
    DELETE FROM worker w WHERE w.seen_at < after(-86400);
    DELETE FROM parcel p WHERE p.body IS NULL AND p.at < after(-30 * 86400);
    -- Once nothing is left from before the clock was set back, claims need not look for it.
    UPDATE latest SET at = clock() WHERE at > after(60)
        AND NOT EXISTS (SELECT FROM task t WHERE t.status = 0 AND t.eta IS NULL AND t.due > clock());
    PERFORM fold_tallies(1000000);
END $body$;

-- How many due tasks of its queue a claim would hand out before this one; at most so many.
CREATE FUNCTION ahead(task_id text, most bigint) RETURNS bigint LANGUAGE plpgsql
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET plan_cache_mode = force_generic_plan AS $body$
DECLARE
    me task;
BEGIN
    SELECT * INTO me FROM task t WHERE t.id = task_id;
    IF me.id IS NULL THEN
        RETURN NULL;
    END IF;
    IF me.status <> 0 THEN
        RETURN 0;
    END IF;
    RETURN (SELECT count(*) FROM (
        (SELECT 1 FROM generate_series(-9, me.rank - 1) AS r (rank) CROSS JOIN LATERAL (
            SELECT FROM task t WHERE t.status = 0 AND t.queue = me.queue AND t.rank = r.rank::smallint
                AND t.due <= clock() AND (t.expires_at IS NULL OR t.expires_at > clock())
            ORDER BY t.due, t.seq LIMIT most) l LIMIT most)
        UNION ALL
        (SELECT 1 FROM task t WHERE t.status = 0 AND t.queue = me.queue AND t.rank = me.rank
            AND t.due <= clock() AND (t.due, t.seq) < (me.due, me.seq)
            AND (t.expires_at IS NULL OR t.expires_at > clock())
        ORDER BY t.due, t.seq LIMIT most)
        LIMIT most) c);
END $body$;

-- The due task that comes first in each queue and priority.
CREATE FUNCTION heads() RETURNS TABLE (queue text, rank smallint, id text, func_path text, due timestamptz)
LANGUAGE plpgsql SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan AS $body$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT h.queue, h.rank, h.id, h.func_path, h.due
        FROM (SELECT DISTINCT k.name FROM queue k) q CROSS JOIN generate_series(-9, 0) AS r (rank)
        CROSS JOIN LATERAL (
            SELECT t.queue, t.rank, t.id, t.func_path, t.due FROM task t WHERE t.status = 0 AND t.queue = q.name
                AND t.rank = r.rank::smallint AND t.due <= clock()
                AND (t.expires_at IS NULL OR t.expires_at > clock())
            ORDER BY t.due, t.seq LIMIT 1) h;
END $body$;

-- Tasks that match, newest first by their ids, among those that a bounded look reaches. Where an index knows that few
-- have the status, all of those are looked at; otherwise the next `look` ids. The first row has no task: it says
-- behind which id to look on, if there may be more. The text of an error is found as it stands in its JSON.
CREATE FUNCTION page(
    wanted_status smallint, wanted_queue text, wanted_path text, wanted_key text, wanted_owner text, error_part text,
    enqueued_after timestamptz, enqueued_before timestamptz, finished_after timestamptz, finished_before timestamptz,
    behind_id text, few bigint, look bigint, wanted bigint)
RETURNS TABLE (behind text, hit task) LANGUAGE plpgsql
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
SET jit = off SET plan_cache_mode = force_generic_plan AS $body$
#variable_conflict use_column
DECLARE
    places tid[];
    top text COLLATE "C" := coalesce(behind_id, chr(1114111));  -- no id is behind the last character there is
BEGIN
    IF wanted_status = 0 AND wanted_queue IS NOT NULL THEN
        places := ARRAY(SELECT t.ctid FROM task t WHERE t.status = 0 AND t.queue = wanted_queue LIMIT few + 1);
    ELSIF wanted_status = 0 THEN
        places := ARRAY(SELECT t.ctid FROM task t WHERE t.status = 0 LIMIT few + 1);
    ELSIF wanted_owner IS NOT NULL AND coalesce(wanted_status, 1) = 1 THEN
        places := ARRAY(SELECT t.ctid FROM task t WHERE t.status = 1 AND t.owner = wanted_owner LIMIT few + 1);
    ELSIF wanted_status = 1 THEN
        places := ARRAY(SELECT t.ctid FROM task t WHERE t.status = 1 LIMIT few + 1);
    ELSIF wanted_status >= 2 THEN
        places := ARRAY(SELECT t.ctid FROM task t WHERE t.status >= 2 AND t.status = wanted_status LIMIT few + 1);
    END IF;
    IF places IS NULL OR cardinality(places) > few THEN
        SELECT array_agg(c.ctid), min(c.id) INTO places, behind FROM (
            SELECT t.ctid, t.id FROM task t WHERE t.id < top ORDER BY t.id DESC LIMIT look) c;
        IF cardinality(places) < look THEN
            behind := NULL;
        END IF;
    END IF;
    RETURN NEXT;
    behind := NULL;
    FOR hit IN
        SELECT t.* FROM task t WHERE t.ctid = ANY (places) AND t.id < top
            AND (wanted_status IS NULL OR t.status = wanted_status) AND (wanted_queue IS NULL OR t.queue = wanted_queue)
            AND (wanted_path IS NULL OR t.func_path = wanted_path) AND (wanted_key IS NULL OR t.unique_key = wanted_key)
            AND (wanted_owner IS NULL OR t.owner = wanted_owner)
            AND (error_part IS NULL OR strpos(lower(t.error), lower(error_part)) > 0)
            AND (enqueued_after IS NULL OR t.enqueued_at > enqueued_after)
            AND (enqueued_before IS NULL OR t.enqueued_at < enqueued_before)
            AND (finished_after IS NULL OR t.finished_at > finished_after)
            AND (finished_before IS NULL OR t.finished_at < finished_before)
        ORDER BY t.id DESC LIMIT wanted
    LOOP
        RETURN NEXT;
    END LOOP;
END $body$;
