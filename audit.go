package perdure

// An AuditEntry is one line of the audit log: who did what to what, and when. It is written together with the change that it tells
// of. It has no text that a caller or a worker wrote but names.
type AuditEntry struct {
	ID       string   `json:"id"` // rises with time
	Tenant   TenantID `json:"tenant,omitempty"`
	At       Instant  `json:"at"`
	KeyID    string   `json:"key_id,omitempty"` // empty: no key was used, or it is not shown
	KeyName  string   `json:"key_name,omitempty"`
	Platform bool     `json:"platform,omitempty"` // it was a platform key, or an offline command
	Action   string   `json:"action"`
	Target   string   `json:"target"` // the id of what was changed
	Detail   Value    `json:"detail,omitempty"`
	Remote   string   `json:"remote,omitempty"` // the address that the call came from
}

// The actions of the audit log. Their names are part of the interface.
const (
	AuditKeyCreate      = "key.create"
	AuditKeyRevoke      = "key.revoke"
	AuditKeyBootstrap   = "key.bootstrap" // by the first start of a store, or by the offline command
	AuditTenantChange   = "tenant.change"
	AuditRunCancel      = "run.cancel"
	AuditRunDelete      = "run.delete"
	AuditThreadDelete   = "thread.delete"
	AuditApprovalDecide = "approval.decide"
	AuditLateAdopt      = "late.adopt"
	AuditLateDiscard    = "late.discard"
	AuditLetterRedrive  = "dlq.redrive"
	AuditLetterDiscard  = "dlq.discard"
	AuditWebhookCreate  = "webhook.create"
	AuditWebhookChange  = "webhook.change"
	AuditWebhookRotate  = "webhook.rotate"
	AuditWebhookDelete  = "webhook.delete"
	AuditDeliveryRepeat = "delivery.redeliver"
	AuditBackup         = "backup"
	AuditRestore        = "restore"
)

// AuditActions are all of them.
var AuditActions = []string{AuditKeyCreate, AuditKeyRevoke, AuditKeyBootstrap, AuditTenantChange, AuditRunCancel, AuditRunDelete, AuditThreadDelete,
	AuditApprovalDecide, AuditLateAdopt, AuditLateDiscard, AuditLetterRedrive, AuditLetterDiscard, AuditWebhookCreate, AuditWebhookChange,
	AuditWebhookRotate, AuditWebhookDelete, AuditDeliveryRepeat, AuditBackup, AuditRestore}

// MaxAuditDetail bounds the detail of an entry, in bytes.
const MaxAuditDetail = 4 << 10
