package kernel

import (
	"github.com/perdure/perdure"
)

// A Feature is something that nodes of the release before do not know, and that would break its
// promise there: they would grant against a limit, or start a second run of a kind that has one at a
// time. Its use is refused while such a node is connected (Tx.Requires), so that a rolling upgrade
// promises nothing that half of the fleet does not keep.
type Feature struct {
	Name string // in the plural, as it begins a sentence
	// Schema are the files of the store's schema that it came with.
	Schema []string
}

// Features of release 0.2.0. A file of the schema is in one of them or in Unfeatured; a test of package
// archtest compares both with the files.
var (
	Schedules = Feature{Name: "schedules", Schema: []string{"0031_schedules"}}
	Limits    = Feature{Name: "limits", Schema: []string{"0034_limits", "0035_limit_lines", "0037_queue_limits"}}

	PausedKinds = Feature{Name: "paused kinds", Schema: []string{"0033_kind_pauses"}}
	UniqueRuns  = Feature{Name: "unique and debounced runs", Schema: []string{"0036_unique"}}

	// WebhookFormats: a node of the release before sends its own form.
	WebhookFormats = Feature{Name: "formats of webhooks", Schema: []string{"0039_webhook_formats"}}

	// StepLimits are in the text of a run, which a node of the release before writes without them.
	StepLimits = Feature{Name: "limits of steps"}

	Features = []Feature{Schedules, PausedKinds, Limits, UniqueRuns, WebhookFormats, StepLimits}
)

// Unfeatured are files of the schema since 0.1.0 whose columns and tables nodes of the release before
// may ignore, with the reason.
var Unfeatured = map[string]string{
	"0030_worker_library": "the release of a worker's library is shown, and decides nothing",
	"0032_names": "a node of the release before refuses a name in a body, and a name whose run or thread it has " +
		"removed counts as free",
	"0038_thread_runs": "an index, which every node writes",
}

// Requires refuses an operation while a node is connected that does not know a feature. Operations
// call it that make use of the feature or extend that. Those that read or end it do not.
func (tx *Tx) Requires(f Feature) error {
	if older := tx.DB.OlderNode(); older != "" {
		return perdure.Errorf(perdure.CodeOlderNode, "%s wait until the last node is upgraded: a node of release %s "+
			"is connected, which does not know them", f.Name, older)
	}
	return nil
}
