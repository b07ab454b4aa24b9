-- expand 0.2.0: names that callers chose for their threads and runs. of_what is thread or run, digest that of the
-- body that made a run under the name, and from_seq the line of its log that the name begins at. A name
-- whose owner is gone counts as none: the release before removes runs without their names.
CREATE TABLE names (
  tenant {text} NOT NULL, of_what {text} NOT NULL, name {text} NOT NULL, owner {text} NOT NULL,
  digest {text} NOT NULL, from_seq BIGINT NOT NULL, created_at BIGINT NOT NULL, version BIGINT NOT NULL,
  PRIMARY KEY (tenant, of_what, name)
) {without rowid};
CREATE INDEX names_owner ON names (tenant, owner, name);
