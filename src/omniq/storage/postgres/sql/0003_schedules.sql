-- Schedules. What a record says is decided by whoever reads it; here it is only exchanged for the next one.

CREATE TABLE schedule (
    name text COLLATE "C" PRIMARY KEY,
    revision bigint NOT NULL,
    next_at timestamptz,                               -- NULL: paused, or never again
    record bytea NOT NULL
);
CREATE INDEX schedule_next ON schedule (next_at) WHERE next_at IS NOT NULL;

-- A schedule as it is now, and the tasks of its ticks, if nobody changed it since it was read (`before`; 0 if there
-- was none). The ids of the tasks that were made; NULL where somebody did. A tick whose id is known (OQ001), or whose
-- queue is full (OQ004), makes no task.
CREATE FUNCTION write_schedule(
    schedule_name text, before bigint, new_revision bigint, new_next_at timestamptz, new_record bytea,
    ids text[], digests bytea[], func_paths text[], payloads bytea[], queues text[], ranks smallint[],
    etas timestamptz[], delays float8[], expiries timestamptz[], expiry_delays float8[], intervals float8[],
    timeouts float8[], max_retries_of integer[], max_losses_of integer[], keys text[], headers_of text[],
    on_failures text[], result_ttls float8[], OUT made text[]) LANGUAGE plpgsql
SET search_path FROM CURRENT AS $body$
DECLARE
    was_made boolean;
BEGIN
    IF before = 0 THEN
        INSERT INTO schedule VALUES (schedule_name, new_revision, new_next_at, new_record) ON CONFLICT DO NOTHING;
    ELSE
        UPDATE schedule s SET revision = new_revision, next_at = new_next_at, record = new_record
        WHERE s.name = schedule_name AND s.revision = before;
    END IF;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    made := '{}';
    FOR n IN 1 .. cardinality(ids) LOOP
        BEGIN
            SELECT e.created INTO was_made FROM enqueue(
                ids[n:n], digests[n:n], func_paths[n:n], payloads[n:n], queues[n:n], ranks[n:n], etas[n:n],
                delays[n:n], expiries[n:n], expiry_delays[n:n], intervals[n:n], timeouts[n:n], max_retries_of[n:n],
                max_losses_of[n:n], keys[n:n], headers_of[n:n], on_failures[n:n], result_ttls[n:n], 'skip') e;
            IF coalesce(was_made, true) THEN  -- no row: everything was new
                made := made || ids[n];
            END IF;
        EXCEPTION WHEN SQLSTATE 'OQ001' OR SQLSTATE 'OQ004' THEN
            NULL;
        END;
    END LOOP;
END $body$;
