-- Limits of a tenant beside its live runs, as a JSON object; empty: none is set. Nodes look for the tenants that have some.

ALTER TABLE tenants ADD COLUMN limits {text} NOT NULL DEFAULT '';
CREATE INDEX tenants_limited ON tenants (id) WHERE limits <> '' OR max_live_runs > 0;
