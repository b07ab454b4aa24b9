package life

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/engine/access"
	"github.com/perdure/perdure/internal/engine/kernel"
	"github.com/perdure/perdure/internal/engine/rules"
	"github.com/perdure/perdure/internal/jsonschema"
	"github.com/perdure/perdure/internal/store"
)

// Signal sends a named signal to a run. A signal that arrives before a wait for it stays in the
// inbox and satisfies the next such wait. With a Key it counts once. If the run asks for an
// approval of that name, the signal is a decision.
type Signal struct {
	Tenant perdure.TenantID
	RunID  perdure.RunID
	Name   string
	Data   json.RawMessage
	Key    string

	// Decision takes the place of Data. The signal then counts for an approval only.
	Decision *perdure.Decision
	// By is the key of the caller, who decides if the signal is a decision.
	By perdure.Key

	Run perdure.Run
	// Seq is the number of the inbox item.
	Seq int64
	// Approval is the one that was decided.
	Approval perdure.ApprovalID
	// Refused is as in Decide.
	Refused *perdure.Error
	// Waiting has the names of the signals and approvals that the run waits for afterwards.
	Waiting []string

	// invalid is the result of prepare.
	invalid error
}

// prepare validates the signal.
func (op *Signal) Prepare() {
	if op.invalid = perdure.CheckName("name", op.Name); op.invalid == nil && len(op.Data) > 0 {
		op.invalid = perdure.CheckValue("data", op.Data)
	}
	if op.invalid == nil && op.Decision != nil {
		op.invalid = op.Decision.Validate()
	}
}

func (op *Signal) Needs() []store.Ref { return kernel.Refs(op.Tenant, op.RunID) }

// Do delivers the signal, or decides the approval.
func (op *Signal) Do(tx *kernel.Tx) error {
	op.Seq, op.Approval, op.Refused, op.Waiting = 0, "", nil, nil
	if op.invalid != nil {
		return op.invalid
	}
	r, err := tx.Run(op.Tenant, op.RunID)
	if err != nil {
		return err
	}
	op.Run = r
	key := "signal:" + string(op.RunID) + ":" + op.Key
	digest, err := op.digest()
	if err != nil {
		return err
	}
	if op.Key != "" {
		known, ok, err := tx.DB.Idempotency.Get(op.Tenant, key)
		if err != nil {
			return err
		}
		if ok {
			if !digest.Is(known.Digest) {
				return perdure.Errorf(perdure.CodeReused, "this idempotency key was used with another signal")
			}
			return op.listWaiting(tx)
		}
	}
	if r.State.Terminal() {
		return endedAndContinued(&r, r.ContinuedBy, "it takes no signals")
	}
	open, err := tx.DB.Waits.Open(r.Tenant, r.ID)
	if err != nil {
		return err
	}
	slices.SortStableFunc(open, func(a, b perdure.Wait) int { return int(max(-1, min(1, a.OpenedAt-b.OpenedAt))) })
	decided, err := op.decideIfApproval(tx, &r, open)
	if op.Run = r; err != nil || op.Refused != nil {
		return err
	}
	if !decided {
		if err := op.checkSchema(tx, &r); err != nil {
			return err
		}
	}
	if op.Key != "" {
		tx.DB.Idempotency.Put(store.IdempotencyRow{Tenant: op.Tenant, Key: key, Digest: digest.Value, Ref: string(r.ID),
			ExpiresAt: tx.Now.Add(tx.Engine.Policy().IdempotencyTTL)})
	}
	if decided {
		return op.listWaiting(tx)
	}
	item, err := putItem(tx, &r, perdure.Item{Type: perdure.ItemSignal, Name: op.Name,
		Data: tx.DB.Values.Intern(r.Tenant, string(r.ID), op.Data)})
	if err != nil {
		return err
	}
	op.Seq = item.Seq
	if w, ok := oldestWait(open, perdure.WaitSignal, op.Name); ok {
		if err := EndWait(tx, &r, w, perdure.WaitSatisfied, &item); err != nil {
			return err
		}
	}
	op.Run = r
	return op.listWaiting(tx)
}

// checkSchema refuses a signal that does not fit the schema that its kind has for it. A signal that the
// kind does not list is not checked.
func (op *Signal) checkSchema(tx *kernel.Tx, r *perdure.Run) error {
	kind, err := rules.KindOf(tx, r.Tenant, r.Kind)
	if err != nil {
		return err
	}
	if _, listed := kind.Signals[op.Name]; !listed {
		return nil
	}
	layers, err := tx.DB.Kinds.Layers(r.Tenant, r.Kind)
	if err != nil {
		return err
	}
	def, _ := rules.MergeLayers(layers, nil)
	schema, listed := def.Signals[op.Name]
	if !listed {
		return nil
	}
	data := op.Data
	if len(data) == 0 {
		data = json.RawMessage("null")
	}
	var misfit *jsonschema.Mismatch
	if !errors.As(jsonschema.Check(schema, data), &misfit) {
		return nil
	}
	field := "data"
	switch {
	case strings.HasPrefix(misfit.Path, "["):
		field += misfit.Path
	case misfit.Path != "":
		field += "." + misfit.Path
	}
	return &perdure.Error{Code: perdure.CodeSignalInvalid, Field: field, Message: fmt.Sprintf(
		"%s %s: signal %q does not fit the schema that kind %s has announced for it", field, misfit.What, op.Name,
		r.Kind)}
}

// listWaiting sets Waiting. A signal under another name than the run waits for is kept, and its sender
// finds out here.
func (op *Signal) listWaiting(tx *kernel.Tx) error {
	open, err := tx.DB.Waits.Open(op.Tenant, op.RunID)
	if err != nil {
		return err
	}
	var names []string
	for i := range open {
		if t := open[i].Type; t == perdure.WaitSignal || t == perdure.WaitApproval {
			names = append(names, open[i].Name)
		}
	}
	op.Waiting = slices.Compact(slices.Sorted(slices.Values(names)))
	return nil
}

// digest is equal for signals with the same name, data and decision.
func (op *Signal) digest() (d kernel.BodyDigest, err error) {
	var decision []byte
	if op.Decision != nil {
		if decision, err = json.Marshal(op.Decision); err != nil {
			return d, err
		}
	}
	of := func(data, decision []byte) string {
		text := op.Name + "\x00" + string(data)
		if op.Decision != nil {
			text += "\x00" + string(decision)
		}
		return text
	}
	return kernel.DigestOf(of(kernel.Canonical(op.Data), kernel.Canonical(decision)), of(op.Data, decision)), nil
}

// matchSignal satisfies a new wait by the oldest signal of its name that has satisfied none.
func matchSignal(tx *kernel.Tx, r *perdure.Run, w perdure.Wait) error {
	i, ok, err := tx.DB.Inbox.NextSignal(r, w.Name)
	if err != nil || !ok {
		return err
	}
	return EndWait(tx, r, w, perdure.WaitSatisfied, &i)
}

// Callback uses a callback token: an external system answers one wait, once.
type Callback struct {
	Token  string
	Result json.RawMessage
	Error  *perdure.Failure

	RunID perdure.RunID
	// Refused is set if the wait had ended. The refusal is the answer, and the log keeps the body,
	// so it is not an error of Do.
	Refused *perdure.Error

	// body is the answer as JSON.
	body   []byte
	digest kernel.BodyDigest
	// invalid is the result of prepare.
	invalid error
}

// prepare validates the answer and computes its digest.
func (op *Callback) Prepare() {
	op.invalid = nil
	if len(op.Result) > 0 {
		op.invalid = perdure.CheckValue("result", op.Result)
	}
	if op.invalid == nil && op.Error != nil {
		if op.invalid = perdure.CheckText("error.message", op.Error.Message); op.invalid == nil {
			op.invalid = perdure.CheckCode("error.code", op.Error.Code)
		}
	}
	if op.invalid != nil {
		return
	}
	op.body, op.invalid = json.Marshal(struct {
		Result json.RawMessage  `json:"result,omitempty"`
		Error  *perdure.Failure `json:"error,omitempty"`
	}{op.Result, op.Error})
	op.digest = kernel.DigestBody(op.body)
}

func (op *Callback) Needs() []store.Ref { return nil }

// Do answers the wait. Repeating it with the same body is no error; another body is refused. After
// the wait has ended otherwise, the answer is refused as wait_closed and kept in the log.
func (op *Callback) Do(tx *kernel.Tx) error {
	tenant, run, wait, ok := readToken(tx.Engine, op.Token)
	if !ok {
		return kernel.NotFound("callback")
	}
	if op.invalid != nil {
		return op.invalid
	}
	op.RunID, op.Refused = run, nil
	body, digest := op.body, op.digest
	r, err := tx.Run(tenant, run)
	if err != nil {
		return err
	}
	w, ok, err := tx.DB.Waits.Get(tenant, run, wait)
	if err != nil {
		return err
	}
	if !ok {
		return kernel.NotFound("callback")
	}
	key := "callback:" + string(run) + ":" + wait
	used, ok, err := tx.DB.Idempotency.Get(tenant, key)
	if err != nil {
		return err
	}
	tooLate := perdure.Errorf(perdure.CodeWaitClosed, "the wait is %s", w.State)
	if ok {
		switch {
		case used.Ref != string(run):
			return tooLate
		case !digest.Is(used.Digest):
			return perdure.Errorf(perdure.CodeReused, "this callback was answered with another body")
		}
		return nil
	}
	// The timeout has passed, and the watchdog has not handled it yet.
	if w.State == perdure.WaitOpen && w.TimeoutAt != 0 && w.TimeoutAt <= tx.Now {
		if err := TimeOutWaits(tx, &r); err != nil {
			return err
		}
		if w, _, err = tx.DB.Waits.Get(tenant, run, wait); err != nil {
			return err
		}
		tooLate = perdure.Errorf(perdure.CodeWaitClosed, "the wait is %s", w.State)
	}
	row := store.IdempotencyRow{Tenant: tenant, Key: key, Digest: digest.Value, Ref: string(run),
		ExpiresAt: tx.Now.Add(tx.Engine.Policy().IdempotencyTTL)}
	if w.State != perdure.WaitOpen {
		op.Refused = tooLate
		row.Ref = "too late"
		tx.DB.Idempotency.Put(row)
		return tx.Apply(&r, perdure.CallbackRefused{WaitID: wait, Shown: tx.DB.Values.InternShown(tenant,
			string(run), body)})
	}
	tx.DB.Idempotency.Put(row)
	item, err := putItem(tx, &r, perdure.Item{Type: perdure.ItemCallback, Name: wait,
		Data: tx.DB.Values.Intern(tenant, string(run), body)})
	if err != nil {
		return err
	}
	return EndWait(tx, &r, w, perdure.WaitSatisfied, &item)
}

// makeToken makes a callback's token. It can't be guessed without the root secret. It is the same each
// time, so that a repeated commit gets the same answer.
func makeToken(e *kernel.Engine, t perdure.TenantID, run perdure.RunID, wait string) string {
	body := string(t) + "\x00" + string(run) + "\x00" + wait
	return "cb_" + base64.RawURLEncoding.EncodeToString(append([]byte(body),
		access.RootSecret(e).Newest().Derive("callback\x00"+body)...))
}

// ProcessTokens gives the tokens that sign the files of a process, the current one first. A token is
// derived from the root secret, so that any node verifies the files without having stored it. Those
// before it are of earlier root secrets.
func ProcessTokens(e *kernel.Engine, t perdure.TenantID, run perdure.RunID, epoch int64) (out []string) {
	text := "process\x00" + string(t) + "\x00" + string(run) + "\x00" + strconv.FormatInt(epoch, 10)
	root := access.RootSecret(e)
	for _, g := range slices.Backward(root[max(0, len(root)-access.TokenGenerations):]) {
		out = append(out, base64.RawURLEncoding.EncodeToString(g.Derive(text)))
	}
	return out
}

// ValidToken verifies the MAC of a callback token. It reads nothing from the store.
func ValidToken(e *kernel.Engine, token string) bool {
	_, _, _, ok := readToken(e, token)
	return ok
}

// readToken decodes a token and verifies its MAC.
func readToken(e *kernel.Engine, token string) (t perdure.TenantID, run perdure.RunID, wait string, ok bool) {
	raw, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(token, "cb_"))
	if err != nil || len(raw) <= sha256.Size || !strings.HasPrefix(token, "cb_") {
		return "", "", "", false
	}
	body := string(raw[:len(raw)-sha256.Size])
	parts := strings.Split(body, "\x00")
	if len(parts) != 3 || !access.RootSecret(e).Signed(body, raw[len(raw)-sha256.Size:]) {
		return "", "", "", false
	}
	return perdure.TenantID(parts[0]), perdure.RunID(parts[1]), parts[2], true
}
