package perdure

// A WatchdogAction is one entry of the watchdog's log: what a rule did, to which run, and why. It
// contains names, and no other text from callers or workers.
type WatchdogAction struct {
	ID     string   `json:"id"` // ordered by time
	At     Instant  `json:"at"`
	Rule   string   `json:"rule"` // W1 to W15
	Name   string   `json:"name"` // name of the rule; W15 has several
	Tenant TenantID `json:"tenant,omitempty"`
	Run    RunID    `json:"run_id,omitempty"` // empty if the action is not about one run
	What   string   `json:"what"`
	Why    string   `json:"why"`
}
