-- A tenant may require that its runs are signed. Dead letters are looked at by their cause.

ALTER TABLE tenants ADD COLUMN require_signatures INTEGER NOT NULL DEFAULT 0;
CREATE INDEX tenants_signed ON tenants (id) WHERE require_signatures = 1;

CREATE INDEX dead_letters_cause ON dead_letters (tenant, cause, kind, run_id);
