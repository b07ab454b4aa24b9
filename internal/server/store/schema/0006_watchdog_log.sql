-- What the watchdog did, and why. Its ids begin with the instant, so that the newest are the greatest. It is short: whoever looks
-- for something in it reads all of it.

CREATE TABLE watchdog_log (
  id {text} PRIMARY KEY, at BIGINT NOT NULL, rule {text} NOT NULL, name {text} NOT NULL,
  tenant {text} NOT NULL, run_id {text} NOT NULL, what {text} NOT NULL, why {text} NOT NULL
) {without rowid};
