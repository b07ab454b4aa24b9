package perdure

// A WatchdogAction is one entry of the watchdog's log: what a rule did, to which run, and why. It has no text that a caller or a
// worker wrote but names.
type WatchdogAction struct {
	ID     string   `json:"id"` // rises with time
	At     Instant  `json:"at"`
	Rule   string   `json:"rule"` // W1 to W15
	Name   string   `json:"name"` // of the rule: W15 has several
	Tenant TenantID `json:"tenant,omitempty"`
	Run    RunID    `json:"run_id,omitempty"` // empty: it is not about one run
	What   string   `json:"what"`
	Why    string   `json:"why"`
}
