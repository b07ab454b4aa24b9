-- expand 0.2.0: the release of a worker's library, as its polls say. Empty: a library that does not say it.
ALTER TABLE workers ADD COLUMN library {text} NOT NULL DEFAULT '';
