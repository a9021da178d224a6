-- A journal as controllers of schema 5 wrote it. Never change it: it stands for files that exist.
BEGIN TRANSACTION;
CREATE TABLE decisions (
        id INTEGER PRIMARY KEY,
        time REAL NOT NULL,
        job_id INTEGER NOT NULL,
        action TEXT NOT NULL,
        reason TEXT NOT NULL,
        gpus TEXT NOT NULL
    , reason_code TEXT NOT NULL DEFAULT 'other');
INSERT INTO "decisions" VALUES(1,1005.0,8,'place','a GPU is free','n1:0','its-turn');
INSERT INTO "decisions" VALUES(2,1040.0,7,'suspend','its slice is over','n1:0 n1:1','turn-over');
CREATE TABLE events (
        id INTEGER PRIMARY KEY,
        time REAL NOT NULL,
        job_id INTEGER,
        node TEXT,
        kind TEXT NOT NULL,
        message TEXT NOT NULL
    , gain REAL);
INSERT INTO "events" VALUES(1,1050.0,7,'n1','suspend-failed','rank 1 did not reach step 12',NULL);
INSERT INTO "events" VALUES(2,1051.0,7,NULL,'pack-kept','shares its GPUs with job 8: together they do 1.60 times what they do in turns',1.6);
CREATE TABLE jobs (
        job_id INTEGER PRIMARY KEY,
        user TEXT NOT NULL,
        account TEXT NOT NULL,
        partition TEXT NOT NULL,
        name TEXT NOT NULL,
        gpus INTEGER NOT NULL,
        weight REAL NOT NULL,
        submit REAL NOT NULL,
        start REAL,
        end REAL,
        state TEXT NOT NULL,
        request TEXT NOT NULL,
        moves INTEGER NOT NULL,
        suspends INTEGER NOT NULL,
        step_seconds REAL,
        exit_code INTEGER,
        peak_memory_bytes INTEGER
    , utilization_fraction REAL);
INSERT INTO "jobs" VALUES(7,'alice','ml','gpu','résnet ''x''',2,2.0,1000.0,1010.0,NULL,'RUNNING','{"gpus": 2, "weight": 2.0}',1,3,NULL,NULL,NULL,NULL);
INSERT INTO "jobs" VALUES(8,'bob','','','',1,1.0,1001.0,1005.0,1100.0,'COMPLETED','{}',0,0,0.5,0,8589934592,0.75);
CREATE TABLE notes (
        policy TEXT NOT NULL,
        job_id INTEGER NOT NULL,
        note TEXT NOT NULL,
        PRIMARY KEY (policy, job_id)
    ) WITHOUT ROWID;
INSERT INTO "notes" VALUES('gandiva',7,'[1, 2.5, "n1"]');
INSERT INTO "notes" VALUES('gandiva',8,'[3]');
CREATE TABLE operations (
        op_id INTEGER PRIMARY KEY,
        job_id INTEGER NOT NULL,
        kind TEXT NOT NULL,
        begin REAL NOT NULL,
        detail TEXT NOT NULL,
        step TEXT NOT NULL DEFAULT '',
        step_time REAL,
        end REAL,
        outcome TEXT,
        error TEXT NOT NULL DEFAULT ''
    );
INSERT INTO "operations" VALUES(1,8,'place',1004.0,'{"gpus": ["n1:0"]}','await-start',1004.5,1005.0,'done','');
INSERT INTO "operations" VALUES(2,7,'suspend',1080.0,'{"gpus": ["n1:0", "n1:1"]}','offload',1081.0,NULL,NULL,'');
CREATE TABLE schema_version (version INTEGER NOT NULL);
INSERT INTO "schema_version" VALUES(1);
INSERT INTO "schema_version" VALUES(2);
INSERT INTO "schema_version" VALUES(3);
INSERT INTO "schema_version" VALUES(4);
INSERT INTO "schema_version" VALUES(5);
CREATE TABLE slices (
        id INTEGER PRIMARY KEY,
        job_id INTEGER NOT NULL,
        gpus TEXT NOT NULL,
        gpu_count INTEGER NOT NULL,
        start REAL NOT NULL,
        end REAL,
        reason TEXT NOT NULL DEFAULT ''
    );
INSERT INTO "slices" VALUES(1,8,'n1:0',1,1005.0,1100.0,'job ended');
INSERT INTO "slices" VALUES(2,7,'n1:0 n1:1',2,1010.0,1040.0,'its slice is over');
INSERT INTO "slices" VALUES(3,7,'n1:0 n1:1',2,1070.0,NULL,'');
CREATE TABLE state (key TEXT PRIMARY KEY, value TEXT NOT NULL);
INSERT INTO "state" VALUES('heartbeat','1090.0');
INSERT INTO "state" VALUES('policy:gandiva','{"turn": 2}');
CREATE TABLE usage (
        job_id INTEGER PRIMARY KEY,
        run_seconds REAL NOT NULL,
        gpu_seconds REAL NOT NULL,
        slices INTEGER NOT NULL,
        gpus TEXT NOT NULL
    , waited_seconds REAL NOT NULL DEFAULT 0, idle_since REAL);
INSERT INTO "usage" VALUES(7,30.0,60.0,1,'n1:0 n1:1',30.0,NULL);
INSERT INTO "usage" VALUES(8,95.0,95.0,1,'n1:0',0.0,1100.0);
CREATE INDEX jobs_by_end ON jobs (end, submit);
CREATE INDEX slices_by_job ON slices (job_id, start);
CREATE UNIQUE INDEX open_slices ON slices (job_id) WHERE end IS NULL;
CREATE INDEX slices_by_end ON slices (end) WHERE end IS NOT NULL;
CREATE INDEX decisions_by_job ON decisions (job_id, id);
CREATE INDEX decisions_by_time ON decisions (time);
CREATE INDEX events_by_job ON events (job_id, id) WHERE job_id IS NOT NULL;
CREATE INDEX events_by_time ON events (time);
CREATE INDEX open_operations ON operations (begin) WHERE end IS NULL;
CREATE INDEX operations_by_end ON operations (end) WHERE end IS NOT NULL;
COMMIT;
