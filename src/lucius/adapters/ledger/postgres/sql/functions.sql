-- name: generic_plan
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_hashjoin = off SET enable_mergejoin = off

-- name: commit
-- Commits a group of decisions about different jobs. The caller sorts jobs by key, heads by id and counters by name, so
-- that two groups can't deadlock. Heads name the table the job was in and the one it is in now. Counters come last: all
-- groups update the same few, which are so locked for no longer than the commit takes.
CREATE FUNCTION commit_1(
    j_id bigint[], j_job_id text[], j_tenant text[], j_type text[], j_created bigint[], j_key text[], j_hash text[],
    j_command text[], j_doc text[], j_correlation text[], j_target text[],
    h_id bigint[], h_was smallint[], h_is smallint[], h_expected integer[], h_status text[], h_tenant text[],
    h_type text[], h_due bigint[], h_blocked text[], h_service text[], h_completed bigint[], h_body text[],
    h_error text[],
    s_job bigint[], s_step text[], s_status text[], s_outbox text[], s_body text[],
    a_job bigint[], a_step text[], a_no integer[], a_body text[],
    e_job bigint[], e_seq integer[], e_body text[],
    o_job bigint[], o_id text[], o_job_id text[], o_tenant text[], o_step text[], o_no integer[], o_lease text[],
    o_service text[], o_topic text[], o_lane smallint[], o_created bigint[], o_next bigint[], o_claimed bigint[],
    o_holder bigint[], o_until bigint[], o_seq bigint[],
    x_job bigint[], x_id text[],
    q_job bigint[], q_step text[], q_no integer[], q_lease text[], q_body text[],
    r_id text[], r_job_id text[], r_tenant text[], r_kind text[], r_status text[], r_signature text[], r_body text[],
    c_name text[], c_move bigint[], c_limit bigint[]
) RETURNS void LANGUAGE plpgsql {generic_plan} AS $$
DECLARE
    touched integer;
    found integer := 0;
BEGIN
    IF cardinality(j_id) > 0 THEN
        INSERT INTO jobs (id, job_id, tenant_id, request_type, created_at, key, hash, command, doc_id, correlation_id,
                          target)
        SELECT * FROM unnest(j_id, j_job_id, j_tenant, j_type, j_created, j_key, j_hash, j_command,
                             j_doc, j_correlation, j_target)
        ON CONFLICT DO NOTHING;
        GET DIAGNOSTICS touched = ROW_COUNT;
        IF touched < cardinality(j_id) THEN
            RAISE EXCEPTION 'a job or its key is there already' USING ERRCODE = '{sqlstate_conflict}';
        END IF;
    END IF;

    -- A group in which some jobs continue and others end touches the heads in two passes, so it first locks all of them
    -- by id. Other groups touch them in one pass, already in order, and skip this.
    IF 1 = ANY (h_is) AND 2 = ANY (h_is) THEN
        PERFORM 1 FROM live WHERE id = ANY (h_id) ORDER BY id FOR UPDATE;
        IF 2 = ANY (h_was) THEN
            PERFORM 1 FROM done WHERE id = ANY (h_id) ORDER BY id FOR UPDATE;
        END IF;
    END IF;

    UPDATE live SET
        version = h.expected + 1, status = h.status, due_at = h.due, look_at = least(live.look_at, h.due),
        blocked_on = h.blocked, blocked_service = h.service, holder = 0, held_until = 0, body = h.body
    FROM unnest(h_id, h_was, h_is, h_expected, h_status, h_due, h_blocked, h_service, h_body)
        AS h (id, was, now, expected, status, due, blocked, service, body)
    WHERE h.was = 1 AND h.now = 1 AND live.id = h.id AND live.version = h.expected;
    GET DIAGNOSTICS touched = ROW_COUNT;
    found := found + touched;

    IF 2 = ANY (h_is) THEN
        DELETE FROM live USING unnest(h_id, h_was, h_is, h_expected) AS h (id, was, now, expected)
        WHERE h.was = 1 AND h.now = 2 AND live.id = h.id AND live.version = h.expected;
        GET DIAGNOSTICS touched = ROW_COUNT;
        found := found + touched;
        UPDATE done SET
            version = h.expected + 1, status = h.status, completed_at = h.completed, body = h.body, error_code = h.error
        FROM unnest(h_id, h_was, h_is, h_expected, h_status, h_completed, h_body, h_error)
            AS h (id, was, now, expected, status, completed, body, error)
        WHERE h.was = 2 AND h.now = 2 AND done.id = h.id AND done.version = h.expected;
        GET DIAGNOSTICS touched = ROW_COUNT;
        found := found + touched;
        INSERT INTO done (id, version, status, tenant_id, request_type, completed_at, body, error_code)
        SELECT h.id, h.expected + 1, h.status, h.tenant, h.type, h.completed, h.body, h.error
        FROM unnest(h_id, h_was, h_is, h_expected, h_status, h_tenant, h_type, h_completed, h_body, h_error)
            AS h (id, was, now, expected, status, tenant, type, completed, body, error)
        WHERE h.was <> 2 AND h.now = 2
        ON CONFLICT DO NOTHING;
    END IF;

    IF 2 = ANY (h_was) THEN
        DELETE FROM done USING unnest(h_id, h_was, h_is, h_expected) AS h (id, was, now, expected)
        WHERE h.was = 2 AND h.now = 1 AND done.id = h.id AND done.version = h.expected;
        GET DIAGNOSTICS touched = ROW_COUNT;
        found := found + touched;
    END IF;

    IF 0 = ANY (h_was) OR 2 = ANY (h_was) THEN
        INSERT INTO live (id, version, status, tenant_id, request_type, due_at, look_at, blocked_on, blocked_service,
                          body)
        SELECT h.id, h.expected + 1, h.status, h.tenant, h.type, h.due, h.due, h.blocked, h.service, h.body
        FROM unnest(h_id, h_was, h_is, h_expected, h_status, h_tenant, h_type, h_due, h_blocked, h_service, h_body)
            AS h (id, was, now, expected, status, tenant, type, due, blocked, service, body)
        WHERE h.was <> 1 AND h.now = 1
        ON CONFLICT DO NOTHING;
    END IF;

    IF found < cardinality(h_id) - cardinality(j_id) THEN
        RAISE EXCEPTION 'a job has moved' USING ERRCODE = '{sqlstate_conflict}';
    END IF;

    IF cardinality(s_job) > 0 THEN
        INSERT INTO steps AS s (job, step_id, status, outbox_id, body)
        SELECT * FROM unnest(s_job, s_step, s_status, s_outbox, s_body)
        ON CONFLICT (job, step_id) DO UPDATE
        SET status = excluded.status, outbox_id = excluded.outbox_id, body = excluded.body;
    END IF;
    IF cardinality(a_job) > 0 THEN
        -- A timed-out attempt can still succeed (rule 3), so its row in the history may be updated once more.
        INSERT INTO attempts (job, step_id, attempt_no, body) SELECT * FROM unnest(a_job, a_step, a_no, a_body)
        ON CONFLICT (job, step_id, attempt_no) DO UPDATE SET body = excluded.body;
    END IF;
    IF cardinality(e_job) > 0 THEN
        INSERT INTO events (job, seq, body) SELECT * FROM unnest(e_job, e_seq, e_body);
    END IF;
    IF cardinality(x_job) > 0 THEN
        DELETE FROM outbox USING unnest(x_job, x_id) AS x (job, id)
        WHERE outbox.job = x.job AND outbox.outbox_id = x.id;
    END IF;
    IF cardinality(o_job) > 0 THEN
        INSERT INTO outbox (job, outbox_id, job_id, tenant_id, step_id, attempt_no, lease_id, service, topic, lane,
                            created_at, next_attempt_at, claimed_at, holder, held_until, seq)
        SELECT * FROM unnest(o_job, o_id, o_job_id, o_tenant, o_step, o_no, o_lease, o_service, o_topic, o_lane,
                             o_created, o_next, o_claimed, o_holder, o_until, o_seq)
        ON CONFLICT (job, outbox_id) DO UPDATE
        SET attempt_no = excluded.attempt_no, lease_id = excluded.lease_id, next_attempt_at = excluded.next_attempt_at,
            claimed_at = excluded.claimed_at, holder = excluded.holder, held_until = excluded.held_until;
    END IF;
    IF cardinality(q_job) > 0 THEN
        -- The same late success may be sent twice; keep the first.
        INSERT INTO quarantine (job, step_id, attempt_no, lease_id, body)
        SELECT * FROM unnest(q_job, q_step, q_no, q_lease, q_body) ON CONFLICT DO NOTHING;
    END IF;
    IF cardinality(r_id) > 0 THEN
        -- A repeated late success must not reopen a closed review.
        INSERT INTO reviews (review_id, job_id, tenant_id, kind, status, signature, body)
        SELECT * FROM unnest(r_id, r_job_id, r_tenant, r_kind, r_status, r_signature, r_body)
        ON CONFLICT (review_id) DO UPDATE
        SET kind = excluded.kind, status = excluded.status, signature = excluded.signature, body = excluded.body
        WHERE NOT (excluded.kind = 'STALE_RESULT' AND excluded.status = 'OPEN');
    END IF;
    IF cardinality(c_name) > 0 THEN
        WITH moved AS (
            INSERT INTO counters AS c (name, value) SELECT * FROM unnest(c_name, c_move)
            ON CONFLICT (name) DO UPDATE SET value = c.value + excluded.value
            RETURNING name, value
        )
        SELECT count(*) INTO touched FROM moved JOIN unnest(c_name, c_limit) AS cap (name, most) USING (name)
        WHERE moved.value > cap.most;
        IF touched > 0 THEN
            RAISE EXCEPTION 'a counter is at its limit' USING ERRCODE = '{sqlstate_over_limit}';
        END IF;
    END IF;
END $$;

-- name: take
-- Claims ready rows round-robin over the tenants, starting after the one served last. Rows held by other replicas or
-- locked at the moment are skipped, so no caller waits for another. A hold has no value after a crash, so it is written
-- with `synchronous_commit` off.
CREATE FUNCTION take_1(
    p_service text, p_after text, p_limit integer, p_lanes smallint[], p_except text[],
    p_holder bigint, p_now bigint, p_until bigint
) RETURNS SETOF outbox LANGUAGE plpgsql {generic_plan} AS $$
DECLARE
    behind text := p_after;
    wrapped boolean := p_after = '';
    tenant text;
    tenants text[] := '{}';
    share integer;
BEGIN
    LOOP
        SELECT o.tenant_id INTO tenant FROM outbox AS o
        WHERE o.service = p_service AND o.tenant_id > behind AND o.next_attempt_at IS NULL AND o.claimed_at IS NULL
          AND (p_lanes IS NULL OR o.lane = ANY (p_lanes)) AND (o.held_until < p_now OR o.holder = p_holder)
          AND (p_except IS NULL OR o.outbox_id <> ALL (p_except))
        ORDER BY o.tenant_id, o.seq LIMIT 1;
        IF tenant IS NOT NULL AND NOT (wrapped AND p_after <> '' AND tenant > p_after) THEN
            tenants := tenants || tenant;
            behind := tenant;
            EXIT WHEN cardinality(tenants) >= least(p_limit, {max_tenants});
        ELSIF wrapped THEN
            EXIT;
        ELSE
            wrapped := true;
            behind := '';
        END IF;
    END LOOP;
    IF cardinality(tenants) = 0 THEN
        RETURN;
    END IF;
    share := least(p_limit, 1 + 2 * p_limit / cardinality(tenants));

    PERFORM set_config('synchronous_commit', 'off', true);
    RETURN QUERY
    WITH mine AS MATERIALIZED (
        SELECT one.job, one.outbox_id, one.seq, one.turn, t.place
        FROM unnest(tenants) WITH ORDINALITY AS t (tenant_id, place)
        CROSS JOIN LATERAL (
            SELECT r.job, r.outbox_id, r.seq, row_number() OVER (ORDER BY r.seq) AS turn FROM (
                SELECT o.job, o.outbox_id, o.seq FROM outbox AS o
                WHERE o.service = p_service AND o.tenant_id = t.tenant_id
                  AND o.next_attempt_at IS NULL AND o.claimed_at IS NULL
                  AND (p_lanes IS NULL OR o.lane = ANY (p_lanes)) AND (o.held_until < p_now OR o.holder = p_holder)
                  AND (p_except IS NULL OR o.outbox_id <> ALL (p_except))
                ORDER BY o.seq LIMIT share FOR UPDATE SKIP LOCKED
            ) AS r
        ) AS one
        ORDER BY one.turn, t.place LIMIT p_limit
    ), held AS (
        UPDATE outbox SET holder = p_holder, held_until = p_until FROM mine
        WHERE p_until > 0 AND outbox.job = mine.job AND outbox.outbox_id = mine.outbox_id
    )
    SELECT o.* FROM mine JOIN outbox AS o ON o.job = mine.job AND o.outbox_id = mine.outbox_id
    ORDER BY mine.turn, mine.place;
END $$;

-- name: due
-- Sets `look_at` to `due_at` where it lags behind, so that it gives the true order; then claims the most overdue.
CREATE FUNCTION due_1(p_now bigint, p_limit integer, p_holder bigint, p_until bigint)
RETURNS TABLE (id bigint, due_at bigint) LANGUAGE plpgsql {generic_plan} AS $$
#variable_conflict use_column
BEGIN
    PERFORM 1 FROM live WHERE look_at <= p_now LIMIT 1;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    PERFORM set_config('synchronous_commit', 'off', true);
    UPDATE live SET look_at = live.due_at
    WHERE live.id IN (
        SELECT l.id FROM live AS l WHERE l.look_at <= p_now AND l.look_at IS DISTINCT FROM l.due_at
        ORDER BY l.look_at LIMIT 1000 FOR UPDATE SKIP LOCKED
    );
    RETURN QUERY
    WITH mine AS MATERIALIZED (
        SELECT l.id FROM live AS l
        WHERE l.look_at <= p_now AND l.due_at <= p_now AND (l.held_until < p_now OR l.holder = p_holder)
        ORDER BY l.look_at, l.id LIMIT p_limit FOR UPDATE SKIP LOCKED
    )
    UPDATE live SET holder = p_holder, held_until = p_until FROM mine WHERE live.id = mine.id
    RETURNING live.id, live.due_at;
END $$;

-- name: tick
-- Records an engine's tick; ticks in quick succession are not all written.
CREATE FUNCTION tick_1(p_now bigint, p_gap bigint) RETURNS bigint LANGUAGE plpgsql {generic_plan} AS $$
DECLARE
    resumed bigint;
BEGIN
    SELECT resumed_at INTO resumed FROM engine WHERE id = 1 AND last_tick > p_now - least(1000, p_gap / 4);
    IF NOT FOUND THEN
        PERFORM set_config('synchronous_commit', 'off', true);
        UPDATE engine SET
            resumed_at = CASE WHEN p_now - last_tick > p_gap THEN p_now ELSE resumed_at END,
            last_tick = greatest(last_tick, p_now)
        WHERE id = 1 RETURNING resumed_at INTO resumed;
    END IF;
    RETURN resumed;
END $$;

-- name: poll
-- What each replica polls in case a notification was lost: the time, the protocol revision, and the services with rows
-- that no replica holds. With `p_serves` it also records that a callback API is available; marks in quick succession are
-- not all written.
CREATE FUNCTION poll_1(p_serves boolean) RETURNS TABLE (now bigint, revision bigint, services text[])
LANGUAGE plpgsql {generic_plan} AS $$
#variable_conflict use_column
DECLARE
    name text := '';
BEGIN
    now := floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint;
    services := '{}';
    IF p_serves THEN
        PERFORM 1 FROM callback_availability WHERE id = 1 AND available_at < now - 1000;
        IF FOUND THEN
            PERFORM set_config('synchronous_commit', 'off', true);
            UPDATE callback_availability SET
                available_since = CASE WHEN now - available_at > {callback_gap_ms} THEN now ELSE available_since END,
                available_at = greatest(available_at, now)
            WHERE id = 1;
        END IF;
    END IF;
    LOOP
        SELECT o.service INTO name FROM outbox AS o
        WHERE o.service > name AND o.next_attempt_at IS NULL AND o.claimed_at IS NULL
        ORDER BY o.service LIMIT 1;
        EXIT WHEN name IS NULL;
        PERFORM 1 FROM outbox AS o
        WHERE o.service = name AND o.next_attempt_at IS NULL AND o.claimed_at IS NULL AND o.held_until < now LIMIT 1;
        IF FOUND THEN
            services := services || name;
        END IF;
    END LOOP;
    SELECT r.revision INTO revision FROM protocol_revision AS r;
    RETURN NEXT;
END $$;
