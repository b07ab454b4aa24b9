-- Live runs without an alarm that can ring: there are none, unless something happened to a row outside of the program. This is how the
-- patrol finds them; the index is empty.

CREATE INDEX runs_unwatched ON runs (id) WHERE (alarm_at IS NULL OR alarm_at<=0 OR alarm_at>=253402300800000000)
  AND state IN ('queued','dispatched','running','suspended');
