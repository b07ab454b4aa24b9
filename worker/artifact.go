package worker

import (
	"context"
	"fmt"
	"io"

	"github.com/perdure/perdure"
)

// PutArtifact stores a file beside the run's result, under a name such as report.pdf, and returns
// when the server has it. It is for files and for results above a MiB. An empty content type means
// application/octet-stream. The artifact is visible at once and stays if the run fails. The same
// name again replaces it. A body that is an io.Seeker is sent again if an upload fails.
func PutArtifact(ctx context.Context, name, contentType string, body io.Reader) (*perdure.Artifact, error) {
	r := from(ctx)
	if r == nil {
		return nil, errNoRun
	}
	a, err := r.w.calls.PutArtifact(ctx, r.lease, name, contentType, body)
	if err != nil {
		return nil, fmt.Errorf("worker: artifact %s: %w", name, err)
	}
	return a, nil
}
