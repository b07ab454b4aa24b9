-- Who decides about an approval: 'platform', or empty for the tenant's own approvers. The platform's
-- open ones are listed over all tenants.
ALTER TABLE approvals ADD COLUMN approvers {text} NOT NULL DEFAULT '';
CREATE INDEX approvals_platform ON approvals (opened_at, tenant, id) WHERE state = 'open' AND approvers = 'platform';
