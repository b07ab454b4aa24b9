package life

import "github.com/perdure/perdure"

// A CommitAnswer is the answer to a commit.
type CommitAnswer struct {
	RunID perdure.RunID `json:"run_id"`
	OK    bool          `json:"ok"`
	State perdure.State `json:"state"`
	// Cancel is set if the run is asked to stop.
	Cancel    bool           `json:"cancel,omitempty"`
	Children  []ChildOf      `json:"children,omitempty"`
	Callbacks []CallbackOf   `json:"callbacks,omitempty"`
	Error     *perdure.Error `json:"error,omitempty"`
}

// A ChildOf names the run that a spawn created.
type ChildOf struct {
	Key   string        `json:"key"`
	RunID perdure.RunID `json:"run_id"`
}

// A CallbackOf holds the token of a callback wait.
type CallbackOf struct {
	WaitID string `json:"wait_id"`
	Token  string `json:"token"`
}

// fieldOf names the field of the request that a domain error is about, unless the error names one.
func fieldOf(err error, field string) error {
	if e, ok := err.(*perdure.Error); ok && e.Field == "" {
		return &perdure.Error{Code: e.Code, Message: e.Message, Field: field}
	}
	return err
}
