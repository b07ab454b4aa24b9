package worker

import "context"

// HandBack returns a run to the server, which grants it again, here or to another worker. It costs no
// attempt. The handler's context ends with [ErrShutdown], and what the handler returns is ignored, except
// for a result. A program uses it for a run that it has no room for at present. HandBack does nothing and
// returns false for a run with a single attempt, which would end, and outside of a run.
func HandBack(ctx context.Context) bool {
	r := from(ctx)
	if r == nil || r.grant.MaxAttempts == 1 {
		return false
	}
	r.stop(ErrShutdown)
	return true
}
