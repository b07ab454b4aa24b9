package perdure

import (
	"bytes"
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// An ApprovalID is "apv_" and a hash of the run and the wait. A commit that is sent again therefore
// asks for the same approval.
type ApprovalID string

// IDOfApproval returns the id of the approval that a run's wait asks for.
func IDOfApproval(t TenantID, run RunID, wait string) ApprovalID {
	sum := sha256.Sum256([]byte("approval\x00" + string(t) + "\x00" + string(run) + "\x00" + wait))
	return ApprovalID("apv_" + strings.ToLower(base32.StdEncoding.EncodeToString(sum[:])[:26]))
}

// A DecisionKind is one of the two decisions. Either can also be the default of an approval that times
// out.
type DecisionKind string

const (
	Approve DecisionKind = "approve"
	Reject  DecisionKind = "reject"
)

// An ApprovalState is the state of an approval. It leaves ApprovalOpen once, in the transaction that
// closes its wait.
type ApprovalState string

const (
	ApprovalOpen     ApprovalState = "open"
	ApprovalApproved ApprovalState = "approved"
	ApprovalRejected ApprovalState = "rejected"
	ApprovalTimedOut ApprovalState = "timed_out"
	ApprovalClosed   ApprovalState = "closed" // the run has ended or has closed the wait

	// ApprovalAll selects approvals of all states. No approval has it.
	ApprovalAll ApprovalState = "all"
)

// The values of Approval.ExpiresBy. At the timeout the approval's default counts. At the deadline the
// run itself ends, and the default counts for nothing.
const (
	ExpiresByTimeout  = "timeout"
	ExpiresByDeadline = "deadline"
)

// ApprovalApprovers says whose keys may decide. Keys of the platform always may. A worker sets it with the
// wait, and it only restricts: a tenant can't decide what the platform is to decide.
type ApprovalApprovers string

const (
	// ApproversTenant is the default, and stored as an empty text: every key that may decide.
	ApproversTenant ApprovalApprovers = "tenant"
	// ApproversPlatform is for what touches the server's own machine: platform keys only.
	ApproversPlatform ApprovalApprovers = "platform"
)

// ApprovalStates lists all states of an approval.
var ApprovalStates = []ApprovalState{
	ApprovalOpen, ApprovalApproved, ApprovalRejected, ApprovalTimedOut, ApprovalClosed,
}

// Limits of approvals.
const (
	maxAction     = 64 << 10 // bytes of an action, a form or an answer, each
	MaxFormFields = 32
	MaxOptions    = 100 // options of one choice
	maxDepth      = 64  // nesting of an action or an answer
)

// An ApprovalSpec describes an action to the person who decides about it.
type ApprovalSpec struct {
	Title string `json:"title,omitempty"`
	// Action is exactly the action that is carried out when it is approved.
	Action json.RawMessage `json:"action"`
	// Form lists questions that the person answers when approving.
	Form []FormField `json:"form,omitempty"`
	// Default is the decision that counts if the wait times out: "approve", or "reject" when empty.
	Default DecisionKind `json:"default,omitempty"`
	// Approvers says whose keys may decide: "platform", or "tenant" when empty.
	Approvers ApprovalApprovers `json:"approvers,omitempty"`

	hash string // of the action, if it is known
}

// Hashed gives a copy of a valid description that knows the hash of its action.
func (s ApprovalSpec) Hashed() (*ApprovalSpec, error) {
	b, err := canonicalValid("action", s.Action)
	s.hash = hashOf(b)
	return &s, err
}

// ActionHash gives the hash of the action.
func (s *ApprovalSpec) ActionHash() (string, error) {
	if s.hash != "" {
		return s.hash, nil
	}
	return ActionHash(s.Action)
}

// A FieldType is the type of a form's field.
type FieldType string

const (
	FieldString  FieldType = "string" // one line
	FieldText    FieldType = "text"   // any number of lines
	FieldNumber  FieldType = "number"
	FieldBoolean FieldType = "boolean"
	FieldChoice  FieldType = "choice" // one of the field's options
)

// FieldTypes are all of them.
var FieldTypes = []FieldType{FieldString, FieldText, FieldNumber, FieldBoolean, FieldChoice}

// A FormField is a question of an approval's form.
type FormField struct {
	Name     string    `json:"name"`
	Label    string    `json:"label,omitempty"`
	Type     FieldType `json:"type"`
	Options  []string  `json:"options,omitempty"`
	Required bool      `json:"required,omitempty"`
}

func (s *ApprovalSpec) validate(field string) error {
	if err := checkText(field+".title", s.Title); err != nil {
		return err
	}
	if len(s.Action) > maxAction {
		return tooLarge(field+".action", "has %d bytes; a person is shown at most %d", len(s.Action), maxAction)
	}
	if _, err := canonical(field+".action", s.Action); err != nil {
		return err
	}
	if s.Default != "" && s.Default != Approve && s.Default != Reject {
		return Invalid(field+".default", "%q is neither approve nor reject", s.Default)
	}
	if err := CheckApprovers(field+".approvers", s.Approvers); err != nil {
		return err
	}
	if s.Approvers == ApproversPlatform && s.Default == Approve {
		return Invalid(field+".default", "is not approve where the platform decides: its silence is no approval")
	}
	if len(s.Form) > MaxFormFields {
		return tooLarge(field+".form", "has %d fields; a form takes %d", len(s.Form), MaxFormFields)
	}
	size, names := 0, make(map[string]bool, len(s.Form))
	for i := range s.Form {
		f, at := &s.Form[i], fmt.Sprintf("%s.form[%d]", field, i)
		if err := f.validate(at); err != nil {
			return err
		}
		if names[f.Name] {
			return Invalid(at+".name", "%q stands twice in this form", f.Name)
		}
		names[f.Name] = true
		size += len(f.Name) + len(f.Label) + len(strings.Join(f.Options, ""))
	}
	if size > maxAction {
		return tooLarge(field+".form", "has %d bytes; a person is shown at most %d", size, maxAction)
	}
	return nil
}

// CheckApprovers checks who decides about an approval. Empty is valid.
func CheckApprovers(field string, a ApprovalApprovers) error {
	if a != "" && a != ApproversTenant && a != ApproversPlatform {
		return Invalid(field, "%.40q is neither tenant nor platform", a)
	}
	return nil
}

func (f *FormField) validate(field string) error {
	if err := checkName(field+".name", f.Name); err != nil {
		return err
	}
	if err := checkText(field+".label", f.Label); err != nil {
		return err
	}
	switch f.Type {
	case FieldString, FieldText, FieldNumber, FieldBoolean:
		if len(f.Options) > 0 {
			return Invalid(field+".options", "belong to a choice")
		}
	case FieldChoice:
		if len(f.Options) == 0 || len(f.Options) > MaxOptions {
			return Invalid(field+".options", "a choice has 1 to %d options, not %d", MaxOptions, len(f.Options))
		}
		for i, o := range f.Options {
			at := fmt.Sprintf("%s.options[%d]", field, i)
			if o == "" {
				return Invalid(at, "is empty")
			}
			if err := checkText(at, o); err != nil {
				return err
			}
			if slices.Contains(f.Options[:i], o) {
				return Invalid(at, "stands twice")
			}
		}
	default:
		return Invalid(field+".type", "%q is none of string, text, number, boolean, choice", f.Type)
	}
	return nil
}

// An Approval is an action that a person decides, or has decided, about.
type Approval struct {
	Tenant     TenantID     `json:"-"`
	ID         ApprovalID   `json:"approval_id"`
	RunID      RunID        `json:"run_id"` // the run that asks
	Kind       string       `json:"kind"`   // the run's kind
	WaitID     string       `json:"wait_id"`
	Name       string       `json:"name"`
	Title      string       `json:"title,omitempty"`
	Action     Value        `json:"action"`
	ActionHash string       `json:"action_hash"`
	Form       []FormField  `json:"form,omitempty"`
	Default    DecisionKind `json:"default,omitempty"`
	// Approvers is "platform" if only keys of the platform may decide. Otherwise it is "tenant" in answers of
	// the API, and empty in the store.
	Approvers ApprovalApprovers `json:"approvers,omitempty"`
	State     ApprovalState     `json:"state"`
	OpenedAt  Instant           `json:"opened_at"`
	ExpiresAt Instant           `json:"expires_at"` // the earlier of the wait's timeout and the run's deadline
	// ExpiresBy tells which of the two it is. Approvals from before there was this field have none.
	ExpiresBy string   `json:"expires_by,omitempty"`
	DecidedAt Instant  `json:"decided_at,omitempty"`
	DecidedBy *Decider `json:"decided_by,omitempty"`
	Comment   string   `json:"comment,omitempty"`
	Answer    Value    `json:"answer,omitempty"`
	// Owner is the tenant whose run asks. Only a list over all tenants has it.
	Owner TenantID `json:"tenant,omitempty"`
	// Digest identifies the decision and its answer. The same decision sent again is accepted, with
	// any comment; a different one is refused.
	Digest string `json:"-"`
}

// A Decider is the API key with which the decision was made. The server knows no more of the
// person.
type Decider struct {
	KeyID string `json:"key_id"`
	Name  string `json:"name"`
}

// Decision returns the decision that the run acts on. A timeout counts as the approval's default,
// and as "reject" if there is none. The result is empty while the approval is open and after it was
// closed.
func (a *Approval) Decision() DecisionKind {
	switch {
	case a.State == ApprovalApproved, a.State == ApprovalTimedOut && a.Default == Approve:
		return Approve
	case a.State == ApprovalRejected, a.State == ApprovalTimedOut:
		return Reject
	}
	return ""
}

// MayDecide returns an error if a key may not decide about the approval.
func (a *Approval) MayDecide(by *Key) error {
	switch {
	case a.Approvers == ApproversPlatform && !by.Platform:
		return Errorf(CodePlatformDecides,
			"this touches the server's own machine: a key of the platform with %s decides about it", ScopeApprove)
	case a.Approvers != ApproversPlatform && by.Platform && by.Tenant != "" && by.Tenant != a.Tenant &&
		!by.Allows(ScopePlatformAdmin):
		return Errorf(CodeForbidden, "deciding in place of another tenant takes the scope %s", ScopePlatformAdmin)
	}
	return nil
}

// Permits returns an error unless a person has approved exactly this action for this run. The
// executor of an action that needs the platform's approval asks the server for the approval and calls
// Permits: a journal proves nothing, because a worker of the tenant may have written it, and a retry
// has that of another run.
func (a *Approval) Permits(run RunID, action json.RawMessage) error {
	hash, err := ActionHash(action)
	switch {
	case err != nil:
		return err
	case a.RunID != run:
		return Errorf(CodeForbidden, "the approval was given to another run: ask again")
	case a.State != ApprovalApproved || a.DecidedBy == nil:
		return Errorf(CodeForbidden, "the approval is %s", a.State)
	case a.ActionHash != hash:
		return Errorf(CodeForbidden, "the approval is about another action")
	case a.Approvers != ApproversPlatform:
		return Errorf(CodeForbidden, "the approval was not given by the platform")
	}
	return nil
}

// A Decision is the body of a request that approves or rejects an action.
type Decision struct {
	Decision DecisionKind `json:"decision"`
	Comment  string       `json:"comment,omitempty"`
	// Answer is an object with the answers to the approval's form.
	Answer json.RawMessage `json:"answer,omitempty"`
	// ActionHash is the hash of the action that the person saw. The decision is refused if the
	// action has another hash.
	ActionHash string `json:"action_hash,omitempty"`
}

// Validate checks the shape of a decision.
func (d *Decision) Validate() error {
	if d.Decision != Approve && d.Decision != Reject {
		return Invalid("decision", "%.40q is neither approve nor reject", d.Decision)
	}
	if err := checkText("comment", d.Comment); err != nil {
		return err
	}
	if len(d.ActionHash) > MaxName {
		return Invalid("action_hash", "is longer than %d bytes", MaxName)
	}
	if len(d.Answer) == 0 {
		return nil
	}
	if d.Decision == Reject {
		return Invalid("answer", "belongs to approve")
	}
	if len(d.Answer) > maxAction {
		return tooLarge("answer", "has %d bytes; an answer takes %d", len(d.Answer), maxAction)
	}
	_, err := canonical("answer", d.Answer)
	return err
}

// Digest returns a hash over the decision, the comment and the answer in canonical form. Decisions
// with the same content have the same digest.
func (d *Decision) Digest() (string, error) {
	answer := []byte("-")
	if len(d.Answer) > 0 {
		var err error
		if answer, err = canonical("answer", d.Answer); err != nil {
			return "", err
		}
	}
	sum := sha256.Sum256([]byte(string(d.Decision) + "\x00" + d.Comment + "\x00" + string(answer)))
	return hex.EncodeToString(sum[:]), nil
}

// CheckAnswer checks an answer against a form. The error names the first field that does not fit.
func CheckAnswer(form []FormField, answer json.RawMessage) error {
	misfit := func(field, format string, args ...any) error {
		return &Error{Code: CodeAnswerInvalid, Field: field, Message: fmt.Sprintf(format, args...)}
	}
	if len(form) == 0 {
		if len(answer) > 0 {
			return misfit("answer", "nothing was asked: the approval has no form")
		}
		return nil
	}
	given := map[string]any{}
	if len(answer) > 0 {
		d := json.NewDecoder(bytes.NewReader(answer))
		d.UseNumber()
		if err := d.Decode(&given); err != nil || given == nil {
			return misfit("answer", "is an object with the fields of the form")
		}
	}
	for i := range form {
		f := &form[i]
		v := given[f.Name]
		delete(given, f.Name)
		if v == nil || v == "" {
			if f.Required {
				return misfit("answer."+f.Name, "is required")
			}
			continue
		}
		if why := f.refuses(v); why != "" {
			return misfit("answer."+f.Name, "%s", why)
		}
	}
	if len(given) > 0 {
		return misfit("answer."+slices.Min(slices.Collect(maps.Keys(given))), "is no field of the form")
	}
	return nil
}

// refuses returns the reason why a value does not fit the field, or an empty string if it fits.
func (f *FormField) refuses(v any) string {
	text, isText := v.(string)
	switch f.Type {
	case FieldNumber:
		if _, ok := v.(json.Number); !ok {
			return "is a number"
		}
	case FieldBoolean:
		if _, ok := v.(bool); !ok {
			return "is true or false"
		}
	case FieldChoice:
		if !isText || !slices.Contains(f.Options, text) {
			return "is one of the options"
		}
	case FieldString:
		if !isText || len(text) > MaxText || strings.ContainsAny(text, "\r\n") {
			return fmt.Sprintf("is one line of at most %d bytes", MaxText)
		}
	default:
		if !isText {
			return "is a text"
		}
	}
	return ""
}

// ActionHash returns the hash that binds a decision to its action: "sha256:<hex>" over the action
// as canonical JSON; see [Canonical]. But numbers stay as they were written, since a person has decided
// about these digits.
func ActionHash(action json.RawMessage) (string, error) {
	b, err := canonical("action", action)
	if err != nil {
		return "", err
	}
	return hashOf(b), nil
}

// hashOf gives the hash of canonical JSON.
func hashOf(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func tooLarge(field, format string, args ...any) *Error {
	return &Error{Code: CodeTooLarge, Field: field, Message: fmt.Sprintf(format, args...)}
}
