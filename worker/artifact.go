package worker

import (
	"context"
	"fmt"
	"io"

	"github.com/perdure/perdure"
)

// PutArtifact leaves bytes beside the run's result, under a name such as report.pdf and a content type (empty:
// application/octet-stream), and returns when the server has them. It is for what is no value: files, and results beyond a MiB.
// They are there for everybody at once, and stay if the run fails. The same name again replaces it; what can be read anew, an
// io.Seeker, is sent again when a sending fails.
func PutArtifact(ctx context.Context, name, contentType string, body io.Reader) (*perdure.Artifact, error) {
	r := from(ctx)
	if r == nil {
		return nil, errNoRun
	}
	a, err := r.w.c.PutArtifact(ctx, r.lease, name, contentType, body)
	if err != nil {
		return nil, fmt.Errorf("worker: artifact %s: %w", name, err)
	}
	return a, nil
}
