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

// uploadWithin is how long the server takes an artifact at most.
const uploadWithin = time.Hour

// PutArtifact leaves bytes beside the result of a leased run, under a name such as report.pdf and a content type (empty:
// application/octet-stream). The same name with the same bytes changes nothing; with others it is replaced. A body that is an
// io.Seeker is sent again, from where it stands now, when a sending fails; any other is sent once.
func (c *Client) PutArtifact(ctx context.Context, lease api.Lease, name, contentType string, body io.Reader) (*perdure.Artifact, error) {
	r := &request{method: http.MethodPut, path: path(v1+"/runs/%s/artifacts/%s", string(lease.RunID), name), wait: uploadWithin, media: contentType,
		query: map[string][]string{"epoch": {strconv.FormatInt(lease.Epoch, 10)}}, raw: func() (io.Reader, int64, error) { return body, -1, nil }}
	seeker, ok := body.(io.Seeker)
	if !ok {
		r.single = true
		return answer[perdure.Artifact](ctx, c, r)
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
	return answer[perdure.Artifact](ctx, c, r)
}

// Artifacts lists what a run has left beside its result.
func (c *Client) Artifacts(ctx context.Context, id perdure.RunID) ([]perdure.Artifact, error) {
	var out api.Artifacts
	_, err := c.do(ctx, &request{method: http.MethodGet, path: path(v1+"/runs/%s/artifacts", string(id))}, &out)
	return out.Artifacts, err
}

// Artifact gets an artifact's bytes, as a stream that the caller closes. They are held against their hash: what was damaged or
// cut off on the way is an error at the end of the stream, and never a short file.
func (c *Client) Artifact(ctx context.Context, id perdure.RunID, name string) (io.ReadCloser, *perdure.Artifact, error) {
	r := &request{method: http.MethodGet, path: path(v1+"/runs/%s/artifacts/%s", string(id), name)}
	for n := 0; ; n++ {
		body, found, f := c.download(ctx, r)
		if f == nil {
			found.RunID, found.Name = id, name
			return body, found, nil
		}
		if ctx.Err() != nil || !f.again || n >= c.opt.Retries || !c.pause(ctx, n, f.after) {
			return nil, nil, r.explain(ctx, f, false)
		}
	}
}

func (c *Client) download(ctx context.Context, r *request) (io.ReadCloser, *perdure.Artifact, *failure) {
	req, err := c.request(ctx, r)
	if err != nil {
		return nil, nil, &failure{err: err}
	}
	res, err := c.http.Do(req)
	if err != nil {
		return nil, nil, &failure{err: err, again: true}
	}
	if res.StatusCode != http.StatusOK {
		defer res.Body.Close()
		b, _ := io.ReadAll(io.LimitReader(res.Body, 64<<10))
		return nil, nil, refused(res, b)
	}
	size, err := strconv.ParseInt(res.Header.Get("Content-Length"), 10, 64)
	if err != nil {
		size = res.ContentLength
	}
	a := &perdure.Artifact{SHA256: strings.Trim(res.Header.Get("ETag"), `"`), ContentType: res.Header.Get("Content-Type"), Size: size}
	return &whole{res.Body, sha256.New(), a.SHA256}, a, nil
}

// whole is an artifact's bytes: all of them, or an error.
type whole struct {
	io.ReadCloser
	sum  hash.Hash
	want string
}

func (w *whole) Read(p []byte) (int, error) {
	n, err := w.ReadCloser.Read(p)
	w.sum.Write(p[:n])
	if errors.Is(err, io.EOF) && hex.EncodeToString(w.sum.Sum(nil)) != w.want {
		err = errors.New("the artifact was damaged or cut off on the way")
	}
	return n, err
}
