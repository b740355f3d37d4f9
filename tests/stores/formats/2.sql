BEGIN TRANSACTION;
CREATE TABLE inbox (
    session INTEGER NOT NULL,
    message TEXT NOT NULL,
    accepted INTEGER NOT NULL,  -- the event that brought it
    latest INTEGER NOT NULL,  -- the event that has its text: that one, or the last edit
    held INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (session, message)
) WITHOUT ROWID;
INSERT INTO "inbox" VALUES(1,'m2',4294967303,4294967303,1);
INSERT INTO "inbox" VALUES(2,'m1',8589934593,8589934593,0);
INSERT INTO "inbox" VALUES(2,'m2',8589934594,8589934594,0);
CREATE TABLE log (
    id INTEGER PRIMARY KEY,  -- session.number << 32 | seq, of its last event
    time REAL NOT NULL,
    turn TEXT NOT NULL,
    kind TEXT NOT NULL,  -- empty if it has events of several
    message TEXT,  -- which one, if it is about a message of the inbox
    body TEXT NOT NULL  -- an event, or a list of them
);
INSERT INTO "log" VALUES(4294967297,1000.5,'','message.accepted','m1','{"type":"message.accepted","id":"m1","mode":"queue","message":{"type":"user","parts":[{"type":"text","text":"hello"}]},"note":"","preparing":""}');
INSERT INTO "log" VALUES(4294967298,1001.0,'t1','turn.started',NULL,'{"type":"turn.started","model":"fake","continues":""}');
INSERT INTO "log" VALUES(4294967299,1001.0,'t1','message.applied','m1','{"type":"message.applied","id":"m1","mode":"queue","note":"","question":""}');
INSERT INTO "log" VALUES(4294967301,1002.0,'t1','text.delta',NULL,'[{"type": "text.delta", "text": "Hi"}, {"type": "text.delta", "text": " there, \udc80"}]');
INSERT INTO "log" VALUES(4294967302,1003.0,'t1','turn.finished',NULL,'{"type":"turn.finished","status":"done","reason":"","detail":"","error":"","usage":{"type":"usage","input_tokens":0,"output_tokens":0,"cached_tokens":0,"cache_write_tokens":0,"reasoning_tokens":0},"after":null}');
INSERT INTO "log" VALUES(4294967303,1004.0,'','message.accepted','m2','{"type":"message.accepted","id":"m2","mode":"queue","message":{"type":"user","parts":[{"type":"text","text":"later"}]},"note":"","preparing":""}');
INSERT INTO "log" VALUES(4294967304,1004.0,'','message.accepted','m3','{"type":"message.accepted","id":"m3","mode":"steer","message":{"type":"user","parts":[{"type":"text","text":"now"}]},"note":"","preparing":""}');
INSERT INTO "log" VALUES(4294967305,1005.0,'','message.held','m2','{"type":"message.held","id":"m2"}');
INSERT INTO "log" VALUES(4294967306,1005.0,'','message.edited','m3','{"type":"message.edited","id":"m3","message":{"type":"user","parts":[{"type":"text","text":"now, edited"}]},"note":"","prepared":""}');
INSERT INTO "log" VALUES(4294967307,1006.25,'','message.removed','m3','{"type":"message.removed","id":"m3"}');
INSERT INTO "log" VALUES(8589934593,900.0,'','message.accepted','m1','{"type":"message.accepted","id":"m1","mode":"queue","message":{"type":"user","parts":[{"type":"text","text":"only this"}]},"note":"","preparing":""}');
INSERT INTO "log" VALUES(8589934594,900.0,'','message.accepted','m2','{"type":"message.accepted","id":"m2","mode":"queue","message":{"type":"user","parts":[{"type":"text","text":"and this"}]},"note":"","preparing":""}');
CREATE TABLE session (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    generation INTEGER NOT NULL,
    owner TEXT  -- NULL if nobody owns it
);
INSERT INTO "session" VALUES(1,'talk',1,NULL);
INSERT INTO "session" VALUES(2,'short',1,'17931-4e0d99abde45270e');
INSERT INTO "session" VALUES(3,'empty',1,NULL);
INSERT INTO "session" VALUES(4,'erased',1,NULL);
CREATE INDEX session_owner ON session (owner) WHERE owner IS NOT NULL;
CREATE TRIGGER log_to_inbox AFTER INSERT ON log WHEN new.message IS NOT NULL BEGIN
    INSERT OR REPLACE INTO inbox (session, message, accepted, latest)
        SELECT new.id >> 32, new.message, new.id, new.id WHERE new.kind = 'message.accepted';
    UPDATE inbox SET latest = new.id
        WHERE new.kind = 'message.edited' AND session = new.id >> 32 AND message = new.message;
    UPDATE inbox SET held = (new.kind = 'message.held')
        WHERE new.kind IN ('message.held', 'message.released') AND session = new.id >> 32 AND message = new.message;
    DELETE FROM inbox
        WHERE new.kind IN ('message.applied', 'message.removed') AND session = new.id >> 32 AND message = new.message;
END;
PRAGMA application_id = 1214344308;
PRAGMA user_version = 2;
COMMIT;
