package client

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

// uploadWithin is the server's time limit for an upload.
const uploadWithin = time.Hour

// PutArtifact stores a file of a leased run under a name such as report.pdf. An empty content type
// means application/octet-stream. The same name with the same bytes changes nothing; with other
// bytes the artifact is replaced. A body that is an io.Seeker is sent again from its current
// position if an upload fails; any other body is sent once.
func (c protocol) PutArtifact(
	ctx context.Context, lease api.Lease, name, contentType string, body io.Reader,
) (*perdure.Artifact, error) {
	if body == nil {
		return nil, api.NewProblem(perdure.CodeInvalid, "the artifact has no body", "body")
	}
	r := &request{
		method: http.MethodPut, path: path(v1+"/runs/%s/artifacts/%s", string(lease.RunID), name),
		query: map[string][]string{"epoch": {strconv.FormatInt(lease.Epoch, 10)}}, wait: uploadWithin,
		raw: func() (io.Reader, int64, error) { return body, -1, nil }, media: contentType,
	}
	seeker, ok := body.(io.Seeker)
	if !ok {
		r.noRetry = true
		return answer[perdure.Artifact](ctx, c.Client, r)
	}
	from, err := seeker.Seek(0, io.SeekCurrent)
	if err != nil {
		return nil, fmt.Errorf("read the artifact: %w", err)
	}
	r.raw = func() (io.Reader, int64, error) {
		end, err := seeker.Seek(0, io.SeekEnd)
		if err == nil {
			_, err = seeker.Seek(from, io.SeekStart)
		}
		return body, end - from, err
	}
	return answer[perdure.Artifact](ctx, c.Client, r)
}

// Artifacts lists the artifacts of a run.
func (c *Client) Artifacts(ctx context.Context, id perdure.RunID) ([]perdure.Artifact, error) {
	var out api.Artifacts
	_, err := c.do(ctx, &request{method: http.MethodGet, path: path(v1+"/runs/%s/artifacts", string(id))}, &out)
	return out.Artifacts, err
}

// Artifact returns the bytes of an artifact as a stream that the caller closes. The bytes are
// compared with their hash: if they were damaged or truncated on the way, the stream ends with an
// error.
func (c *Client) Artifact(
	ctx context.Context, id perdure.RunID, name string,
) (io.ReadCloser, *perdure.Artifact, error) {
	r := &request{method: http.MethodGet, path: path(v1+"/runs/%s/artifacts/%s", string(id), name)}
	var nodes round
	for n := 0; ; n++ {
		body, found, f := c.download(ctx, r)
		if f == nil {
			found.RunID, found.Name = id, name
			return body, found, nil
		}
		if nodes.next(c, c.leave(r.turn, f)) && ctx.Err() == nil {
			n-- // the next address is tried at once
			continue
		}
		if ctx.Err() != nil || !f.again || n >= c.opt.Retries || !c.pause(ctx, time.Time{}, n, f.after) {
			return nil, nil, r.explain(ctx, f, false)
		}
	}
}

// download begins to read an artifact. The answer has to begin within the time of an attempt, and may
// not be silent for long.
func (c *Client) download(ctx context.Context, r *request) (io.ReadCloser, *perdure.Artifact, *failure) {
	one, cancel := context.WithCancelCause(ctx)
	req, err := c.request(one, r)
	if err != nil {
		cancel(nil)
		return nil, nil, &failure{err: err}
	}
	began := time.Now()
	quiet := time.AfterFunc(c.opt.Timeout, func() { cancel(errSilent) })
	res, err := c.http.Do(req)
	quiet.Stop()
	if err != nil {
		f := &failure{err: broken(one, err), again: true, node: unanswered(one, err, began, 0)}
		cancel(nil)
		return nil, nil, f
	}
	if res.StatusCode != http.StatusOK {
		defer cancel(nil)
		defer res.Body.Close()
		b, _ := io.ReadAll(io.LimitReader(res.Body, 64<<10))
		return nil, nil, c.explainTenant(readProblem(res, b))
	}
	size, err := strconv.ParseInt(res.Header.Get("Content-Length"), 10, 64)
	if err != nil {
		size = res.ContentLength
	}
	a := &perdure.Artifact{
		SHA256: strings.Trim(res.Header.Get("ETag"), `"`), ContentType: res.Header.Get("Content-Type"), Size: size,
	}
	body := &verifiedBody{r: &idleTimeoutReader{r: res.Body, quiet: quiet, timeout: streamSilence}, body: res.Body,
		ctx: one, cancel: cancel, sum: sha256.New(), want: a.SHA256}
	return body, a, nil
}

// verifiedBody is a response body whose end is an error if the bytes do not have the expected hash.
type verifiedBody struct {
	r      io.Reader
	body   io.Closer
	ctx    context.Context
	cancel context.CancelCauseFunc
	sum    hash.Hash
	want   string
}

func (w *verifiedBody) Read(p []byte) (int, error) {
	n, err := w.r.Read(p)
	w.sum.Write(p[:n])
	switch {
	case errors.Is(err, io.EOF) && hex.EncodeToString(w.sum.Sum(nil)) != w.want:
		err = errors.New("the artifact was damaged or cut off on the way")
	case err != nil && !errors.Is(err, io.EOF):
		err = broken(w.ctx, err)
	}
	return n, err
}

func (w *verifiedBody) Close() error {
	defer w.cancel(nil)
	return w.body.Close()
}
