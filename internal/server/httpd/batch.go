package httpd

import (
	"bytes"
	"errors"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
)

// A batch of submissions.
//
// splitRuns checks the frame of the body and cuts it into its entries. A malformed frame refuses the
// whole call. Each entry is then decoded as strictly as a body of its own, and an error is that
// entry's result. The good entries are submitted in parts. A part is one batch of the store: it is
// durable before the next one begins, and operations of other callers come between two of them.
//
// A call that breaks off has started some of its runs. Their keys make a repeated call answer with
// the same runs, and start the others.

// Limits of a part of a batch. A submission that exceeds one of them is a part of its own.
const (
	maxPartRuns  = 256
	maxPartRows  = 2000
	maxPartBytes = 1 << 20
)

// maxBatchHooks bounds the different webhooks of a batch, because each of them is looked up.
const maxBatchHooks = 16

// batchRun is api.BatchRun as it is received. The pointer tells an empty key from none.
type batchRun struct {
	api.BatchRun
	IdempotencyKey *string `json:"idempotency_key,omitempty"`
}

// startMany starts the runs of a batch, each by itself.
func startMany(c *call) (int, *api.StartedMany, error) {
	key, err := c.idempotencyKey()
	if err != nil {
		return 0, nil, err
	}
	ops, errs, err := readBatch(c, key)
	if err != nil {
		return 0, nil, err
	}
	submitAll(c, ops, errs)
	out := &api.StartedMany{Results: make([]api.StartResult, len(ops))}
	runs := make([]api.StartedRun, len(ops))
	for i := range ops {
		r := &out.Results[i]
		r.Index = i
		if errs[i] != nil {
			r.Error = refusal(c.s.refused(errs[i]))
			continue
		}
		runs[i] = startedRun(&ops[i])
		r.Run, r.Duplicate = &runs[i], !ops[i].Created && !ops[i].Existing && !ops[i].Debounced
	}
	return 0, out, nil
}

func startedRun(op *life.Submit) api.StartedRun {
	r := &op.Run
	out := api.StartedRun{RunID: r.ID, ThreadID: r.ThreadID, Status: r.Status(), State: r.State,
		WebhookID: webhookOf(r), WebhookSecret: op.WebhookSecret, Existing: op.Existing}
	if d := r.Options.Debounce; d != nil {
		out.Debounced = d.Count
	}
	return out
}

// readBatch reads the body of a batch. It returns an operation for each entry, or the error of the
// entry.
func readBatch(c *call, key string) ([]life.Submit, []error, error) {
	b, err := c.body()
	if err != nil {
		return nil, nil, err
	}
	end, err := c.share.turn(c.Context(), int64(len(b)))
	if err != nil {
		return nil, nil, err
	}
	defer end()
	if len(b) == 0 {
		b = []byte("{}")
	}
	entries, err := splitRuns(b)
	if err != nil {
		return nil, nil, err
	}
	ops, errs := make([]life.Submit, len(entries)), make([]error, len(entries))
	hooks := make(map[string]error)
	for i, entry := range entries {
		var in batchRun
		if errs[i] = decodeEntry(entry, &in); errs[i] != nil {
			continue
		}
		ops[i] = life.Submit{Tenant: c.tenant(), Submission: in.Submission}
		if in.IdempotencyKey != nil {
			ops[i].Key, errs[i] = *in.IdempotencyKey, checkKey(*in.IdempotencyKey)
		} else if key != "" {
			ops[i].Key = key + "/" + strconv.Itoa(i)
		}
		if errs[i] == nil && in.Webhook != "" {
			errs[i] = checkHook(c, hooks, in.Webhook)
		}
	}
	return ops, errs, nil
}

// checkKey checks the key of an entry as that of a call is checked.
func checkKey(key string) error {
	if key == "" || len(key) > maxKey {
		return perdure.Invalid("idempotency_key", "has 1 to %d bytes", maxKey)
	}
	return perdure.CheckText("idempotency_key", key)
}

// checkHook checks the URL of an entry's webhook, each URL once.
func checkHook(c *call, known map[string]error, url string) error {
	err, ok := known[url]
	switch {
	case ok:
		return err
	case len(known) == maxBatchHooks:
		return perdure.OverBound("webhook", "a batch names at most %d different webhooks", maxBatchHooks)
	}
	known[url] = checkURL(c, "webhook", url)
	return known[url]
}

// submitAll submits the entries that have no error yet, in parts.
func submitAll(c *call, ops []life.Submit, errs []error) {
	var part []kernel.Op
	var at []int
	rows, size := 0, 0
	submit := func() {
		for k, err := range c.s.engine.DoAll(c.Context(), part...) {
			errs[at[k]] = err
		}
		c.share.changed = true
		part, at, rows, size = part[:0], at[:0], 0, 0
	}
	for i := range ops {
		if errs[i] != nil {
			continue
		}
		r, n := ops[i].Weight()
		if len(part) == maxPartRuns || len(part) > 0 && (rows+r > maxPartRows || size+n > maxPartBytes) {
			submit()
		}
		part, at, rows, size = append(part, &ops[i]), append(at, i), rows+r, size+n
	}
	if len(part) > 0 {
		submit()
	}
}

// splitRuns returns the entries of a batch as they are written in the body.
func splitRuns(b []byte) (out [][]byte, err error) {
	if err := checkText(b); err != nil {
		return nil, err
	}
	w := walks.Get().(*walk)
	defer w.release(len(b))
	w.in = *bytes.NewBuffer(b)
	// A key that stands twice inside an entry is the error of that entry.
	w.d.Reset(&w.in, jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true))
	if err := w.begin(); err != nil {
		return nil, err
	}
	for n := 0; w.d.PeekKind() != '}'; n++ {
		name, err := w.d.ReadValue()
		if err != nil {
			return nil, w.broken(err)
		}
		if plain, _ := jsontext.AppendUnquote(nil, name); string(plain) != "runs" {
			return nil, perdure.Invalid(w.path(-1), "is no field of this call")
		}
		if n > 0 {
			return nil, perdure.Invalid("runs", "stands twice in the same object")
		}
		if out, err = w.entries(b); err != nil {
			return nil, err
		}
	}
	if err := w.end(); err != nil {
		return nil, err
	}
	if err := w.nothingMore(); err != nil {
		return nil, err
	}
	if len(out) == 0 {
		return nil, perdure.Invalid("runs", "has 1 to %d entries", perdure.MaxList)
	}
	return out, nil
}

// entries returns the values of the list that comes next in a body.
func (w *walk) entries(b []byte) (out [][]byte, err error) {
	if k := w.d.PeekKind(); k != '[' {
		if _, err := w.d.ReadValue(); err != nil {
			return nil, w.broken(err)
		}
		return nil, perdure.Invalid("runs", "takes a list, not %s", nameOf(k))
	}
	if _, err := w.d.ReadToken(); err != nil {
		return nil, w.broken(err)
	}
	for w.d.PeekKind() != ']' {
		if len(out) == perdure.MaxList {
			return nil, tooMany("runs")
		}
		v, err := w.d.ReadValue()
		if err != nil {
			return nil, w.broken(err)
		}
		end := w.d.InputOffset()
		out = append(out, b[end-int64(len(v)):end])
	}
	return out, w.end()
}

// decodeEntry decodes an entry of a batch strictly.
func decodeEntry(entry []byte, into *batchRun) error {
	if entry[0] != '{' {
		return perdure.Errorf(perdure.CodeInvalid, "an entry of runs has to be a JSON object")
	}
	err := decodeStrict(entry, into)
	var e *perdure.Error
	if errors.As(err, &e) && (e.Field == "wait" || e.Field == "foreground") {
		return perdure.Invalid(e.Field, "a batch starts runs in the background: start this one by itself to "+
			"wait for it")
	}
	return err
}
