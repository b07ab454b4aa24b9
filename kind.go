package perdure

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"
)

// The limits of the registry of kinds.
const (
	MaxKinds      = 1000     // kinds of a tenant, or of the platform
	MaxKindBytes  = 64 << 10 // bytes of a kind's definition as JSON
	MaxNotRetried = 50       // codes of KindRetry.NotRetried
	KeptBuilds    = 10       // builds that are stored for a kind
	MaxSignals    = 100      // entries of KindDef.Signals
)

// A KindDef describes a kind of run. Workers announce one for each kind that they execute, and an
// operator can override single fields. A submission takes from it everything that the submission
// does not say. A field that is not set leaves the decision to the policy.
type KindDef struct {
	Description string   `json:"description,omitempty"`
	Class       Class    `json:"class,omitempty"`
	Timeout     Duration `json:"timeout,omitempty"`
	// Retry can be nil.
	Retry *KindRetry `json:"retry,omitempty"`
	// HoldTimeout limits how long a run is held because of a defect of its code.
	HoldTimeout Duration `json:"hold_timeout,omitempty"`
	// HoldDefects is false if a defect costs an attempt instead of holding the run.
	HoldDefects *bool `json:"hold_defects,omitempty"`
	// Limits names limits that all runs of the kind are under. LimitKeyFrom says where in the input their
	// key is, as a JSON Pointer; a submission may give another. Concurrency is how many runs of the kind
	// may be leased at once.
	Limits       []string `json:"limits,omitempty"`
	LimitKeyFrom string   `json:"limit_key_from,omitempty"`
	Concurrency  int      `json:"concurrency,omitempty"`
	// InputSchema and OutputSchema are JSON Schemas. They are shown to people and programs; inputs
	// and results are not checked against them.
	InputSchema  json.RawMessage `json:"input_schema,omitempty"`
	OutputSchema json.RawMessage `json:"output_schema,omitempty"`
	// Signals has a JSON Schema for each signal that runs of the kind take, by its name. A signal that
	// does not fit its schema is refused when it is sent. One that is not listed is not checked.
	Signals map[string]json.RawMessage `json:"signals,omitempty"`
}

// A KindRetry is the retry policy of a kind.
type KindRetry struct {
	MaxAttempts int `json:"max_attempts,omitempty"`
	// Backoff is the delay of the first retry. It doubles with each further one, up to MaxBackoff.
	Backoff    Duration `json:"backoff,omitempty"`
	MaxBackoff Duration `json:"max_backoff,omitempty"`
	// NotRetried lists codes of failures that end the run at once.
	NotRetried []Code `json:"not_retried,omitzero"`
}

// The sources of a field of a kind's effective definition, the lowest layer first.
const (
	KindFromPlatform = "platform" // announced by a worker of all tenants
	KindFromWorker   = "worker"   // announced by a worker of the tenant
	KindFromOperator = "operator" // set by hand
)

// A kindField is a field of a definition, by its name in JSON.
type kindField struct {
	name string
	set  func(d *KindDef) bool
	take func(d, from *KindDef)
}

// kindFields has every field of a definition. Fields of Retry can be overridden one by one.
var kindFields = []kindField{
	{"description", func(d *KindDef) bool { return d.Description != "" },
		func(d, from *KindDef) { d.Description = from.Description }},
	{"class", func(d *KindDef) bool { return d.Class != "" }, func(d, from *KindDef) { d.Class = from.Class }},
	{"timeout", func(d *KindDef) bool { return d.Timeout != 0 }, func(d, from *KindDef) { d.Timeout = from.Timeout }},
	retryField("max_attempts", func(r *KindRetry) bool { return r.MaxAttempts != 0 },
		func(r, from *KindRetry) { r.MaxAttempts = from.MaxAttempts }),
	retryField("backoff", func(r *KindRetry) bool { return r.Backoff != 0 },
		func(r, from *KindRetry) { r.Backoff = from.Backoff }),
	retryField("max_backoff", func(r *KindRetry) bool { return r.MaxBackoff != 0 },
		func(r, from *KindRetry) { r.MaxBackoff = from.MaxBackoff }),
	// An empty list counts as set: it retries what a lower layer does not.
	retryField("not_retried", func(r *KindRetry) bool { return r.NotRetried != nil },
		func(r, from *KindRetry) { r.NotRetried = from.NotRetried }),
	{"hold_timeout", func(d *KindDef) bool { return d.HoldTimeout != 0 },
		func(d, from *KindDef) { d.HoldTimeout = from.HoldTimeout }},
	{"hold_defects", func(d *KindDef) bool { return d.HoldDefects != nil },
		func(d, from *KindDef) { d.HoldDefects = from.HoldDefects }},
	{"limits", func(d *KindDef) bool { return len(d.Limits) > 0 },
		func(d, from *KindDef) { d.Limits = from.Limits }},
	{"limit_key_from", func(d *KindDef) bool { return d.LimitKeyFrom != "" },
		func(d, from *KindDef) { d.LimitKeyFrom = from.LimitKeyFrom }},
	{"concurrency", func(d *KindDef) bool { return d.Concurrency != 0 },
		func(d, from *KindDef) { d.Concurrency = from.Concurrency }},
	{"input_schema", func(d *KindDef) bool { return len(d.InputSchema) > 0 },
		func(d, from *KindDef) { d.InputSchema = from.InputSchema }},
	{"output_schema", func(d *KindDef) bool { return len(d.OutputSchema) > 0 },
		func(d, from *KindDef) { d.OutputSchema = from.OutputSchema }},
	{"signals", func(d *KindDef) bool { return len(d.Signals) > 0 },
		func(d, from *KindDef) { d.Signals = from.Signals }},
}

// retryField makes a field of Retry.
func retryField(name string, set func(*KindRetry) bool, take func(r, from *KindRetry)) kindField {
	return kindField{"retry." + name,
		func(d *KindDef) bool { return d.Retry != nil && set(d.Retry) },
		func(d, from *KindDef) {
			r := d.RetryPolicy()
			f := from.RetryPolicy()
			take(&r, &f)
			d.Retry = &r
		}}
}

// RetryPolicy returns Retry, or a zero value if there is none.
func (d *KindDef) RetryPolicy() KindRetry {
	if d.Retry == nil {
		return KindRetry{}
	}
	return *d.Retry
}

// Overlay replaces the fields of d that upper sets. It records the source of each in sources, which
// may be nil. d shares no memory with upper that Overlay changes later.
func (d *KindDef) Overlay(upper *KindDef, source string, sources map[string]string) {
	for _, f := range kindFields {
		if !f.set(upper) {
			continue
		}
		f.take(d, upper)
		if sources != nil {
			sources[f.name] = source
		}
	}
}

// Clear removes a field, by its name in JSON: "timeout", "retry.backoff", or "retry" for all of
// Retry.
func (d *KindDef) Clear(name string) error {
	found := false
	for _, f := range kindFields {
		if f.name == name || name == "retry" && strings.HasPrefix(f.name, "retry.") {
			f.take(d, &KindDef{})
			found = true
		}
	}
	if !found {
		return Invalid(name, "is no field of a kind")
	}
	if d.Retry != nil && d.Retry.empty() {
		d.Retry = nil
	}
	return nil
}

func (r *KindRetry) empty() bool {
	return r.MaxAttempts == 0 && r.Backoff == 0 && r.MaxBackoff == 0 && r.NotRetried == nil
}

// Empty tells whether no field is set.
func (d *KindDef) Empty() bool {
	return !slices.ContainsFunc(kindFields, func(f kindField) bool { return f.set(d) })
}

// Validate checks a definition. A schema that is null counts as not given.
func (d *KindDef) Validate() error {
	for _, s := range []*json.RawMessage{&d.InputSchema, &d.OutputSchema} {
		if string(*s) == "null" {
			*s = nil
		}
	}
	if err := CheckText("description", d.Description); err != nil {
		return err
	}
	if d.Class != "" {
		if err := oneOf("class", d.Class, Classes); err != nil {
			return err
		}
	}
	r := d.RetryPolicy()
	for _, x := range []struct {
		name string
		d    Duration
	}{{"timeout", d.Timeout}, {"hold_timeout", d.HoldTimeout}, {"retry.backoff", r.Backoff},
		{"retry.max_backoff", r.MaxBackoff}} {
		if x.d != 0 && (time.Duration(x.d) < minDuration || time.Duration(x.d) > MaxWait) {
			return Invalid(x.name, "must lie between %s and %s", minDuration, MaxWait)
		}
	}
	if r.MaxAttempts < 0 || r.MaxAttempts > MaxAttempts {
		return Invalid("retry.max_attempts", "%d does not lie between 1 and %d", r.MaxAttempts, MaxAttempts)
	}
	if len(r.NotRetried) > MaxNotRetried {
		return OverBound("retry.not_retried", "has %d codes; a kind takes %d", len(r.NotRetried), MaxNotRetried)
	}
	for _, c := range r.NotRetried {
		if err := CheckCode("retry.not_retried", c); err != nil {
			return err
		}
		if c == "" {
			return Invalid("retry.not_retried", "has an empty code")
		}
	}
	if err := checkLimits("", d.Limits, "", 0); err != nil {
		return err
	}
	if err := checkPointer("limit_key_from", d.LimitKeyFrom); err != nil {
		return err
	}
	if d.Concurrency < 0 || d.Concurrency > maxLimitCount {
		return Unprocessable("concurrency", "%d does not lie between 1 and %d", d.Concurrency, maxLimitCount)
	}
	if err := checkSchema("input_schema", d.InputSchema); err != nil {
		return err
	}
	if err := checkSchema("output_schema", d.OutputSchema); err != nil {
		return err
	}
	if err := checkSignals(d.Signals); err != nil {
		return err
	}
	b, err := json.Marshal(d)
	if err == nil && len(b) > MaxKindBytes {
		return OverBound("", "the definition has %d bytes; a kind takes %d", len(b), MaxKindBytes)
	}
	return err
}

// checkSignals checks the names and schemas of signals.
func checkSignals(signals map[string]json.RawMessage) error {
	if len(signals) > MaxSignals {
		return OverBound("signals", "has %d entries; a kind takes %d", len(signals), MaxSignals)
	}
	for _, name := range slices.Sorted(maps.Keys(signals)) {
		if err := checkName("signals", name); err != nil {
			return err
		}
		if len(signals[name]) == 0 {
			return Invalid("signals."+name, "has to be a JSON object")
		}
		if err := checkSchema("signals."+name, signals[name]); err != nil {
			return err
		}
	}
	return nil
}

// checkSchema checks that a schema is a JSON object. It does not check that it is a JSON Schema.
func checkSchema(field string, v json.RawMessage) error {
	if len(v) == 0 {
		return nil
	}
	if err := CheckValue(field, v); err != nil {
		return err
	}
	if text := bytes.TrimSpace(v); text[0] != '{' {
		return Invalid(field, "has to be a JSON object")
	}
	return nil
}

// CheckBuild checks the name of a build. It may be empty.
func CheckBuild(field, build string) error {
	if len(build) > MaxName {
		return Invalid(field, "is longer than %d bytes", MaxName)
	}
	return checkText(field, build)
}

// DefaultTimeout returns the timeout of a run of a class that sets none: that of its kind, but not
// more than the class allows. Zero means the default of the class.
func (p *Policy) DefaultTimeout(class Class, kind *KindDef) Duration {
	return min(kind.Timeout, Duration(p.Timeouts.Of(class).Max))
}

// AfterLoss is afterLoss with the retry policy of the run's kind. A code that the kind does not
// retry ends the run.
func (p *Policy) AfterLoss(r *Run, epoch int64, why Failure, kind *KindDef, roll float64) Event {
	retry := kind.RetryPolicy()
	of := *p
	if retry.Backoff != 0 {
		of.BackoffBase = time.Duration(retry.Backoff)
	}
	if retry.MaxBackoff != 0 {
		of.BackoffMax = time.Duration(retry.MaxBackoff)
	}
	ev := of.afterLoss(r, epoch, why, roll)
	if _, again := ev.(Retried); !again || !slices.Contains(retry.NotRetried, why.Code) {
		return ev
	}
	if epoch == 0 { // nobody has reported this end, so it leaves a dead letter
		return GaveUp{Failure: why}
	}
	return FailedForGood{Epoch: epoch, Failure: why}
}

// Unserved describes a kind and a queue that no worker polls for.
type Unserved struct {
	Queue string `json:"queue"`
	// LastPolledAt is when a worker last polled for it, as far as that is known. Workers are
	// forgotten after worker_retention.
	LastPolledAt Instant `json:"last_polled_at,omitempty"`
}

// Message says in words that no worker serves a kind.
func (u *Unserved) Message(kind string) string {
	text := "no worker polls for kind " + kind + " on queue " + u.Queue
	if u.LastPolledAt == 0 {
		return text + ", and none is known that did"
	}
	return "no worker has polled for kind " + kind + " on queue " + u.Queue + " since " +
		u.LastPolledAt.Time().Format(time.RFC3339)
}
