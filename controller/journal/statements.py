# SPDX-License-Identifier: GPL-2.0-or-later
"""What is written to the journal's file, in SQL. A row waits in the queue as a statement with parameters."""

from typing import TypeAlias

Row: TypeAlias = tuple[str, tuple[object, ...]]

# -- state

STATE = "INSERT INTO state VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
NOTE = "INSERT INTO notes VALUES (?, ?, ?) ON CONFLICT (policy, job_id) DO UPDATE SET note = excluded.note"
NO_NOTE = "DELETE FROM notes WHERE policy = ? AND job_id = ?"

# -- operations

BEGIN = "INSERT OR REPLACE INTO operations (op_id, job_id, kind, begin, detail) VALUES (?, ?, ?, ?, ?)"
STEP = "UPDATE operations SET step = ?, step_time = ? WHERE op_id = ?"
END = "UPDATE operations SET end = ?, outcome = ?, error = ? WHERE op_id = ? AND end IS NULL"

# -- slices. Upserts, not UPDATE FROM: RHEL 8 has SQLite 3.26.

ENSURE_USAGE = """
    INSERT INTO usage (job_id, run_seconds, gpu_seconds, slices, gpus) VALUES (?, 0, 0, 0, '')
    ON CONFLICT DO NOTHING
"""
OPEN_SLICE = "INSERT INTO slices (job_id, gpus, gpu_count, start) VALUES (?, ?, ?, ?)"
PLACE = """
    UPDATE usage SET gpus = ?, idle_since = NULL,
        waited_seconds = waited_seconds + max(0, coalesce(? - idle_since, 0))
    WHERE job_id = ?
"""
COUNT_SLICE = """
    INSERT INTO usage (job_id, run_seconds, gpu_seconds, slices, gpus, idle_since)
        SELECT job_id, max(0, ? - start), max(0, ? - start) * gpu_count, 1, gpus, max(start, ?)
        FROM slices WHERE job_id = ? AND end IS NULL
    ON CONFLICT (job_id) DO UPDATE SET
        run_seconds = run_seconds + excluded.run_seconds,
        gpu_seconds = gpu_seconds + excluded.gpu_seconds,
        slices = slices + 1,
        idle_since = excluded.idle_since
"""
CLOSE_SLICE = "UPDATE slices SET end = max(start, ?), reason = ? WHERE job_id = ? AND end IS NULL"
CARRY_OVER = "INSERT INTO usage VALUES (?, ?, ?, ?, '', ?, ?) ON CONFLICT DO NOTHING"

# -- jobs, decisions and events. A requeued job gets a new submit time from Slurm; the first submission and
# the first start stay, counters never shrink, and NULL leaves what is known. An end that is told again is not
# earlier than it was: Slurm's is too early for a job that ended suspended.

JOB = """
    INSERT INTO jobs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (job_id) DO UPDATE SET
        user = excluded.user, account = excluded.account, partition = excluded.partition,
        name = excluded.name,
        gpus = excluded.gpus, weight = excluded.weight, submit = min(submit, excluded.submit),
        start = coalesce(min(start, excluded.start), start, excluded.start),
        end = CASE WHEN state = excluded.state THEN max(coalesce(end, excluded.end), excluded.end)
            ELSE excluded.end END,
        state = excluded.state, request = excluded.request,
        moves = max(moves, excluded.moves), suspends = max(suspends, excluded.suspends),
        step_seconds = coalesce(excluded.step_seconds, step_seconds),
        exit_code = coalesce(excluded.exit_code, exit_code),
        peak_memory_bytes = coalesce(excluded.peak_memory_bytes, peak_memory_bytes),
        utilization_fraction = coalesce(excluded.utilization_fraction, utilization_fraction)
"""
GONE = "UPDATE jobs SET end = ?, state = 'UNKNOWN' WHERE job_id = ? AND end IS NULL"
BEGIN_AGAIN = tuple(
    f"DELETE FROM {table} WHERE job_id = ?" for table in ("usage", "jobs", "decisions", "slices")
)
DECISION = "INSERT INTO decisions (time, job_id, action, reason, gpus, reason_code) VALUES (?, ?, ?, ?, ?, ?)"
EVENT = "INSERT INTO events (time, job_id, node, kind, message, gain) VALUES (?, ?, ?, ?, ?, ?)"

# -- pruning: the time before which rows are old, and the most rows to delete

_PRUNE_DETAIL = (
    "DELETE FROM slices WHERE id IN (SELECT id FROM slices WHERE end < ? LIMIT ?)",
    "DELETE FROM decisions WHERE id IN (SELECT id FROM decisions WHERE time < ? LIMIT ?)",
    "DELETE FROM events WHERE id IN (SELECT id FROM events WHERE time < ? LIMIT ?)",
    "DELETE FROM operations WHERE op_id IN (SELECT op_id FROM operations WHERE end < ? LIMIT ?)",
)
_OLD_JOBS = "(SELECT job_id FROM jobs WHERE end < ? ORDER BY end, job_id LIMIT ?)"
_PRUNE_JOBS = tuple(
    f"DELETE FROM {table} WHERE job_id IN {_OLD_JOBS}" for table in ("notes", "usage", "jobs")
)
_DAY_SECONDS = 86400.0


def pruning(now: float, retention_days: float, detail_days: float, most_rows: int) -> list[Row]:
    """What deletes old rows, at most so many of each table."""
    ages = {_PRUNE_DETAIL: detail_days, _PRUNE_JOBS: retention_days}
    return [
        (statement, (now - days * _DAY_SECONDS, most_rows))
        for statements, days in ages.items()
        for statement in statements
    ]
