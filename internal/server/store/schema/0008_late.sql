-- Whose work a late result is: the attempt that its epoch was granted for, and the worker that sent it.
ALTER TABLE late_results ADD COLUMN attempt INTEGER NOT NULL DEFAULT 0;
ALTER TABLE late_results ADD COLUMN worker {text} NOT NULL DEFAULT '';
