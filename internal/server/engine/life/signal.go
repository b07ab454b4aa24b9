package life

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/rules"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/wire/jsonschema"
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

// decideIfApproval handles a signal that is a decision. It decides an open approval of that name,
// or refuses the signal if there is none. For any other signal it does nothing.
func (op *Signal) decideIfApproval(tx *kernel.Tx, r *perdure.Run, open []perdure.Wait) (decided bool, err error) {
	plain := false
	var asks []string
	for i := range open {
		switch w := &open[i]; {
		case w.Name != op.Name:
		case w.Type == perdure.WaitSignal:
			plain = true
		case w.Type == perdure.WaitApproval:
			asks = append(asks, w.ID)
		}
	}
	if len(asks) > 0 {
		return true, op.decide(tx, r, asks)
	}
	isOne := op.Decision != nil || strings.HasPrefix(op.Name, approvalPrefix) && !plain
	if !isOne && !plain && hasDecision(op.Data) {
		// The approval of that name may have been decided before, or have ended.
		if isOne, err = tx.DB.Approvals.Had(r.Tenant, r.ID, op.Name, ""); err != nil {
			return false, err
		}
	}
	if isOne {
		return false, perdure.Errorf(perdure.CodeNoOpenApproval,
			"the run asks for no approval %q now; a decision is not kept for later", op.Name)
	}
	return false, nil
}

// decide applies the decision to one of the waits that ask under the signal's name: the one with
// the decision's action hash, or the first.
func (op *Signal) decide(tx *kernel.Tx, r *perdure.Run, asks []string) error {
	if err := op.By.MayDecide(); err != nil {
		return err
	}
	d := op.Decision
	if d == nil {
		d = new(perdure.Decision)
		if !hasDecision(op.Data) || json.Unmarshal(op.Data, d) != nil {
			return perdure.Invalid("data",
				`the run waits for an approval of this name: send {"decision": "approve"} or "reject"`)
		}
	}
	if err := d.Validate(); err != nil {
		return err
	}
	wait, err := op.findWait(tx, r, asks, d)
	if err != nil {
		return err
	}
	op.Approval = perdure.IDOfApproval(r.Tenant, r.ID, wait)
	op.Refused, err = decideApproval(tx, r, wait, d, &op.By)
	return err
}

// findWait finds the wait that a decision is about. A name alone suffices only if the run asked
// once under it. Otherwise a late approval of one action would approve the next.
func (op *Signal) findWait(tx *kernel.Tx, r *perdure.Run, asks []string, d *perdure.Decision) (wait string, err error) {
	if d.ActionHash == "" {
		others, err := tx.DB.Approvals.Had(r.Tenant, r.ID, op.Name, asks[0])
		if err == nil && others {
			err = &perdure.Error{Code: perdure.CodeActionChanged, Field: "action_hash",
				Message: "the run has asked for more than one approval of this name: " +
					"give the action_hash of the action that you mean, or decide by the approval's id"}
		}
		return asks[0], err
	}
	for _, id := range asks {
		if a, _, err := tx.DB.Approvals.Get(r.Tenant, r.ID, id); err != nil || a.ActionHash == d.ActionHash {
			return id, err
		}
	}
	return asks[0], nil
}

// hasDecision tells whether a signal's data is an object with a decision.
func hasDecision(data json.RawMessage) bool {
	var in struct {
		Decision *json.RawMessage `json:"decision"`
	}
	return len(data) > 0 && json.Unmarshal(data, &in) == nil && in.Decision != nil
}
